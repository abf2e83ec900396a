"""Messages that have a sequence: those that this stream has been given, then those it has not.

A *flight* is a batch with sequences: slices that go, or went, in one request. `sent` holds the
flights that the present stream has been given, `unsent` those that it has still to be given.
Everything in `sent` is before everything in `unsent`, and when the stream ends all of it is
`unsent` again, in the old order and under the old sequences.

Invariants (`check`): sequences grow over `sent` and then `unsent`; the counts are those of the
flights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Generic

from ringmq.errors import RingMQError
from ringmq.publishing.tickets import H, P, Slice


class Flight(Generic[H, P]):
    """Messages `first..last`, which go in one request; their attributes are the same."""

    __slots__ = ("attributes", "first", "last", "may_be_enqueued", "size_bytes", "slices")

    def __init__(self, first: int, slices: list[Slice[H, P]], size_bytes: int) -> None:
        self.first = first
        self.last = first + sum(part.stop - part.start for part in slices) - 1
        self.slices = slices
        self.size_bytes = size_bytes
        self.attributes = slices[0].ticket.attributes
        #: Handed out for sending, and not refused since.
        self.may_be_enqueued = False

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def has_ended_tickets(self) -> bool:
        return any(part.ticket.remaining <= 0 for part in self.slices)

    def split(self, count: int) -> tuple[Flight[H, P], Flight[H, P]]:
        """The first `count` messages, and the others."""
        left: list[Slice[H, P]] = []
        right: list[Slice[H, P]] = []
        room = count
        for part in self.slices:
            if room >= part.count:
                left.append(part)
            elif room > 0:
                head, tail = part.split(room)
                left.append(head)
                right.append(tail)
            else:
                right.append(part)
            room -= min(room, part.count)
        left_bytes = sum(part.size_bytes for part in left)
        halves = (
            Flight(self.first, left, left_bytes),
            Flight(self.first + count, right, self.size_bytes - left_bytes),
        )
        for half in halves:
            half.may_be_enqueued = self.may_be_enqueued
        return halves


class Flights(Generic[H, P]):
    """All flights of one producer id, in the order of their sequences."""

    __slots__ = ("_returned", "_sent", "_unsent", "messages", "size_bytes")

    def __init__(self) -> None:
        # What the present stream has said of messages whose confirm is due.
        self._returned: list[tuple[int, int, RingMQError]] = []
        self._sent: deque[Flight[H, P]] = deque()
        self._unsent: deque[Flight[H, P]] = deque()
        self.messages = 0
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._sent or self._unsent)

    def __iter__(self) -> Iterator[Flight[H, P]]:
        return chain(self._sent, self._unsent)

    @property
    def has_sent(self) -> bool:
        return bool(self._sent)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_returned(self) -> bool:
        return bool(self._returned)

    def start(self, flight: Flight[H, P]) -> None:
        """A new flight, which goes out now. There is nothing unsent that it would overtake."""
        assert not self._unsent
        self.messages += flight.last - flight.first + 1
        self.size_bytes += flight.size_bytes
        flight.may_be_enqueued = True
        self._sent.append(flight)

    def resend(self) -> Flight[H, P]:
        """The first unsent flight, which goes out now."""
        flight = self._unsent.popleft()
        flight.may_be_enqueued = True
        self._sent.append(flight)
        return flight

    def stream_ended(self) -> None:
        # `may_be_enqueued` stays: only the next stream's `opened` tells which of them arrived.
        self._sent.extend(self._unsent)
        self._unsent, self._sent = self._sent, deque()
        # The next node routes them anew, and may know of a queue.
        self._returned.clear()

    def returned(self, first: int, last: int, error: RingMQError) -> None:
        """It counts with the confirm, on the same stream."""
        self._returned.append((first, last, error))

    def confirm_returned(self, first: int, last: int) -> None:
        """Tells the tickets what was said of `first..last`."""
        rest: list[tuple[int, int, RingMQError]] = []
        for low, high, error in self._returned:
            for part, start, end in self.parts_of(max(low, first), min(high, last)):
                part.ticket.returned(start, end, error)
            ends = ((low, min(high, first - 1)), (max(low, last + 1), high))
            rest += [(one, other, error) for one, other in ends if one <= other]
        self._returned = rest

    def take(self, first: int, last: int) -> list[Flight[H, P]]:
        """Takes the messages `first..last` out, splitting flights where needed."""
        taken: list[Flight[H, P]] = []
        sent, unsent = self._sent, self._unsent
        # Nearly always these are the oldest flights, whole.
        while sent and first <= sent[0].first and sent[0].last <= last:
            taken.append(sent.popleft())
        # Else the middle of the order. A transient message may be confirmed before older persistent
        # ones; and the node may confirm messages that it has from the stream before, which
        # this stream has still to be given.
        if (sent and sent[0].first <= last) or (unsent and unsent[0].first <= last):
            self._sent, of_sent = _cut_out(sent, first, last)
            self._unsent, of_unsent = _cut_out(unsent, first, last)
            taken += of_sent
            taken += of_unsent
        for flight in taken:
            self.messages -= flight.last - flight.first + 1
            self.size_bytes -= flight.size_bytes
        return taken

    def isolate(self, first: int, last: int) -> bool:
        """Puts each slice of the sent messages `first..last` into a flight of its own, under its
        sequences, and marks it `alone`. False if there are no two of them: nothing has changed."""
        kept, together = _cut_out(self._sent, first, last)
        if sum(len(flight.slices) for flight in together) < 2:
            return False
        self._sent = deque(flight for flight in kept if flight.last < first)
        for flight in together:
            at = flight.first
            for part in flight.slices:
                part.alone = True
                self._sent.append(_flight_of(at, [part], like=flight))
                at += part.count
        self._sent.extend(flight for flight in kept if flight.first > last)
        return True

    def cut_to(self, *, messages_max: int, bytes_max: int) -> None:
        """Halves unsent flights until each is within the bounds, or is one message."""
        fitting: deque[Flight[H, P]] = deque()
        while self._unsent:
            flight = self._unsent.popleft()
            over = flight.count > messages_max or flight.size_bytes > bytes_max
            if over and flight.count > 1:
                self._unsent.extendleft(reversed(flight.split(flight.count // 2)))
            else:
                fitting.append(flight)
        self._unsent = fitting

    def follow(self, last_sequence: int, next_sequence: int) -> bool:
        """Whether the unsent flights, sent as they are, are exactly the messages between
        `last_sequence` and `next_sequence`."""
        expected = last_sequence + 1
        for flight in self._unsent:
            if flight.last < expected:
                continue
            if flight.first > expected:
                return False
            # The callers of ended tickets were told that these messages failed, and the node
            # shows that they never arrived: to send them now would make it untrue.
            if flight.has_ended_tickets:
                return False
            expected = flight.last + 1
        return expected == next_sequence

    def missing_after(self, last_sequence: int) -> None:
        """A newly opened stream has shown that the queue has no message after this one."""
        for flight in self._unsent:
            if flight.first > last_sequence:
                flight.may_be_enqueued = False

    def refused_from(self, first: int) -> None:
        """The node has refused `first`, and so has enqueued no message sent after it either."""
        for flight in self._sent:
            if flight.first >= first:
                flight.may_be_enqueued = False

    def drop_ended(self) -> None:
        """Takes out what nobody waits for any more. Its sequences are left as holes."""
        self._sent, self._unsent = _without_ended(self._sent), _without_ended(self._unsent)
        self.messages = sum(flight.count for flight in self)
        self.size_bytes = sum(flight.size_bytes for flight in self)

    def parts_of(self, first: int, last: int) -> Iterator[tuple[Slice[H, P], int, int]]:
        """The slices that have some of these sequences, and which of their tickets' bodies."""
        for flight in self:
            at = flight.first
            for part in flight.slices:
                low, high = max(at, first), min(at + part.count - 1, last)
                if low <= high:
                    yield part, part.start + low - at, part.start + high - at
                at += part.count

    def clear(self) -> None:
        self._returned.clear()
        self._sent.clear()
        self._unsent.clear()
        self.messages = self.size_bytes = 0

    def check(self) -> None:
        assert all(a.last < b.first for a, b in pairwise(self))
        assert self.messages == sum(flight.count for flight in self)
        assert self.size_bytes == sum(flight.size_bytes for flight in self)
        for flight in self:
            assert flight.count == sum(part.count for part in flight.slices)
            assert len(flight.slices) == 1 or not any(part.alone for part in flight.slices)
            assert flight.size_bytes == sum(sum(part.sizes(part.stop)) for part in flight.slices)


