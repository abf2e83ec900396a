"""The threads behind the asyncio side: one looks at the file, two run the calls that block."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ringmq_gm.registry.base import RegistryError
from ringmq_gm.registry.sessions import clock
from ringmq_gm.registry.sqlite.file import RegistryFile

T = TypeVar("T")


class Looker:
    """A thread that looks at the file again and again.

    It wakes the loop only when there is something to do: going to and fro between thread and
    loop costs a hundred times as much as a look.
    """

    def __init__(self, file: RegistryFile, deadline_s: float, interval_s: float) -> None:
        # When (`clock()`) the next lease runs out, as of the last look.
        self.expiry = math.inf
        self._file = file
        self._deadline_s = deadline_s
        self._interval_s = interval_s
        self._now = threading.Event()
        self._stopped = False
        self._ended = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop, seen: Callable[[], None]) -> None:
        """From now on calls `seen` in the loop after a change, while a lease is overdue,
        and while the file can't be read."""
        threading.Thread(
            target=self._run, args=(loop, seen), name="registry-look", daemon=True
        ).start()

    def wake(self) -> None:
        """Looks now. From any thread."""
        self._now.set()

    async def close(self, timeout_s: float) -> None:
        self._stopped = True
        self._now.set()
        # A thread that hangs in the file system ends when that answers.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()

    def _run(self, loop: asyncio.AbstractEventLoop, seen: Callable[[], None]) -> None:
        version: int | None = None
        try:
            while not self._stopped:
                self._now.clear()
                pause_s = self._interval_s
                try:
                    newest, self.expiry = self._file.look(deadline=clock() + self._deadline_s)
                except RegistryError:
                    # The watches meet the same fault, and begin anew once the file is back.
                    newest = None
                    pause_s *= random.uniform(5, 10)
                if newest is None or newest != version or clock() >= self.expiry:
                    version = newest
                    loop.call_soon_threadsafe(seen)
                self._now.wait(pause_s)
            self._file.close()
            loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            # The loop was closed, and the registry was not.
            assert loop.is_closed()
            self._file.close()


class FileThread:
    """A connection and the one thread that uses it."""

    def __init__(self, file: RegistryFile, name: str) -> None:
        self.file = file
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"registry-{name}")

    async def run(self, call: Callable[[], T], timeout_s: float) -> T:
        """The call's result; raises `TimeoutError` while it may still be running, but
        never begins it after that."""
        submitted = self._executor.submit(call)
        future = asyncio.wrap_future(submitted)
        try:
            done, _ = await asyncio.wait({future}, timeout=timeout_s)
        except asyncio.CancelledError:
            submitted.cancel()
            future.add_done_callback(_forget)
            raise
        if not done:
            submitted.cancel()
            future.add_done_callback(_forget)
            raise TimeoutError
        return future.result()

    async def close(self, timeout_s: float) -> None:
        # A thread that hangs in the file system ends when that answers.
        with contextlib.suppress(TimeoutError):
            await self.run(self.file.close, timeout_s)
        self._executor.shutdown(wait=False)


def _forget(future: asyncio.Future[T]) -> None:
    """No caller waits for this result any more. An error that nobody takes would be logged."""
    if not future.cancelled():
        future.exception()
