"""Which replicas of a store may lack confirmed messages, as the disk remembers it.

The mark is a file in the queue's folder (`disk.data_directory`). It is written when a queue is
opened on a disk that isn't trusted, and goes when the replica has caught up.

Marks are removed in a thread, all that have gathered at a time. A node that comes back with an
empty directory gets thousands of views within seconds, and a sync on the event loop for each would
hold up the heartbeats of all rings. A crash before a removal is durable does no harm: the next life
takes the replica for partial once more, and it catches up.

Everything is called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Task, Worker
from ringmq_node.storage.queue.queue_store import QueueStore


class PartialMarks:
    """Of one store. `fail` is told of an error of the disk, `done` after each piece of work."""

    def __init__(
        self, disk: Disk, *, fail: Callable[[Exception], object], done: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._fail = fail
        self._done = done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        # Whole by now, and their marks still on the disk.
        self._whole: dict[QueueStore, None] = {}
        self._removing: tuple[Task, Sequence[QueueStore]] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._schedule()

    def stop(self) -> None:
        self._loop = None

    def mark_whole(self, queue: QueueStore) -> None:
        """The queue's mark goes soon; at once if the store doesn't run. Raises `OSError`."""
        queue.partial = False
        if self._loop is None:
            folders.mark_whole(self._disk, [queue.directory])
            return
        self._whole[queue] = None
        self._schedule()

    def forget(self, queue: QueueStore) -> None:
        """The queue is being deleted: nothing more is begun on it."""
        self._whole.pop(queue, None)

    def tasks_of(self, queue: QueueStore) -> list[Task]:
        """The task of a thread that removes the queue's mark, if it isn't done."""
        if self._removing is None or queue not in self._removing[1] or self._removing[0].is_done:
            return []
        return [self._removing[0]]

    def drain(self) -> None:
        """Waits for the thread, and removes the rest in this one. Raises `OSError`."""
        self.stop()
        if self._removing is not None:
            task, self._removing = self._removing[0], None
            task.wait()
            if task.error is not None:
                raise task.error
        whole, self._whole = [*self._whole], {}
        if whole:
            folders.mark_whole(self._disk, [queue.directory for queue in whole])

    def close(self, *, until: float) -> bool:
        """Waits `until` then. Returns whether its thread has ended."""
        return self._worker is None or self._worker.close(until=until)

    def _schedule(self) -> None:
        if self._whole and self._removing is None and self._loop is not None:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._whole or self._removing is not None or self._loop is None:
            return
        if self._worker is None:
            self._worker = Worker("ringmq-marks")
        queues, self._whole = [*self._whole], {}
        task = Task(partial(folders.mark_whole, self._disk, [each.directory for each in queues]))
        self._removing = (task, queues)
        self._worker.submit(task, self._loop, partial(self._ended, task))

    def _ended(self, task: Task) -> None:
        if self._removing is None or self._removing[0] is not task:
            return
        self._removing = None
        if task.error is not None:
            self._fail(task.error)
            return
        self._done()
        self._schedule()
