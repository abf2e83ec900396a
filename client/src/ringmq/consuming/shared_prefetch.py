"""A prefetch that several consumers share, of any queues.

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

from collections.abc import Callable

from ringmq.calls.arguments import checked, checked_calls
from ringmq.errors import BadRequestError
from ringmq_base.window import BYTES_MAX, MESSAGES_MAX, Share
from ringmq_base.window_members import WindowMember, WindowMembers


@checked_calls
class SharedPrefetch:
    """For consumers of one event loop. 0: no limit. A message that is larger than `size_bytes`
    passes when nothing else is unsettled."""

    @checked
    def __init__(self, messages: int = 0, size_bytes: int = 0) -> None:
        _check(messages, size_bytes)
        self._members = WindowMembers(messages, size_bytes)

    async def change(self, messages: int = 0, size_bytes: int = 0) -> None:
        """The limit from now on. If it is lower than the messages that are unsettled, nothing comes
        until fewer are."""
        _check(messages, size_bytes)
        self._members.change(messages, size_bytes)

    @property
    def limit(self) -> tuple[int, int]:
        """Messages, bytes; 0: no limit."""
        limit = self._members.window.limit
        return (
            0 if limit.messages == MESSAGES_MAX else limit.messages,
            0 if limit.size_bytes == BYTES_MAX else limit.size_bytes,
        )

    @property
    def unsettled(self) -> tuple[int, int]:
        """Messages that have come and aren't settled, of all these consumers; and their bytes."""
        return self._members.unsettled

    def member(self, change_share: Callable[[Share], None]) -> WindowMember:
        """Of one consumer. `change_share` tells its stream's node."""
        return WindowMember(self._members, change_share)


def _check(messages: int, size_bytes: int) -> None:
    if not (0 <= messages <= MESSAGES_MAX and 0 <= size_bytes <= BYTES_MAX):
        raise BadRequestError(
            f"a shared prefetch of {messages} messages and {size_bytes} bytes: both are 0 (no "
            f"limit) or more, at most {MESSAGES_MAX} messages"
        )
