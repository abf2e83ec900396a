"""The tasks that a node can't do without: if one fails, the node ends.

No task is fire-and-forget. A task that died unnoticed would leave a node that looks alive and does
only part of its work: rings without a watch, journals without sync rounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from ringmq_gm import SupersededError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Supervisor:
    """Owns tasks until they end. Made on a running loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task whose failure ends the node; cancelling it is no failure."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None or self._fatal.done():
            return
        if isinstance(error, SupersededError):
            logger.critical("%s ends: %s", task.get_name(), error)
        else:
            logger.critical("%s has failed", task.get_name(), exc_info=error)
        self._fatal.set_exception(error)

    async def wait_fatal(self) -> None:
        """Raises when a task has failed; never returns."""
        await asyncio.shield(self._fatal)

    async def or_fatal(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, unless a task fails first: then that task's error."""
        task = asyncio.create_task(work)
        first: set[asyncio.Future[Any]] = {task, self._fatal}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if self._fatal.done():
            task.cancel()
            self._fatal.result()
        return await task

    async def stop(self) -> None:
        """Cancels every task and waits for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Nobody may be waiting: an exception that was never asked for would be logged as lost.
        if self._fatal.done():
            self._fatal.exception()
