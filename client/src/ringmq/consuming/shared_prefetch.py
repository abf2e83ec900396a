"""A prefetch that several consumers share, of any queues: the shell of `window`.

    shared = ringmq.SharedPrefetch(100)
    async with (
        client.consumer("orders", shared_prefetch=shared) as orders,
        client.consumer("returns", shared_prefetch=shared) as returns,
    ):
        ...

Each consumer's own prefetch holds beside it. It is what RabbitMQ's `basic.qos(global=true)` is to
the consumers of a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from ringmq.errors import BadRequestError
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.ranges import Range
from ringmq_base.window import BYTES_MAX, MESSAGES_MAX, ChangeShare, Share, SharedWindow


class SharedPrefetch:
    """For consumers of one event loop. 0: no limit. A message that is larger than `size_bytes`
    passes when nothing else is unsettled."""

    def __init__(self, messages: int = 0, size_bytes: int = 0) -> None:
        _check(messages, size_bytes)
        self._window = SharedWindow(messages, size_bytes)
        self._streams: dict[int, Callable[[Share], None]] = {}
        self._numbers = count()

    async def change(self, messages: int = 0, size_bytes: int = 0) -> None:
        """The limit from now on. If it is lower than what is unsettled, nothing comes until less
        is."""
        _check(messages, size_bytes)
        self._carry_out(self._window.change(messages, size_bytes))

    @property
    def limit(self) -> tuple[int, int]:
        """Messages, bytes; 0: no limit."""
        limit = self._window.limit
        return (
            0 if limit.messages == MESSAGES_MAX else limit.messages,
            0 if limit.size_bytes == BYTES_MAX else limit.size_bytes,
        )

    @property
    def unsettled(self) -> tuple[int, int]:
        """What has come and isn't settled, of all these consumers: messages, bytes of bodies."""
        held = self._window.held
        return held.messages, held.size_bytes

    def member(self, change_share: Callable[[Share], None]) -> WindowMember:
        """Of one consumer. `change_share` tells its stream's node."""
        return WindowMember(self, change_share)

    # --- events of the members ---

    def _opened(self, change_share: Callable[[Share], None]) -> int:
        stream = next(self._numbers)
        self._streams[stream] = change_share
        self._carry_out(self._window.opened(stream))
        return stream

    def _ended(self, stream: int) -> None:
        del self._streams[stream]
        self._carry_out(self._window.ended(stream))

    def _carry_out(self, changes: list[ChangeShare]) -> None:
        for change in changes:
            self._streams[change.stream](change.share)


class WindowMember:
    """What one consumer's streams, one after the other, tell the window."""

    def __init__(self, shared: SharedPrefetch, change_share: Callable[[Share], None]) -> None:
        self._shared = shared
        self._window = shared._window
        self._change_share = change_share
        self._stream: int | None = None
        # Of the messages that are not settled, by position.
        self._sizes: dict[int, int] = {}

    def opened(self) -> None:
        assert self._stream is None
        self._stream = self._shared._opened(self._change_share)

    def ended(self) -> None:
        """The stream is over. Idempotent."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._sizes.clear()
            self._shared._ended(stream)

    def delivered(self, deliveries: Sequence[broker.Delivery]) -> None:
        if self._stream is None:
            return
        messages = size_bytes = 0
        for delivery in deliveries:
            sizes = list(map(len, delivery.bodies))
            self._sizes.update(enumerate(sizes, delivery.first_position))
            messages += len(sizes)
            size_bytes += sum(sizes)
        self._shared._carry_out(self._window.delivered(self._stream, messages, size_bytes))

    def settled(self, ranges: Sequence[Range]) -> None:
        """These are about to go out as settled."""
        if self._stream is None or not ranges:
            return
        sizes = [
            self._sizes.pop(position)
            for first, last in ranges
            for position in range(first, last + 1)
        ]
        self._shared._carry_out(self._window.settled(self._stream, len(sizes), sum(sizes)))

    def answered(self) -> None:
        if self._stream is not None:
            self._shared._carry_out(self._window.answered(self._stream))

    def short(self, told: broker.ShareShort) -> None:
        if self._stream is not None:
            changes = self._window.short(self._stream, is_short=told.short, needs_bytes=told.bytes)
            self._shared._carry_out(changes)


def _check(messages: int, size_bytes: int) -> None:
    if not (0 <= messages <= MESSAGES_MAX and 0 <= size_bytes <= BYTES_MAX):
        raise BadRequestError(
            f"a shared prefetch of {messages} messages and {size_bytes} bytes: both are 0 (no "
            f"limit) or more, at most {MESSAGES_MAX} messages"
        )
