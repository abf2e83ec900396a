"""The positions that a consumer holds, and the acks that wait to be written. Pure.

A position is *held* from the moment it is handed to the user until it is acked or nacked. It is
then *noted* under its verb until the writer takes all notes as one request, with neighbours
merged into ranges. If the user wants to wait, the ack is *awaited* from then on, until the node
has reported all its positions as settled.

All of this belongs to one stream. When it ends, the node puts every unsettled position back and
delivers it again, so nothing here may outlive the stream: an ack that was noted on the old one
would settle a delivery that the user hasn't seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ringmq_base.limits import SETTLE_RANGES_MAX
from ringmq_base.ranges import Range, RangeSet


class Verb(Enum):
    ACK = "ack"
    REQUEUE = "requeue"
    DISCARD = "discard"


class AwaitedSettle:
    """Positions that the node has still to report as settled."""

    __slots__ = ("left",)

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.left = RangeSet(ranges)


class Settling:
    """The held, noted and awaited positions of one stream after the other."""

    def __init__(self) -> None:
        self._held = RangeSet()
        self._noted: dict[Verb, RangeSet] = {verb: RangeSet() for verb in Verb}
        self._awaited: list[AwaitedSettle] = []

    @property
    def held_messages(self) -> int:
        return len(self._held)

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for a settle to be reported."""
        return bool(self._awaited)

    def hand_out(self, ranges: Sequence[Range]) -> None:
        for first, last in ranges:
            self._held.add(first, last)

    def unknown(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges that hold a position which was settled before, or never handed out."""
        return [
            (first, last)
            for first, last in ranges
            if not 0 <= first <= last or not self._held.contains_all(first, last)
        ]

    def note(self, verb: Verb, ranges: Sequence[Range]) -> None:
        """All of `ranges` are held, and go out with the next request."""
        # No longer held from now on, and not only when the note is written: a second ack of the
        # same message has to fail here, or the node would end the stream for it.
        noted = self._noted[verb]
        for first, last in ranges:
            removed = self._held.remove(first, last)
            assert removed == last - first + 1, (first, last)
            noted.add(first, last)

    def take_noted(self) -> dict[Verb, list[Range]]:
        """The notes for the next request, by verb, as many as it may have; empty if there are
        none."""
        taken: dict[Verb, list[Range]] = {}
        left = SETTLE_RANGES_MAX
        for verb, ranges in self._noted.items():
            if ranges and left:
                taken[verb] = ranges.take_first(left)
                left -= len(taken[verb])
        return taken

    def wait(self, ranges: Sequence[Range]) -> AwaitedSettle:
        awaited = AwaitedSettle(ranges)
        self._awaited.append(awaited)
        return awaited

    def forget(self, awaited: AwaitedSettle) -> None:
        """Nobody waits for it any more."""
        if awaited in self._awaited:
            self._awaited.remove(awaited)

    def settled(self, ranges: Sequence[Range]) -> list[AwaitedSettle]:
        """The node has reported `ranges`; returns the waits that this ends."""
        for awaited in self._awaited:
            awaited.left.subtract(ranges)
        done = [awaited for awaited in self._awaited if not awaited.left]
        if done:
            self._awaited = [awaited for awaited in self._awaited if awaited.left]
        return done

    def stream_ended(self) -> list[AwaitedSettle]:
        """Drops everything; returns the waits that will never be answered."""
        self._held.clear()
        for ranges in self._noted.values():
            ranges.clear()
        unanswered, self._awaited = self._awaited, []
        return unanswered
