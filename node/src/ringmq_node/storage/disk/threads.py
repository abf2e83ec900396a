"""Threads that wait for the disk, so that the event loop doesn't have to.

One `Worker` is one long-lived thread with a queue of tasks. Handing it a task is one put, and the
answer is one `call_soon_threadsafe`. The futures of an executor would cost about as much again as
the sync of a small write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from ringmq_node.storage.errors import DiskHangsError

WAIT_S_MAX = 60.0


class Task:
    """A piece of work for a thread, and its error. The work leaves its answer in its own job."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._done = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error
        self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether the work has ended, well or with an error."""
        return self._done.is_set()

    def wait(self) -> None:
        """Blocks until the work has ended. Raises `DiskHangsError` if the disk doesn't answer."""
        if not self._done.wait(WAIT_S_MAX):
            raise DiskHangsError(
                f"the disk has not answered a thread for {WAIT_S_MAX:.0f} s: look at the disk, "
                "then start the node again"
            )


class Worker:
    """A thread that does one `Task` after another."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[
            tuple[Task, asyncio.AbstractEventLoop, Callable[[], None]] | None
        ] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Task, loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
        """Runs `task` in the thread, then calls `done` on the loop."""
        self._queue.put((task, loop, done))

    def close(self, *, wait: bool = True) -> None:
        """Ends the thread when it has done all its tasks; with `wait`, blocks until then.

        A thread that hangs in a call of the disk doesn't keep the process from ending.
        """
        self._queue.put(None)
        if wait:
            self._thread.join(WAIT_S_MAX)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            task, loop, done = item
            task.run()
            # If the loop is closed, `Store.close` waits for the task itself.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done)
            # It may be long until the next one, and this one has its queues.
            del item, task, done
