"""`QueueMaster` against dicts and sets: any events, in any order.

The oracle: every message that is live at the end can be drained; each was delivered only
when it was visible, for the first time in order of positions, and again only with
`redelivered`; each publish is confirmed once, and only when it is safe; each ack is settled
once, and only when it is safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from node.tests.queue.memory import MemoryQueue
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue import deliveries, ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import (
    ConsumerTerms,
    NotAloneError,
    NotOutstandingError,
    PrefetchUsedError,
)
from ringmq_node.queue.effects import (
    ConfirmSequences,
    DeliverMore,
    DeliverRuns,
    Effect,
    EndConsumer,
    EndReason,
    MulticastOp,
    ReportBarrier,
    ReportSettled,
    TellActive,
)
from ringmq_node.queue.leases import ChangeLease
from ringmq_node.queue.leaving import NOBODY
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AskedOp, Barrier, NoteGone, Op, Publish, Remove, Requeue
from ringmq_node.queue.run import Messages, Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import Store

# In place of the product's bounds. Small, so that a short run meets them.
TURN_MESSAGES_MAX = 4
TURN_BYTES_MAX = 60
RANGES_SENT_MAX = 2
SIZES = st.sampled_from([0, 1, 5, 30, 200])
PREFETCH_MESSAGES = st.sampled_from([1, 2, 5, 100])
PREFETCH_BYTES = st.sampled_from([1, 10, 100, 10_000])
LIMIT_MESSAGES = st.sampled_from([0, 1, 3, 1000])
LIMIT_BYTES = st.sampled_from([0, 1, 40, 10_000])
PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=6)


class Queue(Messages, Protocol):
    @property
    def state(self) -> ReplicatedState: ...
    @property
    def missing(self) -> RangeSet: ...
    def append(self, op: Op) -> int: ...


class StoreQueue:
    """A real `QueueStore`, none of whose rounds reaches its disk."""

    def __init__(self) -> None:
        self._store = Store.open(Path("/data"), cluster_id="c", node="n", disk=SimulatedDisk())
        self._queue = self._store.open_queue("q")
        self.fetch = self._queue.fetch
        self.read = self._queue.read
        self.bytes_in = self._queue.bytes_in

    @property
    def state(self) -> ReplicatedState:
        return self._queue.state

    @property
    def missing(self) -> RangeSet:
        return self._queue.missing

    def append(self, op: Op) -> int:
        number = self.state.last_number + 1
        self._queue.append(number, op, ops.encode(op))
        return number


def positions_of(ranges: object) -> list[int]:
    return [n for first, last in ranges for n in range(first, last + 1)]  # type: ignore[attr-defined]


def ranges_of(positions: Sequence[int]) -> list[Range]:
    return [*RangeSet((position, position) for position in positions)]


@dataclass
class Client:
    """The model of a consumer, from its own side."""

    prefetch_messages: int
    prefetch_bytes: int
    # Of the whole queue: positions whose bodies count for nothing.
    missing: set[int]
    priority: int = 0
    exclusive: bool = False
    identity: bytes = b""
    pulls: bool = False
    has: dict[int, bytes] = field(default_factory=dict)
    # The first tick after the delivery; None: not yet.
    since: dict[int, int | None] = field(default_factory=dict)
    cancelled: bool = False
    told_active: bool | None = None

    @property
    def counts(self) -> bool:
        """As one of the queue's consumers."""
        return not (self.pulls or self.cancelled)

    def takes(self, body: bytes) -> bool:
        """Unasked."""
        return not self.pulls and self.has_room(body)

    def has_room(self, body: bytes) -> bool:
        size = sum(len(body) for at, body in self.has.items() if at not in self.missing)
        fits = not self.has or size + len(body) <= self.prefetch_bytes
        return fits and len(self.has) < self.prefetch_messages and not self.cancelled


@dataclass(frozen=True)
class Waiting:
    number: int
    transient: bool


