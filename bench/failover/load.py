"""The publisher of a failover run: numbered messages at a fixed rate, whatever happens.

A burst goes out every `BURST_S` if the window has room for it; bursts that found no room aren't
made up for. So the rate after an outage is the rate before, and an outage leaves at most a window
of messages whose outcome is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Iterable
from typing import Protocol

from waiting import until

from bench.measure import BenchError

BURST_S = 0.01
NUMBER = struct.Struct(">Q")


def body_of(number: int, size_bytes: int) -> bytes:
    return NUMBER.pack(number) + bytes(size_bytes - NUMBER.size)


def number_of(body: bytes) -> int:
    return int(NUMBER.unpack_from(body)[0])


class Confirms(Protocol):
    def __call__(self, numbers: Iterable[int]) -> None: ...


class Sender(Protocol):
    """A client of one queue that follows it from node to node by itself, and repeats what it has
    no confirm for."""

    async def open(self, queue: str, node: str, on_confirms: Confirms) -> None:
        """Connects to `node`, the queue's master."""
        ...

    def send(self, numbers: range, size_bytes: int) -> None:
        """Takes the messages; each will be confirmed by `on_confirms`, unless it is closed."""
        ...

    async def close(self) -> None: ...


class Load:
    """`async with Load(...) as load`: publishes until it is left. Numbers begin at `first`."""

    def __init__(
        self,
        sender: Sender,
        queue: str,
        node: str,
        *,
        first: int,
        rate_per_s: int,
        window: int,
        size_bytes: int,
    ) -> None:
        self._sender, self._queue, self._node = sender, queue, node
        self._window, self._size_bytes = window, size_bytes
        self._burst = max(1, round(rate_per_s * BURST_S))
        self._pause_s = self._burst / rate_per_s
        self._next = first
        self._outstanding: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.confirmed: set[int] = set()
        self.confirmed_at: list[float] = []
        # The latest moment of a hand-over that has been confirmed.
        self.served_at = 0.0

    @property
    def next_number(self) -> int:
        return self._next

    @property
    def published_bytes(self) -> int:
        return len(self.confirmed) * self._size_bytes

    async def __aenter__(self) -> Load:
        await self._sender.open(self._queue, self._node, self._confirm)
        self._task = asyncio.create_task(self._publish(), name=f"load on {self._queue}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pause()
        await self._sender.close()

    async def settle(self, *, within_s: float) -> None:
        """Publishes no more, and waits until nothing is unconfirmed."""
        await self._pause()
        with contextlib.suppress(AssertionError):  # An outcome that stays unknown is no loss.
            await until(lambda: not self._outstanding, within_s=within_s)

    async def serves(self, *, within_s: float) -> bool:
        """Whether a message handed over from now on is confirmed in time."""
        since = time.monotonic()
        try:
            await until(lambda: self._is_served(since), within_s=within_s)
        except AssertionError:
            return False
        return True

    def _is_served(self, since: float) -> bool:
        assert self._task is not None
        if self._task.done():
            raise BenchError(f"the publisher of {self._queue} ended: {self._task.exception()}")
        return self.served_at > since

    async def _pause(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _publish(self) -> None:
        while True:
            if len(self._outstanding) + self._burst <= self._window:
                numbers = range(self._next, self._next + self._burst)
                self._next = numbers.stop
                now = time.monotonic()
                self._outstanding.update((number, now) for number in numbers)
                self._sender.send(numbers, self._size_bytes)
            await asyncio.sleep(self._pause_s)

    def _confirm(self, numbers: Iterable[int]) -> None:
        now = time.monotonic()
        self.confirmed_at.append(now)
        for number in numbers:
            handed_over_at = self._outstanding.pop(number, None)
            if handed_over_at is not None:
                self.confirmed.add(number)
                self.served_at = max(self.served_at, handed_over_at)
