"""The model of one queue: a dict of messages, and all moments that there were.

It plays the replica's part of the contract between the master and the store, and looks at
every message that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.effects import (
    ConfirmSequences,
    DeliverRuns,
    Effect,
    MulticastOp,
    ReportBarrier,
    ReportSettled,
)
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AskedOp, Op, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import QueueStore


@dataclass(frozen=True)
class Message:
    body: bytes
    properties: bytes
    transient: bool
    redelivered: bool = False


@dataclass(frozen=True)
class Moment:
    """The persistent part of a queue at some time."""

    timeline: int
    number: int
    epoch: int
    next_position: int
    messages: dict[int, Message]
    missing: frozenset[int]

    def is_state(self, state: ReplicatedState) -> bool:
        """Whether a restart has brought back this moment."""
        return (
            (self.number, self.epoch, self.next_position)
            == (state.last_number, state.epoch, state.next_position)
            and positions_of(state.live) == sorted(self.messages)
            and positions_of(state.redelivered)
            == [at for at, message in sorted(self.messages.items()) if message.redelivered]
        )


def positions_of(ranges: Iterable[Range]) -> list[int]:
    return [n for first, last in ranges for n in range(first, last + 1)]


def ranges_of(positions: Iterable[int]) -> list[Range]:
    return [*RangeSet((position, position) for position in positions)]


@dataclass(eq=False)
class Queue:
    """One queue's model, and its real store and master."""

    name: str
    store: QueueStore
    durable: bool = True
    master: QueueMaster = field(init=False)
    messages: dict[int, Message] = field(default_factory=dict)
    # Removed, as another replica may still have them.
    graves: dict[int, Message] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    ready: set[int] = field(default_factory=set)
    clients: dict[int, set[int]] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    timeline: int = 0
    lazy: bool = False
    consumers: int = 0
    # All moments there were, those that can't come back any more too.
    history: list[Moment] = field(default_factory=list)

    def note(self) -> None:
        """Something has changed that a restart may bring back."""
        state = self.store.state
        kept = {at: message for at, message in self.messages.items() if not message.transient}
        missing = frozenset(self.missing & kept.keys())
        moment = Moment(
            self.timeline, state.last_number, state.epoch, state.next_position, kept, missing
        )
        self.moments.append(moment)
        self.history.append(moment)

    def promised(self) -> None:
        """The store says that `durable_number` is durable: nothing older may come back."""
        for at, moment in enumerate(self.moments):
            is_it = moment.number == self.store.durable_number and moment.timeline == self.timeline
            if is_it and (not self.store.fills_durable or moment.missing == self.lacking):
                del self.moments[:at]
                return

    @property
    def lacking(self) -> frozenset[int]:
        return frozenset(at for at in self.missing if not self.messages[at].transient)

    # -- the replica's part

    def begin_mastership(self) -> None:
        self.clients.clear()
        self.ready = set(self.messages)
        self.master = QueueMaster(self.store.state, self.store, durable=self.durable)

    def append(self, op: Op) -> int:
        number = self.store.state.last_number + 1
        self.store.append(number, op, ops.encode(op))
        return number

    def take_over(self) -> None:
        """Marks the messages that may have been delivered as redelivered."""
        self.store.begin_epoch(self.store.state.epoch + 1)
        self.note()
        live = self.store.state.live
        if live:
            self.append(Requeue(((live.first, live.last),)))
            for at in self.messages:
                self.messages[at] = replace(self.messages[at], redelivered=True)
            self.note()
        self.begin_mastership()

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op):
                    self.multicast(op)
                case DeliverRuns(consumer, runs):
                    for position in self.seen(runs):
                        self.ready.remove(position)
                        self.clients[consumer].add(position)
                case ConfirmSequences() | ReportSettled() | ReportBarrier():
                    pass

    def multicast(self, op: AskedOp) -> None:
        number = self.append(op)
        if isinstance(op, Remove):
            for position in positions_of(op.ranges):
                self.graves[position] = self.messages.pop(position)
            self.note()
        elif isinstance(op, Requeue):
            for position in positions_of(op.ranges):
                self.messages[position] = replace(self.messages[position], redelivered=True)
                self.ready.add(position)
            self.note()
        else:
            # It changes no message, but it has a number.
            self.note()
        self.do(self.master.applied(number, op))

    def watermarks(self) -> None:
        last = self.store.state.last_number
        self.do(self.master.watermarks(last, min(self.store.durable_number, last)))

    def seen(self, runs: Sequence[Run]) -> list[int]:
        """The positions of `runs`. Checks that their contents were published there."""
        found: list[int] = []
        for run in runs:
            properties = run.block.properties() or [b""]
            if len(properties) == 1:
                properties *= run.block.count
            bodies = run.block.bodies()
            assert len(bodies) == len(properties) == run.block.count
            for at, body in enumerate(bodies, run.first_position):
                message = Message(
                    body, properties[at - run.first_position], run.transient, run.redelivered
                )
                assert message == self.messages[at], (self.name, at)
                found.append(at)
        assert found == sorted(found)
        return found
