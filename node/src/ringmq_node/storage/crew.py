"""The parts of a store that have threads, from their start to their end.

Whoever opens the directory next must be alone in it. So a thread that doesn't end, whatever the
store has failed of before, keeps the directory locked until the process ends: `close` tells.

Everything is called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic

from ringmq_node.storage.background import Background
from ringmq_node.storage.disk import threads
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.disk.threads import Errands, Task
from ringmq_node.storage.partial import PartialMarks
from ringmq_node.storage.queue.queue_store import QueueStore
from ringmq_node.storage.rounds import GroupCommit


class Crew:
    """Of one store."""

    def __init__(
        self, commit: GroupCommit, background: Background, marks: PartialMarks, errands: Errands
    ) -> None:
        self._commit = commit
        self._background = background
        self._marks = marks
        self._errands = errands

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._commit.start(loop)
        self._background.start(loop)
        self._marks.start(loop)

    def stop(self) -> None:
        self._commit.stop()
        self._background.stop()
        self._marks.stop()

    def forget(self, queue: QueueStore) -> None:
        """A queue is being deleted: nothing more is begun on it."""
        self._commit.forget(queue)
        self._background.forget(queue)
        self._marks.forget(queue)

    def tasks_of(self, queue: QueueStore) -> list[Task]:
        """The tasks of threads that work on the queue just now."""
        parts = (self._commit, self._background, self._marks)
        return [task for part in parts for task in part.tasks_of(queue)]

    def drain(self, queues: Iterable[QueueStore]) -> None:
        """Waits for the threads, then commits the rest in this one. Raises `OSError`, and
        `DiskHangsError`."""
        self._background.drain()
        self._marks.drain()
        self._commit.drain(queues)

    def close(self, files: FileDisk | None, *, hangs: bool) -> bool:
        """Ends the threads, and waits for them unless the disk `hangs`. Returns whether all have
        ended. `files` take no call any more."""
        self._end(hangs=hangs)
        if files is not None:
            # A recovery of a large queue, which nobody wants any more, ends with its next call.
            files.refuse()
        ended = self._end(hangs=hangs)
        return self._errands.close(until=_deadline(hangs=hangs)) and ended

    def _end(self, *, hangs: bool) -> bool:
        until = _deadline(hangs=hangs)
        parts = (self._background, self._marks, self._commit)
        ended = [part.close(until=until) for part in parts]
        return all(ended)


def _deadline(*, hangs: bool) -> float:
    return monotonic() + (0.0 if hangs else threads.WAIT_S_MAX)
