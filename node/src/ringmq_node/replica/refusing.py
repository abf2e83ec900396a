"""What a queue with a length takes of a publish, and what it makes of the messages that it refuses.

A publisher that is refused publishes again, or gives up. The dead letters of another queue, or of
this one, are sent again until they are taken. So they pass the bound for letters that wait here:
two queues that refuse, and dead-letter to each other, would refuse each other's letters for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_gm import Ring
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.queue.block import Block
from ringmq_node.queue.effects import Effect
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import Publish


class RefusingMaster(Protocol):
    """A mastership, as this module uses it."""

    rules: QueueRules

    @property
    def queue(self) -> QueueMaster: ...
    def carry_out(self, effects: list[Effect]) -> None: ...


def fitting(
    mastership: RefusingMaster, bodies: Sequence[bytes], start: int, count: int, *, of_letters: bool
) -> int:
    """How many of `count` bodies the queue takes: it has its length, and its letters theirs."""
    queue = mastership.queue
    if not queue.keeping.limits.rejects:
        return count
    if not of_letters and not queue.departures.backlog.has_room:
        return 0
    if queue.keeping.is_overdue:
        # They count no more.
        mastership.carry_out(queue.expire())
    return queue.keeping.fitting(bodies, start, count)


def letter_of_refused(
    mastership: RefusingMaster, ring: Ring, block: Block, *, transient: bool
) -> Publish | None:
    """The op by which messages that the queue is full for go to its dead-letter exchange, if its
    rules say so: they have to be safe until they are there. Without a producer: the publisher may
    send them again, and they were not enqueued."""
    queue, rules = mastership.queue, mastership.rules
    if rules.overflow is not Overflow.REJECT_PUBLISH_DLX or rules.dead_letter_exchange is None:
        return None
    letters = queue.departures.refused
    if ring.refusal() is not None or not letters.has_room:
        letters.dropped_total += block.count
        return None
    return Publish(queue.state.next_position, block, transient, born_doomed=True)
