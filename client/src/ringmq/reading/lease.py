"""A lease that this process holds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from ringmq.calls.arguments import checked_calls
from ringmq.model.positions import QueueLease


@checked_calls
class HeldLease:
    """Made by `Reader.acquire_lease`. It has to be renewed before it expires: a third of its time
    is a good interval. Leaving it as a context releases it."""

    def __init__(
        self,
        lease: QueueLease,
        *,
        asked_at: float,
        renew: Callable[[HeldLease, float | None], Awaitable[QueueLease]],
        release: Callable[[HeldLease, float | None], Awaitable[None]],
    ) -> None:
        """`asked_at`: on the monotonic clock, when it was asked for."""
        self._renew = renew
        self._release = release
        self.name = lease.name
        self.holder = lease.holder
        #: Each later holder has a higher one: what the earlier ones still send is refused.
        self.token = lease.token
        self.ttl_ms = lease.ttl_ms
        self._expires_at = asked_at + lease.ttl_ms / 1000

    @property
    def expires_in_s(self) -> float:
        """How long it surely holds, by this process's clock; 0 once it may have expired."""
        return max(0.0, self._expires_at - time.monotonic())

    async def renew(self, *, deadline_s: float | None = None) -> None:
        """Raises `LeaseLostError` if somebody else has it by now."""
        asked_at = time.monotonic()
        lease = await self._renew(self, deadline_s)
        self._expires_at = max(self._expires_at, asked_at + lease.ttl_ms / 1000)

    async def release(self, *, deadline_s: float | None = None) -> None:
        """Does nothing if somebody else has it by now."""
        await self._release(self, deadline_s)
        self._expires_at = 0.0

    async def __aenter__(self) -> HeldLease:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.release()
