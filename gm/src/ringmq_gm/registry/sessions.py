"""A session as its holder sees it: renewed in the background, lost by the holder's own clock.

Shared by the engines; each brings its `Lease`.

Why the clock decides and not an answer: a process that was stopped (SIGSTOP, a suspended machine,
a blocked loop) runs no task that could tell it. When it goes on, its first look at `lost` compares
the clock with the moment up to which the last successful renewal is good, and that moment is
reckoned from *before* the renewal was sent. So `lost` is true no later than the registry can drop
the keys. The clock goes on while the machine is suspended.

`lost` latches: a renewal whose answer comes after that moment changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_random_exponential,
)

from ringmq_gm.registry.base import CommitUnknownError, RegistryUnavailableError

# Linux; elsewhere the monotonic clock, which may stand still during a suspend.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds since the machine was started, the same for all of its processes."""
    return time.clock_gettime(_CLOCK)


class Lease(Protocol):
    """The registry's side of a session: its keys go when the lease does."""

    async def renew(self) -> float | None:
        """Renews it; returns until when (`clock()`) it is good, None if it is gone.

        Raises `RegistryUnavailableError` or `CommitUnknownError`: try again.
        """
        ...

    async def revoke(self) -> None:
        """Ends it, with its keys; no error if it is gone already."""
        ...


class LeasedSession:
    """`ringmq_gm.registry.base.Session` over a lease. Wants a running loop."""

    def __init__(self, lease: Lease, *, ttl_s: float, until: float) -> None:
        """A lease that was just granted, and is good until `until`."""
        self.lease = lease
        self._ttl_s = ttl_s
        self._until = until
        self._lost = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(), name="registry session")

    @property
    def lost(self) -> bool:
        if not self._lost.is_set() and clock() >= self._until:
            self._lost.set()
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        while not self.lost:
            # A renewal may move the moment meanwhile.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, self._until - clock())):
                    await self._lost.wait()

    async def close(self) -> None:
        """Raises `RegistryUnavailableError` or `CommitUnknownError` if the registry can't be
        told; the keys then go when the lease runs out."""
        await self.abandon()
        await self.lease.revoke()

    async def abandon(self) -> None:
        """It is lost from now on, and renewed no more; its keys run out by themselves."""
        self._lost.set()
        self._keeper.cancel()
        await asyncio.wait({self._keeper})
        if not self._keeper.cancelled():
            self._keeper.result()

    def renounce(self) -> None:
        """The registry has said that the lease is gone."""
        self._lost.set()

    async def _keep(self) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((RegistryUnavailableError, CommitUnknownError)),
            wait=wait_random_exponential(multiplier=self._ttl_s / 50, max=self._ttl_s / 6),
            stop=self._stop,
            retry_error_callback=_gone,
        )
        try:
            while not self.lost:
                await asyncio.sleep(self._ttl_s / 3)
                until: float | None = await retrying(self.lease.renew)
                if until is None or self.lost:
                    return
                self._until = until
        finally:
            self._lost.set()

    def _stop(self, _: RetryCallState) -> bool:
        return self.lost


def _gone(_: RetryCallState) -> None:
    """Retries have stopped because the lease has run out."""
