"""One window over several streams: how much of it each of them may have. Pure.

Consumers of one program share a limit on unsettled messages, and each queue's master is on a node
of its own. So the program, which has all the streams, decides: each stream has a *share*, which its
master never exceeds, and the shares, with the deliveries already out, never exceed the window. A
master says when a message is there for which the share is too small (*short*), and when it has room
and no message left (not short).

A share is a level, not an amount that is used up. A stream that breaks takes nothing along: its
share and its messages count no more, and the next stream begins with nothing. A share that is
lowered counts until the master has answered, as deliveries may be on their way.

Short streams have equal shares, and the room that the others don't use. Where an equal share holds
no message, the first in line has all the free room, and goes to the end of the line after its next
delivery.

Invariant (`check`): the messages on the streams, and those that their masters may yet deliver, are
within the window. They may be more after the window was lowered, or for one message that is larger
than the window and alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ringmq_base.values import value

MESSAGES_MAX = 2**32 - 1
BYTES_MAX = 2**63 - 1


@value
class Share:
    """The most messages and bytes that may be unsettled on a stream, or on all."""

    messages: int = 0
    size_bytes: int = 0

    def within(self, other: Share) -> Share:
        return Share(min(self.messages, other.messages), min(self.size_bytes, other.size_bytes))

    def joined(self, other: Share) -> Share:
        return Share(max(self.messages, other.messages), max(self.size_bytes, other.size_bytes))

    def plus(self, other: Share) -> Share:
        return Share(self.messages + other.messages, self.size_bytes + other.size_bytes)

    def without(self, other: Share) -> Share:
        """No less than nothing."""
        return Share(
            max(0, self.messages - other.messages), max(0, self.size_bytes - other.size_bytes)
        )

    def fits(self, other: Share) -> bool:
        return self.messages <= other.messages and self.size_bytes <= other.size_bytes


NOTHING = Share()


@value
class ChangeShare:
    """Tell the master of this stream's queue its share from now on; it answers."""

    stream: int
    share: Share


@dataclass(slots=True)
class _Stream:
    id: int
    # In force at the master, as far as is known; then those that it has been told since.
    shares: deque[Share] = field(default_factory=lambda: deque([NOTHING]))
    # Delivered on the stream and not settled.
    held_messages: int = 0
    held_bytes: int = 0
    # The master has a message that is too much for the share, of this size.
    is_short: bool = False
    needs_bytes: int = 0

    @property
    def share(self) -> Share:
        return self.shares[-1]

    @property
    def held(self) -> Share:
        return Share(self.held_messages, self.held_bytes)

    @property
    def claim(self) -> Share:
        """The most that its master may have given it by now, or may yet give."""
        claim = self.held
        for share in self.shares:
            claim = claim.joined(share)
        return claim


