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
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import ParamSpec, TypeVar

from ringmq_node.storage.errors import DiskHangsError, StoreClosedError

WAIT_S_MAX = 60.0
# In which a thread that has nothing to do has ended.
IDLE_END_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")


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

    def close(self, *, until: float) -> bool:
        """Ends the thread when it has done all its tasks. Blocks until then, or `until`, of
        `monotonic`. May be called again.

        Returns whether the thread has ended: if not, it may still write. A thread that hangs in a
        call of the disk doesn't keep the process from ending.
        """
        self._queue.put(None)
        # At least a moment: a thread with nothing to do ends at once.
        self._thread.join(max(until - monotonic(), IDLE_END_S))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            task, loop, done = item
            task.run()
            # If the loop is closed, `Store.close` waits for the task itself.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done)
            # It may be long until the next one, and this one has its queues.
            del item, task, done


class Errands:
    """Single pieces of work in threads, for coroutines that wait for their outcome.

    Of one store. As `asyncio.to_thread`, but that leaves its thread behind when the caller is
    cancelled, and nobody can tell when that has ended: it would go on in a directory that another
    life of the node has opened. Here `close` tells. Work of one `name` is done in one thread, one
    piece after another, also if those who wanted it have been cancelled.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._closed = False

    def begin(self, name: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """The outcome of `work`. To cancel it leaves the work as it is. Raises
        `StoreClosedError`."""
        if self._closed:
            raise StoreClosedError("the store was closed")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        answers: list[T] = []
        task = Task(lambda: answers.append(work()))

        def done() -> None:
            if outcome.done():
                return
            if task.error is not None:
                outcome.set_exception(task.error)
            else:
                outcome.set_result(answers[0])

        if name not in self._workers:
            self._workers[name] = Worker(f"ringmq-{name}")
        self._workers[name].submit(task, loop, done)
        return outcome

    async def run(self, name: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(*args, **kwargs)`, in a thread. Raises what it raises, and `StoreClosedError`."""
        return await self.begin(name, partial(work, *args, **kwargs))

    def close(self, *, until: float) -> bool:
        """Takes nothing more, and waits `until` then. Returns whether all threads have ended."""
        self._closed = True
        ended = [worker.close(until=until) for worker in self._workers.values()]
        return all(ended)
