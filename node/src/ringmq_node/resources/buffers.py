"""What a node holds in memory for its clients, each kind with `buffer_bytes_max` as its budget.

    unread   whole requests that no stream has read yet: of the transport (`ringmq_wire.unread`)
    unsent   deliveries that wait in a stream for the client to read
    gets     answers of gets that are being made

Prefetch bounds the deliveries of one consumer, not of all. A consumer that has more unsent bytes
than are left of the budget is given nothing more until it has read all of them, so those that
read nothing together never have all of it. A get waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from ringmq_node.resources.credit import Credit


class Held(Protocol):
    @property
    def held_bytes(self) -> int: ...


class ByteBudget:
    """A sum with a limit."""

    __slots__ = ("_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        # In the order in which they came: bytes, and their turn.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def change(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        assert self.used_bytes >= 0
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used_bytes += size
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        # One alone always passes.
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self.limit_bytes

    @asynccontextmanager
    async def reserved(self, size_bytes: int) -> AsyncIterator[None]:
        """So many bytes are taken for as long as the block lasts; waits for them."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.change(-size_bytes)
                raise
        try:
            yield
        finally:
            self.change(-size_bytes)


class UnsentBytes:
    """Of one stream. `hold(True)` is called when it is to be given nothing more, `hold(False)` once
    it has sent all."""

    __slots__ = ("_budget", "_hold", "is_held", "size_bytes")

    def __init__(self, budget: ByteBudget, hold: Callable[[bool], None]) -> None:
        self._budget = budget
        self._hold = hold
        self.size_bytes = 0
        self.is_held = False

    def put(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._budget.change(size_bytes)
        if not self.is_held and self.size_bytes > self._budget.left_bytes:
            self.is_held = True
            self._hold(True)

    def taken(self, size_bytes: int) -> None:
        self.size_bytes -= size_bytes
        self._budget.change(-size_bytes)
        if self.is_held and not self.size_bytes:
            self.is_held = False
            self._hold(False)

    def end(self) -> None:
        """The stream has ended: nobody is told any more."""
        self.is_held = False
        self._hold = _tell_nobody
        self.taken(self.size_bytes)


def _tell_nobody(held: bool) -> None: ...


class ClientBuffers:
    """Of one node. `unread` is the transport's, and has the same limit. `credit`: of each
    publish stream at its queue, for batches that were read and are held."""

    def __init__(self, limit_bytes: int, unread: Held, credit: Credit) -> None:
        self.credit = credit
        self.limit_bytes = limit_bytes
        self.unread = unread
        self.unsent = ByteBudget(limit_bytes)
        self.gets = ByteBudget(limit_bytes)