class SharedWindow:
    """Streams by the caller's numbers. Each event returns whose share changes."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        """0: no limit."""
        self._limit = _limit(messages, size_bytes)
        # In line: who has waited longest comes first.
        self._streams: dict[int, _Stream] = {}
        # An equal share of some stream's holds no message: they take turns.
        self._takes_turns = False
        # Somebody that is short gets more when others settle, or answer.
        self._is_lacking = False
        #: More than the limit may be out since it was lowered.
        self.is_above = False

    @property
    def limit(self) -> Share:
        return self._limit

    @property
    def held(self) -> Share:
        """Unsettled on all streams."""
        return _sum(each.held for each in self._streams.values())

    def change(self, messages: int, size_bytes: int) -> list[ChangeShare]:
        """The limit from now on. Deliveries above it stay out, and nothing new comes until fewer
        are out."""
        limit = _limit(messages, size_bytes)
        self.is_above |= not self._limit.fits(limit)
        self._limit = limit
        return self._deal()

    def opened(self, stream: int) -> list[ChangeShare]:
        """Its master has it, with a share of nothing."""
        assert stream not in self._streams, stream
        self._streams[stream] = _Stream(stream)
        return self._deal()

    def ended(self, stream: int) -> list[ChangeShare]:
        """It has broken, or is closed: its messages go back to their queue."""
        return self._deal() if self._streams.pop(stream, None) is not None else []

    def answered(self, stream: int) -> list[ChangeShare]:
        """The oldest change that it has not answered holds, behind all that came before."""
        shares = self._streams[stream].shares
        assert len(shares) > 1, "an answer to no change"
        shares.popleft()
        return self._deal() if self._is_lacking else []

    def delivered(self, stream: int, messages: int, size_bytes: int) -> list[ChangeShare]:
        one = self._streams[stream]
        one.held_messages += messages
        one.held_bytes += size_bytes
        if not self._takes_turns:
            return []
        self._streams[stream] = self._streams.pop(stream)
        return self._deal()

    def settled(self, stream: int, messages: int, size_bytes: int) -> list[ChangeShare]:
        """The master may hear of this before or after the changes that this call returns."""
        one = self._streams[stream]
        one.held_messages -= messages
        one.held_bytes -= size_bytes
        assert min(one.held_messages, one.held_bytes) >= 0, one
        return self._deal() if self._is_lacking or self.is_above else []

    def short(self, stream: int, *, is_short: bool, needs_bytes: int = 0) -> list[ChangeShare]:
        """Whether its master has a message for it, of this size, and too small a share."""
        one = self._streams[stream]
        one.is_short, one.needs_bytes = is_short, needs_bytes
        return self._deal()

    # --- who has how much ---

    def _deal(self) -> list[ChangeShare]:
        line = sorted(self._streams.values(), key=lambda each: not each.is_short)
        targets = self._targets(line)
        claimed = _sum(each.claim for each in line)
        changes: list[ChangeShare] = []
        waits = False
        for each in line:
            target, claim = targets[each.id], each.claim
            share = each.share.within(target)
            if not waits:
                # One that is larger than the window has a target that nobody else is beside.
                room = self._limit.without(claimed.without(claim)).joined(
                    target if target.size_bytes > self._limit.size_bytes else NOTHING
                )
                share = share.joined(target.within(room))
            if not share.messages or not share.size_bytes:
                share = NOTHING
            if share != each.share:
                each.shares.append(share)
                changes.append(ChangeShare(each.id, share))
                claimed = claimed.without(claim).plus(each.claim)
            # Whoever is behind it in line doesn't get what it waits for.
            waits |= each.is_short and share != target
        self.is_above &= not claimed.fits(self._limit)
        is_short = bool(line) and line[0].is_short
        self._is_lacking = is_short and (waits or claimed != _sum(each.share for each in line))
        return changes

    def _targets(self, line: Sequence[_Stream]) -> dict[int, Share]:
        """What each would have if all others had no more than theirs; those that are short come
        first."""
        short = [each for each in line if each.is_short]
        others = line[len(short) :]
        self._takes_turns = False
        if not short:
            equal = self._equal(line, NOTHING)
            if _sum(each.share for each in line).fits(self._limit):
                return {each.id: each.share.joined(equal[each.id]) for each in line}
            return equal
        targets = dict.fromkeys((each.id for each in others), NOTHING)
        equal = self._equal(short, _sum(each.held for each in others))
        if all(
            equal[each.id].messages and equal[each.id].size_bytes >= max(1, each.needs_bytes)
            for each in short
        ):
            return targets | equal
        self._takes_turns = True
        # Whoever has more than an equal share waits until the others have had theirs.
        equal_part = self._limit.messages // len(short)
        first = next((each for each in short if each.held_messages <= equal_part), short[0])
        targets |= dict.fromkeys((each.id for each in short), NOTHING)
        if first.needs_bytes <= self._limit.size_bytes:
            held = _sum(each.held for each in line if each is not first)
            targets[first.id] = self._limit.without(held)
        elif not first.held_messages and not any(
            each.claim.messages for each in line if each is not first
        ):
            targets[first.id] = Share(1, first.needs_bytes)
        return targets

    def _equal(self, streams: Sequence[_Stream], held: Share) -> dict[int, Share]:
        """The window without what others hold, in equal parts; whoever holds more keeps it."""
        messages, left = _level(
            self._limit.messages - held.messages, [each.held_messages for each in streams]
        )
        size_bytes, _ = _level(
            self._limit.size_bytes - held.size_bytes, [each.held_bytes for each in streams]
        )
        parts: dict[int, Share] = {}
        for each in streams:
            one_more = left > 0 and each.held_messages <= messages
            left -= one_more
            parts[each.id] = Share(messages + one_more, size_bytes)
        return parts

    def check(self) -> None:
        claims = [each.claim for each in self._streams.values() if each.claim != NOTHING]
        assert _sum(claims).fits(self._limit) or len(claims) <= 1 or self.is_above, claims
        assert all(each.shares for each in self._streams.values())


def _limit(messages: int, size_bytes: int) -> Share:
    return Share(messages or MESSAGES_MAX, size_bytes or BYTES_MAX)


def _sum(shares: Iterable[Share]) -> Share:
    messages = size_bytes = 0
    for share in shares:
        messages += share.messages
        size_bytes += share.size_bytes
    return Share(messages, size_bytes)


def _level(room: int, held: Iterable[int]) -> tuple[int, int]:
    """The equal part of `room` of those that hold no more than it; and what is left over."""
    rising = sorted(held)
    while rising and rising[-1] * len(rising) > room:
        room -= rising.pop()
    if not rising or room <= 0:
        return 0, 0
    return divmod(room, len(rising))
