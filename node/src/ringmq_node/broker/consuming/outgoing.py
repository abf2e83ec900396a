"""The words that a subscription has for its queue's master, in order. Pure.

Everything is about the stream that is open now. Notes of settlements and shares die with
that stream: its messages go back to their queue, and the next one begins with none. A prefetch
holds for the next stream as well; pulls without an answer are asked again there.

Order: a lower share goes before settlements, or it would come too late for the room that these
make. A pull goes behind the messages that its caller has put back, and pulls go one after the
other: so no pull is given messages behind those. The cancel behind the last settlements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from ringmq_base.limits import SETTLE_RANGES_MAX
from ringmq_base.ranges import Range, RangeSet
from ringmq_base.values import value
from ringmq_base.window import Share


@value
class SettleWord:
    acked: Sequence[Range]
    rejected: Sequence[Range]
    requeued: Sequence[Range]


@value
class PrefetchWord:
    messages: int
    size_bytes: int


@value
class ShareWord:
    share: Share


@value
class PullWord:
    messages_max: int
    bytes_max: int


@value
class CancelWord:
    pass


Word: TypeAlias = SettleWord | PrefetchWord | ShareWord | PullWord | CancelWord


class OutgoingWords:
    """Of one subscription; `next` is the word to say now, if there is one."""

    def __init__(self) -> None:
        self._shares: deque[Share] = deque()
        self._acked = RangeSet()
        self._rejected = RangeSet()
        self._requeued = RangeSet()
        self._prefetch: PrefetchWord | None = None
        # The first one has gone out, if `_pull_is_out`.
        self._pulls: deque[PullWord] = deque()
        self._pull_is_out = False
        self._cancels = False
        self._cancel_is_out = False
        # Settled on this stream, and not reported as safe yet.
        self._awaited = RangeSet()

    @property
    def is_awaiting(self) -> bool:
        """Whether the master owes an answer."""
        return self._pull_is_out or bool(self._awaited)

    @property
    def has_settles(self) -> bool:
        """Whether the master hasn't heard of all that was settled."""
        return bool(self._acked or self._rejected or self._requeued)

    def stream_began(self, pulls: Sequence[PullWord]) -> None:
        """With nothing of the one before it, but for `pulls`, which have no answer yet."""
        self._shares.clear()
        for each in (self._acked, self._rejected, self._requeued, self._awaited):
            each.clear()
        self._prefetch = None
        self._pulls = deque(pulls)
        self._pull_is_out = False
        self._cancel_is_out = False

    # --- words that are noted ---

    def settle(
        self, acked: Sequence[Range], rejected: Sequence[Range], requeued: Sequence[Range]
    ) -> None:
        self._acked.update(acked)
        self._rejected.update(rejected)
        self._requeued.update(requeued)

    def change_prefetch(self, messages: int, size_bytes: int) -> None:
        self._prefetch = PrefetchWord(messages, size_bytes)

    def change_share(self, share: Share) -> None:
        self._shares.append(share)

    def pull(self, pull: PullWord) -> None:
        self._pulls.append(pull)

    def drop_pull(self, index: int) -> bool:
        """Nobody waits for it any more. Whether it had not gone out: then it never does."""
        if not index and self._pull_is_out:
            return False
        del self._pulls[index]
        return True

    def cancel(self) -> None:
        self._cancels = True

    def next(self) -> Word | None:
        if self._shares:
            return ShareWord(self._shares.popleft())
        if self.has_settles:
            return self._next_settle()
        if self._prefetch is not None:
            prefetch, self._prefetch = self._prefetch, None
            return prefetch
        if self._pulls and not self._pull_is_out and not self._cancels:
            self._pull_is_out = True
            return self._pulls[0]
        if self._cancels and not self._cancel_is_out:
            self._cancel_is_out = True
            return CancelWord()
        return None

    def _next_settle(self) -> SettleWord:
        left = SETTLE_RANGES_MAX
        parts: list[list[Range]] = []
        for each in (self._acked, self._rejected, self._requeued):
            parts.append(each.take_first(left) if left else [])
            left -= len(parts[-1])
        # Messages that go back are not reported.
        self._awaited.update(parts[0])
        self._awaited.update(parts[1])
        return SettleWord(*parts)

    # --- answers of the master ---

    def settled(self, positions: Sequence[Range]) -> None:
        self._awaited.subtract(positions)

    def pulled(self) -> None:
        """The oldest pull is answered."""
        assert self._pull_is_out, "an answer to no pull"
        self._pull_is_out = False
        self._pulls.popleft()
