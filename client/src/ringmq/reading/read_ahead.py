"""An asynchronous generator for a thread without asyncio, read ahead of it.

To wait for each item by itself would cost a change of threads for each, and nothing would be read
while the caller works. So a task of the loop goes on reading until `bytes_max` wait to be taken,
and the caller takes all that is there at once: at most twice `bytes_max` are held, and one more
item of any size.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Generic, TypeVar

from ringmq.calls.loop_thread import OnLoop, is_loops_own_thread, run_on_loop, start_on_loop

T = TypeVar("T")

# Two pieces of a browse.
READ_AHEAD_BYTES_MAX = 2 << 20


def read_ahead(
    items: AsyncGenerator[T, None],
    bytes_of: Callable[[T], int],
    bytes_max: int = READ_AHEAD_BYTES_MAX,
) -> Generator[T, None, None]:
    """Its items, and then its error. It is begun by the first of them, and ended wherever the
    caller stops."""
    reading = OnLoop(_ReadAhead(items, bytes_of, bytes_max))
    try:
        run_on_loop(reading.calls.start())
        while taken := reading.calls.take():
            # Each is let go when the caller lets it go.
            taken.reverse()
            while taken:
                yield taken.pop()
    finally:
        # The garbage collector may end it, in any thread: that one can't wait for itself.
        if not reading.is_inherited:
            end = start_on_loop if is_loops_own_thread() else run_on_loop
            end(reading.calls.close())


class _ReadAhead(Generic[T]):
    """`start`, `close` and `_read` run on the loop, `take` in the caller's thread."""

    def __init__(
        self, items: AsyncGenerator[T, None], bytes_of: Callable[[T], int], bytes_max: int
    ) -> None:
        self._items = items
        self._bytes_of = bytes_of
        self._bytes_max = bytes_max
        # Guards the fields that both threads touch.
        self._changed = threading.Condition()
        self._ready: list[T] = []
        self._ready_bytes = 0
        self._has_ended = False
        self._error: BaseException | None = None
        self._reading: asyncio.Task[None] | None = None
        # Set for each time that all were taken while the task waited for that.
        self._taken = asyncio.Event()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._items.aclose()

    async def _read(self) -> None:
        error: BaseException | None = None
        try:
            async for item in self._items:
                if self._add(item):
                    await self._taken.wait()
                    self._taken.clear()
        except BaseException as caught:
            # It is the caller's, behind the items.
            error = caught
        with self._changed:
            self._error = error
            self._has_ended = True
            self._changed.notify()

    def _add(self, item: T) -> bool:
        """Whether that is enough for now."""
        with self._changed:
            self._ready.append(item)
            self._ready_bytes += self._bytes_of(item)
            self._changed.notify()
            return self._is_full

    @property
    def _is_full(self) -> bool:
        return self._ready_bytes >= self._bytes_max

    def take(self) -> list[T]:
        """All that is there, one item at least; none at the end. Raises the error that ended the
        items."""
        with self._changed:
            while not self._ready and not self._has_ended:
                self._changed.wait()
            taken, self._ready = self._ready, []
            waits, self._ready_bytes = self._is_full, 0
            if not taken and self._error is not None:
                raise self._error
        if waits:
            self._loop.call_soon_threadsafe(self._taken.set)
        return taken