class MasterMachine(RuleBasedStateMachine):
    """Plays the replica's part, keeps a model, and checks each effect against it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(deliveries, "TURN_MESSAGES_MAX", TURN_MESSAGES_MAX)
        self.patch.setattr(deliveries, "PIECE_RUNS_MAX", 2)
        self.patch.setattr(deliveries, "PIECE_BYTES_MAX", 2 * TURN_BYTES_MAX)
        self.patch.setattr(deliveries, "TURN_BYTES_MAX", TURN_BYTES_MAX)
        self.patch.setattr(ops, "RANGES_SENT_MAX", RANGES_SENT_MAX)
        self.patch.setattr(ops, "REQUEUED_RANGES_MAX", RANGES_SENT_MAX)
        self.queue = self.make_queue()
        self.ids = 0
        self.bodies: dict[int, bytes] = {}
        self.redelivered: set[int] = set()
        self.counts: Counter[int] = Counter()
        self.limit: int | None = None
        # See `test_master_damage`.
        self.missing: set[int] = set()
        self.out_of_order: set[int] = set()
        self.given: Counter[int] = Counter()
        self.sequences: dict[bytes, int] = {b"a": 0, b"b": 0}
        self.begin_mastership()

    def make_queue(self) -> Queue:
        return MemoryQueue()

    def begin_mastership(self) -> None:
        self.master = QueueMaster(self.queue.state, self.queue)
        self.master.requeues.delivery_limit = self.limit
        self.received = self.persisted = 0
        self.ring_open = True
        self.held: list[AskedOp] = []
        # Waiters for a barrier, and the first number whose safety will do.
        self.waiters: dict[int, int] = {}
        # The ends of acknowledgements by position and of purges that are to be noted.
        self.gone_wanted: list[int] = []
        self.barriers_sent: list[int] = []
        # Of this master alone: it delivers again the messages of its predecessor.
        self.first_given_max = -1
        self.ready = set(self.bodies)
        self.given_up: set[int] = set()
        self.damaged: set[int] = set()
        self.clients: dict[int, Client] = {}
        self.single = False
        self.current: int | None = None
        self.timeout_ms: int | None = None
        self.now_ms = 0
        self.overdue: dict[int, set[int]] = {}
        self.replaced: int | None = None
        # Positions by owner of their removal: not yet in an op, and in one.
        self.gathered: dict[int, set[int]] = {}
        self.removing: list[tuple[int, int, set[int]]] = []
        # By taker: all that a `take` or a `purge` removes.
        self.takers: dict[int, set[int]] = {}
        # Publishes in order, which become visible in order: (number, transient, end).
        end = self.queue.state.next_position
        self.hidden = [(self.queue.state.last_number, False, end)] if end else []
        self.visible_below = 0
        # Confirms that are due to publishers, by (publisher, sequence).
        self.pending: dict[tuple[int, int], list[Waiting]] = {}

    # --- the replica's part ---

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op):
                    self.held.append(op)
                    self.send_held()
                case DeliverRuns(consumer, runs):
                    self.delivered(consumer, runs)
                case DeliverMore():
                    self.do(self.master.deliver_more())
                case ConfirmSequences(publisher, sequences):
                    self.confirmed(publisher, positions_of(sequences))
                case ReportSettled(consumer, ranges):
                    self.settled(consumer, ranges)
                case TellActive(consumer, active):
                    self.clients[consumer].told_active = active
                case EndConsumer(consumer, reason):
                    has = set(self.clients.pop(consumer).has)
                    if reason is EndReason.TIMED_OUT:
                        # Less those for which `tick` has asked.
                        has -= self.overdue.pop(consumer)
                    else:
                        assert consumer == self.replaced
                    self.want_back(has)
                case ReportBarrier(waiter):
                    assert self.waiters.pop(waiter) <= self.persisted

    def send_held(self) -> None:
        while self.held and self.ring_open:
            op = self.held.pop(0)
            number = self.queue.append(op)
            if isinstance(op, Barrier):
                self.barrier_applied(number)
            elif isinstance(op, NoteGone):
                assert max(op.acked_end, op.purged_end) == self.gone_wanted.pop(0)
            elif isinstance(op, ChangeLease):
                raise AssertionError("nobody asked for a lease")
            elif isinstance(op, Remove):
                assert 0 < len(op.ranges) <= RANGES_SENT_MAX
                self.removal_applied(number, set(positions_of(op.ranges)))
            else:
                assert 0 < len(op.ranges) <= RANGES_SENT_MAX
                back = set(positions_of(op.ranges))
                assert isinstance(op, Requeue)
                assert op.counted
                self.counts.update(back)
                self.redelivered |= back
                self.ready |= back - self.given_up
                self.damaged |= back & self.given_up
            self.do(self.master.applied(number, op))

    def barrier_applied(self, number: int) -> None:
        assert not self.barriers_sent or self.barriers_sent[-1] <= self.received
        self.barriers_sent.append(number)

    def removal_applied(self, number: int, positions: set[int]) -> None:
        for owner, wanted in [*self.gathered.items()]:
            part = wanted & positions
            if part:
                self.removing.append((number, owner, part))
                positions -= part
                wanted -= part
            if not wanted:
                del self.gathered[owner]
            for position in part:
                del self.bodies[position]
                del self.counts[position]
            self.missing -= part
            self.given_up -= part
        assert not positions, "removed, and nobody asked for it"

    def delivered(self, consumer: int, runs: Sequence[Run]) -> None:
        client = self.clients[consumer]
        assert runs
        assert not client.cancelled
        if self.single:
            # What is on its way back comes first.
            coming = [op.ranges[0][0] for op in self.held if isinstance(op, Requeue)]
            assert all(runs[-1].last_position < first for first in coming)
        # Nobody of a higher priority could have taken the first one.
        first_body = runs[0].block.bodies()[0]
        for number, other in self.clients.items():
            assert other.priority <= client.priority or not self.may_take(number, first_body)
        for position, body, redelivered, count in spread(runs):
            assert self.may_take(consumer, body), (client, position)
            self.look(position, body, redelivered, count)
            self.check_turn(position)
            self.ready.remove(position)
            client.has[position] = body
            client.since[position] = None
            assert redelivered or not self.given[position]
            self.given[position] += 1

    def may_take(self, number: int, body: bytes) -> bool:
        if number in self.overdue:
            # The core has ended it, and its shell is about to hear of that.
            return False
        return self.clients[number].takes(body) and (not self.single or number == self.active())

    def active(self) -> int | None:
        """The first one that isn't cancelled; a cancelled one stays until it has nothing left."""
        now = self.clients.get(self.current or 0)
        if not self.single:
            self.current = None
        elif now is None or (now.cancelled and not now.has) or self.current in self.overdue:
            able = (
                number
                for number, client in self.clients.items()
                if not (client.cancelled or client.pulls or number in self.overdue)
            )
            self.current = min(able, default=None)
        return self.current

    def check_turn(self, position: int) -> None:
        """It is delivered now: in order."""
        if not self.given[position] and position not in self.out_of_order:
            assert position > self.first_given_max
            self.first_given_max = position

    def priority_of(self, position: int) -> int:
        return 0

    def turn(self, position: int) -> tuple[int, int]:
        """The key by which messages are sorted."""
        return -self.priority_of(position), position

    def look(self, position: int, body: bytes, redelivered: bool, count: int) -> None:
        assert position in self.ready
        assert position not in self.missing
        assert position < self.visible_below
        assert body == self.bodies[position]
        assert redelivered == (position in self.redelivered)
        assert count == self.counts[position]

    def confirmed(self, publisher: int, sequences: list[int]) -> None:
        for sequence in sequences:
            waiting = self.pending[publisher, sequence]
            due = [entry for entry in waiting if self.is_safe(entry)]
            assert due, "confirmed twice, or too early"
            waiting.remove(due[0])

    def is_safe(self, entry: Waiting) -> bool:
        return entry.number <= (self.received if entry.transient else self.persisted)

    def settled(self, owner: int, ranges: tuple[Range, ...]) -> None:
        positions = set(positions_of(ranges))
        assert positions
        if owner in self.takers:
            assert positions == self.takers.pop(owner), "told before all is safe"
        for entry in [*self.removing]:
            number, by, part = entry
            if by == owner and part & positions:
                assert number <= self.persisted
                assert part <= positions
                positions -= part
                self.removing.remove(entry)
        assert not positions, "settled twice, or never removed"

    def want_back(self, positions: Iterable[int]) -> None:
        """A consumer has let go of these; those that have come back too often leave."""
        if self.limit is not None:
            over = [position for position in positions if self.counts[position] >= self.limit]
            self.want_removed(NOBODY, over)

    def want_removed(self, owner: int, positions: Sequence[int]) -> None:
        if positions:
            self.gathered.setdefault(owner, set()).update(positions)

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    @initialize(limit=st.sampled_from([None, None, 0, 1, 3]))
    def choose_limit(self, limit: int | None) -> None:
        self.limit = self.master.requeues.delivery_limit = limit

    # --- publishers ---

    @precondition(lambda self: self.ring_open)
    @rule(
        sizes=st.lists(SIZES, min_size=1, max_size=6),
        transient=st.booleans(),
        producer=st.sampled_from([b"", b"a", b"b"]),
        again=st.integers(0, 5),
        publisher=st.sampled_from([-1, -2]),
    )
    def publish(
        self, sizes: list[int], transient: bool, producer: bytes, again: int, publisher: int
    ) -> None:
        """As a replica does it: messages that were enqueued before are cut off the batch."""
        known = self.sequences.get(producer, 0)
        first = max(1, known + 1 - again)
        last = first + len(sizes) - 1
        if first <= known:
            end = min(known, last)
            self.expect(publisher, first, end, self.queue.state.last_number, transient)
            self.do(self.master.repeated(publisher, (first, end), transient=transient))
            sizes = sizes[end - first + 1 :]
            first = end + 1
        if not sizes:
            return
        position = self.queue.state.next_position
        bodies = [bytes([at % 256]) * size for at, size in enumerate(sizes, position)]
        op = Publish(
            position,
            Block.of(bodies),
            transient,
            producer,
            first,
            priority=self.priority_of(position),
        )
        number = self.queue.append(op)
        if producer:
            self.sequences[producer] = last
        self.expect(publisher, first, last, number, transient)
        self.bodies.update(enumerate(bodies, position))
        self.ready.update(range(position, position + len(bodies)))
        self.hidden.append((number, transient, position + len(bodies)))
        self.do(self.master.published(number, op, publisher))

    def expect(self, publisher: int, first: int, last: int, number: int, transient: bool) -> None:
        for sequence in range(first, last + 1):
            self.pending.setdefault((publisher, sequence), []).append(Waiting(number, transient))

    # --- consumers ---

    @precondition(lambda self: len(self.clients) < 4)
    @rule(
        messages=PREFETCH_MESSAGES,
        size=PREFETCH_BYTES,
        priority=st.integers(-1, 1),
        exclusive=st.sampled_from([False, False, False, True]),
        identity=st.sampled_from([b"", b"", b"x", b"y"]),
    )
    def open_consumer(
        self,
        messages: int,
        size: int,
        priority: int = 0,
        exclusive: bool = False,
        identity: bytes = b"",
    ) -> None:
        terms = ConsumerTerms(messages, size, priority, exclusive, identity)
        same = [n for n, each in self.clients.items() if identity and each.identity == identity]
        others = [each for n, each in self.clients.items() if n not in same and each.counts]
        number = self.next_id()
        is_kept_out = bool(others) and (exclusive or any(each.exclusive for each in others))
        if is_kept_out or (exclusive and self.single):
            before = self.picture()
            with pytest.raises(NotAloneError):
                self.master.consumer_opened(number, terms)
            assert self.picture() == before
            return
        self.replaced = same[0] if same else None
        self.do(self.master.consumer_opened(number, terms))
        assert not set(same) & set(self.clients)
        self.clients[number] = Client(messages, size, self.missing, priority, exclusive, identity)
        self.do(self.master.consumer_begun(number))

    @precondition(lambda self: len(self.clients) < 4)
    @rule(
        messages=PREFETCH_MESSAGES,
        size=PREFETCH_BYTES,
        identity=st.sampled_from([b"", b"", b"x"]),
    )
    def open_puller(self, messages: int, size: int, identity: bytes) -> None:
        """It keeps nobody out, and nobody keeps it out but an older stream of its own."""
        number = self.next_id()
        same = [n for n, each in self.clients.items() if identity and each.identity == identity]
        self.replaced = same[0] if same else None
        terms = ConsumerTerms(messages, size, identity=identity, pulls=True)
        self.do(self.master.consumer_opened(number, terms))
        assert not set(same) & set(self.clients)
        self.clients[number] = Client(messages, size, self.missing, identity=identity, pulls=True)
        self.do(self.master.consumer_begun(number))
        assert len(self.master.consumers) == sum(each.counts for each in self.clients.values())

    @precondition(lambda self: any(client.pulls for client in self.clients.values()))
    @rule(which=st.integers(0, 3), messages_max=LIMIT_MESSAGES, bytes_max=LIMIT_BYTES)
    def pull(self, which: int, messages_max: int, bytes_max: int) -> None:
        number = self.pick(which)
        client = self.clients[number]
        if not client.pulls:
            return
        visible = self.visible()
        room = client.prefetch_messages - len(client.has)
        has = sum(len(body) for at, body in client.has.items() if at not in self.missing)
        bytes_max = min(bytes_max, client.prefetch_bytes - has)
        expected = self.prefix(min(messages_max, room), bytes_max)
        is_held = bool(visible) and visible[0] in self.missing
        # Then others may come first, once the ring has taken that they are back.
        is_requeuing = any(isinstance(op, Requeue) for op in self.held)
        front = self.bodies[visible[0]] if visible else None
        if messages_max and front is not None and not is_held and not client.has_room(front):
            with suppress(PrefetchUsedError):
                runs, _ = self.master.pull(number, messages_max, bytes_max)
                assert is_requeuing
                assert not runs
            return
        runs, effects = self.master.pull(number, messages_max, bytes_max)
        got = [position for position, *_ in spread(runs)]
        assert got == expected[: len(got)]
        assert got or not expected or is_requeuing
        for message in spread(runs):
            self.look(*message)
            position, body, *_ = message
            self.check_turn(position)
            self.ready.remove(position)
            client.has[position], client.since[position] = body, None
            self.given[position] += 1
        self.do(effects)

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 3), messages=PREFETCH_MESSAGES, size=PREFETCH_BYTES)
    def change_prefetch(self, which: int, messages: int, size: int) -> None:
        number = self.pick(which)
        client = self.clients[number]
        client.prefetch_messages, client.prefetch_bytes = messages, size
        self.do(self.master.prefetch_changed(number, messages, size))

    @rule(single=st.booleans(), timeout_ms=st.sampled_from([None, 1, 50]))
    def follow(self, single: bool, timeout_ms: int | None) -> None:
        if timeout_ms is not None and self.timeout_ms is None:
            for client in self.clients.values():
                client.since = dict.fromkeys(client.has)
        self.single, self.timeout_ms = single, timeout_ms
        self.active()
        rules = QueueRules(
            delivery_limit=self.limit,
            single_active_consumer=single,
            consumer_timeout_ms=timeout_ms,
        )
        self.do(self.master.follow(rules))

    @rule(passed_ms=st.sampled_from([0, 1, 10, 60]))
    def tick(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        if self.timeout_ms is not None:
            for number, client in self.clients.items():
                for position in client.has:
                    since = client.since[position]
                    since = client.since[position] = self.now_ms if since is None else since
                    if since + self.timeout_ms <= self.now_ms:
                        self.overdue[number] = set(client.has)
        # All at once, by the counts of now: the op that brings back what the first of them has may
        # be applied before the last one is told that it has ended.
        for has in self.overdue.values():
            self.want_back(has)
        self.do(self.master.tick(self.now_ms))
        assert not self.overdue

    def pick(self, which: int) -> int:
        return sorted(self.clients)[which % len(self.clients)]

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 3))
    def close_consumer(self, which: int) -> None:
        number = self.pick(which)
        self.want_back(self.clients.pop(number).has)
        self.do(self.master.consumer_closed(number))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 3))
    def cancel_consumer(self, which: int) -> None:
        number = self.pick(which)
        self.clients[number].cancelled = True
        self.do(self.master.consumer_cancelled(number))

    @precondition(lambda self: any(client.has for client in self.clients.values()))
    @rule(which=st.integers(0, 3), acked=PLACES, requeued=st.one_of(st.just([]), PLACES))
    def settle(self, which: int, acked: list[int], requeued: list[int]) -> None:
        number = self.pick(which)
        client = self.clients[number]
        has = sorted(client.has)
        removed = sorted({has[place] for place in acked if place < len(has)})
        back = sorted({has[place] for place in requeued if place < len(has)} - set(removed))
        for position in (*removed, *back):
            del client.has[position]
        self.want_removed(number, removed)
        self.want_back(back)
        half = len(removed) // 2
        acks, rejects = ranges_of(removed[:half]), ranges_of(removed[half:])
        back_ranges = ranges_of(back)
        self.do(self.master.settle(number, acked=acks, rejected=rejects, requeued=back_ranges))

    @precondition(lambda self: any(client.has for client in self.clients.values()))
    @rule(which=st.integers(0, 3))
    def settle_all(self, which: int) -> None:
        number = self.pick(which)
        removed = sorted(self.clients[number].has)
        self.clients[number].has.clear()
        self.want_removed(number, removed)
        self.do(self.master.settle(number, acked=ranges_of(removed), requeued=()))

    @rule(which=st.integers(0, 3), position=st.integers(0, 60), twice=st.booleans())
    def settle_others_messages(self, which: int, position: int, twice: bool) -> None:
        """Refused as a whole: the master is as it was."""
        number = self.pick(which) if self.clients else 999
        has = self.clients[number].has if self.clients else {}
        mine = ranges_of(sorted(has)[:2])
        if twice and mine:
            wrong = mine[0]
        elif position not in has:
            wrong = (position, position + 1)
        else:
            return
        before = self.picture()
        with pytest.raises(NotOutstandingError):
            self.master.settle(number, acked=[*mine, wrong], requeued=())
        with pytest.raises(NotOutstandingError):
            self.master.settle(number, acked=mine, requeued=[wrong])
        assert self.picture() == before

    def picture(self) -> object:
        master = self.master
        has = {c.id: ([*c.outstanding], c.outstanding_bytes) for c in master.consumers}
        return [*master.ready], master.ready_bytes, master.unacknowledged_bytes, has

    # --- barriers ---

    @rule()
    def wait_barrier(self) -> None:
        waiter = self.next_id()
        self.waiters[waiter] = self.queue.state.last_number + 1
        self.do(self.master.wait_barrier(waiter))

    @precondition(lambda self: self.waiters)
    @rule()
    def leave_barrier(self) -> None:
        waiter = next(iter(self.waiters))
        del self.waiters[waiter]
        self.master.leave_barrier(waiter)

    # --- without a subscription ---

    def visible(self) -> list[int]:
        visible = (position for position in self.ready if position < self.visible_below)
        return sorted(visible, key=self.turn)

    def prefix(self, messages_max: int, bytes_max: int) -> list[int]:
        """The first visible messages within these limits; at least one, if any is visible."""
        found: list[int] = []
        for position in self.visible()[:messages_max]:
            if position in self.missing:
                break
            bytes_max -= len(self.bodies[position])
            if found and bytes_max < 0:
                break
            found.append(position)
        return found

    @rule(messages_max=LIMIT_MESSAGES, bytes_max=LIMIT_BYTES)
    def take(self, messages_max: int, bytes_max: int) -> None:
        taker = self.next_id()
        expected = self.prefix(messages_max, bytes_max)
        runs, effects = self.master.take(taker, messages_max, bytes_max)
        for message in spread(runs):
            self.look(*message)
        assert [position for position, *_ in spread(runs)] == expected
        self.ready -= set(expected)
        self.want_removed(taker, expected)
        if expected:
            self.takers[taker] = set(expected)
        self.do(effects)

    @rule(messages_max=LIMIT_MESSAGES, bytes_max=LIMIT_BYTES)
    def peek(self, messages_max: int, bytes_max: int) -> None:
        seen = spread(self.master.peek(messages_max, bytes_max))
        for message in seen:
            self.look(*message)
        assert [position for position, *_ in seen] == self.prefix(messages_max, bytes_max)

    @rule()
    def purge(self) -> None:
        taker = self.next_id()
        count, effects = self.master.purge(taker)
        assert count == len(self.ready)
        self.want_removed(taker, sorted(self.ready))
        if self.ready:
            self.takers[taker] = set(self.ready)
            self.gone_wanted.append(max(self.ready) + 1)
        self.ready.clear()
        self.do(effects)

    @rule(end=st.integers(0, 60))
    def acknowledge_below(self, end: int) -> None:
        """As its caller does it: not above what is visible, nor where a consumer has messages."""
        held = {at for client in self.clients.values() for at in client.has if at < end}
        found = set(positions_of(self.master.held_below(end)))
        requeuing = found - held
        assert held <= found
        assert not requeuing & self.ready
        assert requeuing <= set(self.bodies)
        if found or end > self.visible_below:
            return
        taker = self.next_id()
        gone = {at for at in self.ready if at < end}
        if end > self.queue.state.acked_end:
            self.gone_wanted.append(end)
        count, effects = self.master.acknowledge_below(taker, end)
        assert count == len(gone)
        self.want_removed(taker, sorted(gone))
        if gone:
            self.takers[taker] = gone
        self.ready -= gone
        self.do(effects)
        if not self.held:
            assert self.queue.state.acked_end >= end

    # --- the ring ---

    @rule(received=st.integers(0, 6), behind=st.integers(0, 6))
    def watermarks(self, received: int, behind: int) -> None:
        last = self.queue.state.last_number
        self.marks(
            max(self.received, last - received), max(self.persisted, last - received - behind)
        )

    @rule()
    def all_is_safe(self) -> None:
        self.marks(self.queue.state.last_number, self.queue.state.last_number)

    def marks(self, received: int, persisted: int) -> None:
        self.received, self.persisted = received, persisted
        while self.hidden and self.is_safe(Waiting(self.hidden[0][0], self.hidden[0][1])):
            self.visible_below = self.hidden.pop(0)[2]
        self.do(self.master.watermarks(received, persisted))
        self.send_held()

    @rule(is_open=st.booleans())
    def ring_opens_or_refuses(self, is_open: bool) -> None:
        self.ring_open = is_open
        self.send_held()

    @rule()
    def take_over(self) -> None:
        """Another master goes on with the state. It counts all live messages as delivered."""
        state = self.queue.state
        if state.live:
            self.queue.append(Requeue(((state.live.first, state.live.last),)))
            self.redelivered |= set(self.bodies)
        self.begin_mastership()

    # --- invariants ---

    @invariant()
    def same(self) -> None:
        master = self.master
        master.check()
        # Nobody waits in vain: an op is there, or held, or a barrier is on its way.
        if self.waiters and max(self.waiters.values()) > self.queue.state.last_number:
            on_its_way = self.barriers_sent and self.barriers_sent[-1] > self.received
            assert on_its_way or any(isinstance(op, Barrier) for op in self.held)
        assert all(number > self.persisted for number in self.waiters.values())
        assert set(positions_of(self.queue.state.live)) == set(self.bodies)
        assert set(positions_of(master.ready)) == self.ready
        assert set(positions_of(master.damaged)) == self.damaged
        assert master.ready_bytes == sum(len(self.bodies[p]) for p in self.ready - self.missing)
        assert master.visible_below == self.visible_below
        assert master.unacknowledged == sum(len(c.has) for c in self.clients.values())
        assert master.unacknowledged_bytes == sum(
            len(body)
            for client in self.clients.values()
            for position, body in client.has.items()
            if position not in self.missing
        )

    @invariant()
    def one_is_active(self) -> None:
        assert self.master.consumers.active == (self.active() if self.single else None)
        if self.single:
            for number, client in self.clients.items():
                told = None if client.pulls else number == self.active()
                assert client.told_active == told or client.cancelled

    @invariant()
    def everybody_was_told(self) -> None:
        for waiting in self.pending.values():
            assert not any(map(self.is_safe, waiting))
        for number, owner, _ in self.removing:
            assert number > self.persisted or owner in self.takers

    @invariant()
    def no_consumer_with_room_waits_for_a_visible_message(self) -> None:
        visible = self.visible()
        if visible and not self.held and visible[0] not in self.missing:
            body = self.bodies[visible[0]]
            assert not any(self.may_take(number, body) for number in self.clients)

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.patch.undo()

    def drain(self) -> None:
        """Nothing is lost: each live message can be consumed, in order, and is gone then."""
        self.ring_opens_or_refuses(True)
        self.follow(single=False, timeout_ms=None)
        while self.clients:
            self.close_consumer(0)
        alive = set(self.bodies) - {p for wanted in self.gathered.values() for p in wanted}
        # Before any is given out: in order means in order of those that can be seen.
        self.all_is_safe()
        self.open_consumer(7, 10_000)
        number = max(self.clients)
        got: list[int] = []
        for _ in range(2 * len(alive) + 20):
            self.all_is_safe()
            got += sorted(self.clients[number].has, key=self.turn)
            self.settle_all(0)
        self.all_is_safe()
        self.same()
        self.everybody_was_told()
        assert got == sorted(alive, key=self.turn)
        assert not self.bodies
        assert not self.removing
        assert not self.takers
        assert not any(self.pending.values())


def spread(runs: Sequence[Run]) -> list[tuple[int, bytes, bool, int]]:
    return [
        (position, body, run.redelivered, run.delivery_count)
        for run in runs
        for position, body in enumerate(run.block.bodies(), run.first_position)
    ]


class StoreMachine(MasterMachine):
    """The same over the real storage's index."""

    def make_queue(self) -> Queue:
        return StoreQueue()


class PriorityMachine(MasterMachine):
    """Priorities against a plain sort: each delivery is the first of all that are visible."""

    def __init__(self) -> None:
        self.priorities: dict[int, int] = {}
        super().__init__()

    def priority_of(self, position: int) -> int:
        # One for each batch; asked with the batch's first position when it is published.
        if position == self.queue.state.next_position:
            self.priorities[position] = (0, 5, 1, 0, 255)[position % 5]
        return self.priorities[max(first for first in self.priorities if first <= position)]

    def check_turn(self, position: int) -> None:
        visible = (at for at in self.ready if at < self.visible_below)
        assert position == min(visible, key=self.turn), "not the most urgent one"


MasterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
PriorityMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestMaster = MasterMachine.TestCase
TestMasterWithPriorities = PriorityMachine.TestCase
TestMasterOverStore = StoreMachine.TestCase
