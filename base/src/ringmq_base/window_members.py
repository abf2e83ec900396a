"""The consumers that share a window: their streams, one after the other, tell it of messages.

The window counts messages and bytes by stream (`window`). A member is one consumer over all its
streams: it has the sizes of the messages that aren't settled, and passes each change of a share on
to its present stream. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from ringmq_base.ranges import Range
from ringmq_base.window import ChangeShare, Share, SharedWindow


class WindowMembers:
    """All that share one window. 0: no limit."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        self.window = SharedWindow(messages, size_bytes)
        # By the number of the stream that is open now.
        self._streams: dict[int, Callable[[Share], None]] = {}
        self._numbers = count()

    def change(self, messages: int, size_bytes: int) -> None:
        """The limit from now on. Messages above it stay out."""
        self.carry_out(self.window.change(messages, size_bytes))

    @property
    def unsettled(self) -> tuple[int, int]:
        """Of all members: messages, and bytes of bodies."""
        held = self.window.held
        return held.messages, held.size_bytes

    def opened(self, change_share: Callable[[Share], None]) -> int:
        stream = next(self._numbers)
        self._streams[stream] = change_share
        self.carry_out(self.window.opened(stream))
        return stream

    def ended(self, stream: int) -> None:
        del self._streams[stream]
        self.carry_out(self.window.ended(stream))

    def carry_out(self, changes: Sequence[ChangeShare]) -> None:
        for change in changes:
            self._streams[change.stream](change.share)


class WindowMember:
    """One consumer. `change_share` tells its stream's node. While no stream is open, a call does
    nothing: the messages of the one before have gone back."""

    def __init__(self, members: WindowMembers, change_share: Callable[[Share], None]) -> None:
        self._members = members
        self._window = members.window
        self._change_share = change_share
        self._stream: int | None = None
        # Of the messages that are not settled, by position.
        self._sizes: dict[int, int] = {}

    def opened(self) -> None:
        assert self._stream is None
        self._stream = self._members.opened(self._change_share)

    def ended(self) -> None:
        """The stream is over. Idempotent."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._sizes.clear()
            self._members.ended(stream)

    def delivered(self, runs: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Of each run of messages the first position, and the sizes of the bodies."""
        if self._stream is None:
            return
        messages = size_bytes = 0
        for first_position, sizes in runs:
            self._sizes.update(enumerate(sizes, first_position))
            messages += len(sizes)
            size_bytes += sum(sizes)
        self._members.carry_out(self._window.delivered(self._stream, messages, size_bytes))

    def settled(self, ranges: Sequence[Range]) -> None:
        """To be called before the node hears of it."""
        if self._stream is None or not ranges:
            return
        sizes = [
            self._sizes.pop(position)
            for first, last in ranges
            for position in range(first, last + 1)
        ]
        self._members.carry_out(self._window.settled(self._stream, len(sizes), sum(sizes)))

    def answered(self) -> None:
        """The node has answered the oldest change of the share."""
        if self._stream is not None:
            self._members.carry_out(self._window.answered(self._stream))

    def short(self, *, is_short: bool, needs_bytes: int) -> None:
        """Whether the node has a message for which the share is too small, of this size."""
        if self._stream is not None:
            changes = self._window.short(self._stream, is_short=is_short, needs_bytes=needs_bytes)
            self._members.carry_out(changes)
