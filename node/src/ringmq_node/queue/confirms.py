"""When a publish is safe, which publishers are told, and which messages consumers may see.

A publish is *safe* once the ring's watermark has reached the number of its op: `persisted`
(on the disk of every synchronised member) for persistent messages, `received` for transient
ones, and for all messages of a queue that isn't durable. Two things follow, and nothing else
makes them happen: its publisher is confirmed, and its messages become *visible* to consumers.

Why a message isn't visible at once (docs/decisions/0003-visible-when-confirmed.md):

1. The master enqueues a message at position 7, delivers it, and a consumer processes it.
2. The master dies before any mirror has received the op. The publisher has no confirm.
3. The new master knows nothing of the message. The publisher sends it again, and the new
   master enqueues it as any other message, at position 7 or elsewhere.
4. A consumer processes it a second time. Nothing says that it is a repeat.

Why a new master hides the messages that it inherits: some of them may be as unsafe as the
one above, for its predecessor may have died half way through their trip, and the new master
can't tell which. Its first op, the `Requeue` of all live messages, is numbered after theirs.
When the watermark reaches that op, each of them is safe, and every replica flags them as
redelivered (docs/decisions/0004-redelivered-after-take-over.md). That takes one trip around
the ring; until then `hides_inheritance` is true. Messages that were confirmed before, as far as
the predecessor has said so, are visible at once (`inheritance`).

A transient message behind a persistent one can be safe, and its publisher confirmed, before
the message can be seen: consumers see messages in order, so the one in front hides it.

Invariants (`check`):
* the publishes that wait, for a confirm or to become visible, are in order of their numbers;
* no publish waits for a watermark that has been reached;
* each position of the queue is either visible or covered by a hidden publish.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.queue.effects import ConfirmSequences
from ringmq_node.queue.inheritance import Inheritance


@value
class PendingConfirm:
    """`publisher` waits until the op `number` is safe."""

    number: int
    publisher: int
    first_sequence: int
    last_sequence: int


@value
class HiddenPublish:
    """Positions below `next_position` become visible when the op `number` is safe: received,
    where nobody `waits_for_disks`."""

    number: int
    next_position: int
    waits_for_disks: bool


class Confirms:
    """Of one mastership, which begins with the messages of `inheritance`."""

    def __init__(self, inheritance: Inheritance, *, durable: bool = True) -> None:
        """`durable`: whether the queue is."""
        self._durable = durable
        self.received = 0
        self.persisted = 0
        # Positions below this one are visible. It never falls.
        self.visible_below = inheritance.safe_below
        self._inherited_below = inheritance.next_position
        # Some may be persistent, so they all wait for the disks.
        self._hidden = deque(
            HiddenPublish(number, next_position, waits_for_disks=True)
            for number, next_position in inheritance.unsafe
        )
        self._pending_persisted: deque[PendingConfirm] = deque()
        self._pending_received: deque[PendingConfirm] = deque()

    @property
    def hides_inheritance(self) -> bool:
        """Whether messages that were live at the take-over may still be invisible."""
        return self.visible_below < self._inherited_below

    def hide(self, number: int, next_position: int, *, transient: bool) -> bool:
        """The op `number` has enqueued messages, up to `next_position`. Returns whether it is safe
        already."""
        assert not self._hidden or self._hidden[-1].next_position < next_position
        waits_for_disks = self._durable and not transient
        self._hidden.append(HiddenPublish(number, next_position, waits_for_disks))
        return number <= (self.persisted if waits_for_disks else self.received)

    def wait(self, number: int, publisher: int, sequences: Range, *, transient: bool) -> None:
        """`publisher` is to be told of these sequences when the op `number` is safe."""
        waits_for_disks = self._durable and not transient
        pending = self._pending_persisted if waits_for_disks else self._pending_received
        # Only the head of a queue is compared with the watermark: a number out of order
        # would be confirmed late, or not at all.
        assert not pending or pending[-1].number <= number, (pending[-1], number)
        pending.append(PendingConfirm(number, publisher, *sequences))

    def advance(self, received: int, persisted: int) -> list[ConfirmSequences]:
        """The ring's watermarks have moved; returns the confirms that are due."""
        # The ring promises it. If they fell, a publish that is not safe could be confirmed.
        assert received >= self.received, (received, self.received)
        assert persisted >= self.persisted, (persisted, self.persisted)
        self.received = received
        self.persisted = persisted
        hidden = self._hidden
        while hidden and hidden[0].number <= (persisted if hidden[0].waits_for_disks else received):
            self.visible_below = hidden.popleft().next_position
        return self.due()

    def due(self) -> list[ConfirmSequences]:
        """One effect for each publisher some of whose publishes have become safe."""
        found: dict[int, list[Range]] = {}
        for pending, watermark in (
            (self._pending_persisted, self.persisted),
            (self._pending_received, self.received),
        ):
            while pending and pending[0].number <= watermark:
                entry = pending.popleft()
                ranges = found.setdefault(entry.publisher, [])
                if ranges and ranges[-1][1] + 1 == entry.first_sequence:
                    ranges[-1] = (ranges[-1][0], entry.last_sequence)
                else:
                    ranges.append((entry.first_sequence, entry.last_sequence))
        return [ConfirmSequences(publisher, tuple(ranges)) for publisher, ranges in found.items()]

    def check(self, next_position: int) -> None:
        """`next_position`: of the queue's state."""
        hidden = [(entry.number, entry.next_position) for entry in self._hidden]
        assert all(a < b and c < d for (a, c), (b, d) in pairwise(hidden)), hidden
        covered = hidden[-1][1] if hidden else self.visible_below
        assert covered == next_position, (covered, next_position)
        if self._hidden:
            head = self._hidden[0]
            assert head.next_position > self.visible_below
            assert head.number > (self.persisted if head.waits_for_disks else self.received)
        for pending, watermark in (
            (self._pending_persisted, self.persisted),
            (self._pending_received, self.received),
        ):
            assert all(a.number <= b.number for a, b in pairwise(pending))
            assert not pending or pending[0].number > watermark
