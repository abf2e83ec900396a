"""What a queue with a length takes of a publish, and what it makes of the messages that it refuses.

A publisher that is refused publishes again, or gives up. The dead letters of another queue, or of
this one, are sent again until they are taken. So

* they pass the bound for letters that wait here: two queues that refuse, and dead-letter to each
  other, would refuse each other's letters for ever;
* one that finds no room in a queue with `reject-publish-dlx` goes on to that queue's dead-letter
  exchange, and is confirmed: refused, it would come again, and each time one more letter would
  leave for that exchange. Its sequence is noted, so a repeat of it is confirmed as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_gm import Ring
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.queue.block import Block
from ringmq_node.queue.effects import Effect
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import Op, Publish
from ringmq_node.replica.upkeep import FullQueueRefusal


class RefusingMaster(Protocol):
    """A mastership, as this module uses it."""

    rules: QueueRules

    @property
    def queue(self) -> QueueMaster: ...
    @property
    def name(self) -> str: ...
    def ask(self, op: Op) -> int: ...
    def asked(self) -> None: ...
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


@value
class RefusedSender:
    """`letters_of`: the producer, if what it sends are dead letters; else empty."""

    publisher: int
    letters_of: bytes


def refuse(
    mastership: RefusingMaster,
    ring: Ring,
    sender: RefusedSender,
    blocks: Sequence[tuple[Range, Block]],
    *,
    transient: bool,
) -> None:
    """The queue is full for these messages, each block with its sequences. Raises
    `FullQueueRefusal` of those that don't go on as letters, and will not be confirmed."""
    queue = mastership.queue
    told: list[Range] = []
    for sequences, block in blocks:
        queue.keeping.rejected_total += block.count
        letter = _letter(mastership, ring, sender, block, sequences[0], transient=transient)
        if letter is not None:
            publisher = sender.publisher if sender.letters_of else None
            number = mastership.ask(letter)
            mastership.carry_out(queue.refused(number, letter, publisher))
            mastership.asked()
        if letter is None or not sender.letters_of:
            told.append(sequences)
    if told:
        raise FullQueueRefusal(mastership.name, told)


def _letter(
    mastership: RefusingMaster,
    ring: Ring,
    sender: RefusedSender,
    block: Block,
    first_sequence: int,
    *,
    transient: bool,
) -> Publish | None:
    """The op by which these messages go to the queue's dead-letter exchange, if its rules say so:
    they have to be safe until they are there. A publisher's messages have no producer in it: they
    may be sent again, and were not enqueued."""
    rules, queue = mastership.rules, mastership.queue
    if rules.overflow is not Overflow.REJECT_PUBLISH_DLX or rules.dead_letter_exchange is None:
        return None
    refused = queue.departures.refused
    if ring.refusal() is not None or not refused.has_room:
        # A letter was confirmed once: it waits at the queue that sends it.
        refused.dropped_total += 0 if sender.letters_of else block.count
        return None
    return Publish(
        queue.state.next_position,
        block,
        transient,
        sender.letters_of,
        first_sequence if sender.letters_of else 0,
        born_doomed=True,
    )
