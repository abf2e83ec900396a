"""Planted bugs of queues, on producers, consumers and catching up: see `ringsim.mutations`.

Each takes the place of one function of the shipped code for as long as a run lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from unittest.mock import patch

from ringmq_node.queue.confirms import Confirms
from ringmq_node.queue.effects import ConfirmSequences, Effect, ReportBarrier, ReportSettled
from ringmq_node.queue.inheritance import Inheritance
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import Remove, Requeue, encode
from ringmq_node.queue.removals import Removals
from ringmq_node.replica import joining, mastership
from ringmq_node.replica.joining import Joining
from ringmq_node.replica.publishers import Publishers
from ringmq_node.replica.replica import Replica
from ringsim.queues.payloads import op_of

Planted = Callable[[], AbstractContextManager[object]]


def opened_answered_dirty() -> AbstractContextManager[object]:
    """A producer is told its last sequence at once, though a failover may take it back."""

    def wait_barrier(self: QueueMaster, waiter: int) -> list[Effect]:
        return [ReportBarrier(waiter)]

    return patch.object(QueueMaster, "wait_barrier", wait_barrier)


def confirmed_when_received() -> AbstractContextManager[object]:
    """Persistent messages are confirmed, and visible, before they are on the disks."""

    def advance(self: Confirms, received: int, persisted: int) -> list[ConfirmSequences]:
        return plain(self, received, received)

    plain = Confirms.advance
    return patch.object(Confirms, "advance", advance)


def acks_settled_when_sent() -> AbstractContextManager[object]:
    """A consumer is told that its acks are safe before they are."""

    def settled(self: Removals, persisted: int) -> list[ReportSettled]:
        return plain(self, persisted + 1_000_000)

    plain = Removals.settled
    return patch.object(Removals, "settled", settled)


def inherited_at_once() -> AbstractContextManager[object]:
    """A new master shows what it has, confirmed or not."""

    def begin(self: Inheritance, last_number: int, next_position: int) -> None:
        self.unsafe.clear()
        self.safe_below = next_position

    def applied(self: Inheritance, number: int, next_position: int) -> None:
        self.safe_below = max(self.safe_below, next_position)

    return patch.multiple(Inheritance, begin=begin, applied=applied)


def not_flagged_as_redelivered() -> AbstractContextManager[object]:
    """A new master doesn't say that messages may have been delivered before."""

    def multicast(self: Replica, op: object) -> int:
        if isinstance(op, Requeue) and self.mastership is None:
            return 0
        return plain(self, op)  # type: ignore[arg-type]

    plain = Replica.multicast
    return patch.object(Replica, "multicast", multicast)


def acks_missing_from_a_catch_up() -> AbstractContextManager[object]:
    """A joiner passes over the acks that it has held back while it fetched the state."""

    def holds_back(self: Joining, number: int, epoch: int, payload: bytes) -> bool:
        if isinstance(op_of(payload), Remove):
            payload = encode(Remove(()))
        return plain(self, number, epoch, payload)

    plain = Joining.holds_back
    return patch.object(Joining, "holds_back", holds_back)


def diverged_end_kept() -> AbstractContextManager[object]:
    """A joiner keeps all bodies that it has, also where its log has gone another way."""

    def keep_below(mine: object, my_end: int, theirs: object, their_end: int) -> int:
        return min(my_end, their_end)

    return patch.object(joining, "keep_below", keep_below)


def state_installed_too_soon() -> AbstractContextManager[object]:
    """A joiner takes a state whose last op the ring may never deliver."""

    async def wait_delivered(self: Joining, state: object) -> None:
        return

    return patch.object(Joining, "_wait_delivered", wait_delivered)


def repeats_enqueued() -> AbstractContextManager[object]:
    """The master doesn't look up what it has of a producer already."""

    def check_sequence(queue: str, producers: object, producer_id: bytes, first: int) -> int:
        return 0

    return patch.object(mastership, "check_sequence", check_sequence)


def connected_producers_forgotten() -> AbstractContextManager[object]:
    """A producer is forgotten though it is connected, or was a moment ago."""

    def may_go_on(self: Publishers, producer_id: bytes) -> bool:
        return False

    return patch.object(Publishers, "may_go_on", may_go_on)


QUEUE_BUGS: Sequence[Planted] = (
    opened_answered_dirty,
    confirmed_when_received,
    acks_settled_when_sent,
    inherited_at_once,
    not_flagged_as_redelivered,
    acks_missing_from_a_catch_up,
    diverged_end_kept,
    state_installed_too_soon,
    repeats_enqueued,
    connected_producers_forgotten,
)