def _without_ended(flights: deque[Flight[H, P]]) -> deque[Flight[H, P]]:
    if not any(flight.has_ended_tickets for flight in flights):
        return flights
    kept: deque[Flight[H, P]] = deque()
    for flight in flights:
        at = flight.first
        follows = False
        for part in flight.slices:
            if part.ticket.remaining <= 0:
                follows = False
            elif follows:
                slices = [*kept[-1].slices, part]
                kept[-1] = _flight_of(kept[-1].first, slices, like=flight)
            else:
                kept.append(_flight_of(at, [part], like=flight))
                follows = True
            at += part.count
    return kept


def _flight_of(first: int, slices: list[Slice[H, P]], *, like: Flight[H, P]) -> Flight[H, P]:
    flight = Flight(first, slices, sum(part.size_bytes for part in slices))
    flight.may_be_enqueued = like.may_be_enqueued
    return flight


def _cut_out(
    flights: deque[Flight[H, P]], first: int, last: int
) -> tuple[deque[Flight[H, P]], list[Flight[H, P]]]:
    """The flights without `first..last`, and the flights of `first..last`."""
    kept: deque[Flight[H, P]] = deque()
    taken: list[Flight[H, P]] = []
    for flight in flights:
        if flight.last < first or flight.first > last:
            kept.append(flight)
            continue
        middle = flight
        if middle.first < first:
            head, middle = middle.split(first - middle.first)
            kept.append(head)
        if middle.last > last:
            middle, tail = middle.split(last - middle.first + 1)
            kept.append(tail)
        taken.append(middle)
    return kept, taken
