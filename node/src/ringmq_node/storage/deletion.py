"""How queues are removed from a store, without waiting for the threads that work on them.

A folder can't be renamed under a thread: it writes by path, and would make the folder again. So
a queue that is deleted takes nothing more and is gone for those who ask, and what it has, in
memory and on the disk, goes when no thread works on it any more: at once, as a rule, or when the
round that it is in has ended.

A power cut before that brings the queue back, as one that nobody has opened. The node knows from
the registry that it was deleted, and deletes it at its start.

Everything is called on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Task
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.queue_store import QueueStore


class Deletions:
    """Of one store."""

    def __init__(
        self,
        disk: Disk,
        tasks_of: Callable[[QueueStore], list[Task]],
        remove_folder: Callable[[Path, Sequence[Condemned]], None],
    ) -> None:
        """`tasks_of` says what threads do with a queue just now; `remove_folder` is
        given folders that nobody finds any more, and the dead segments in them."""
        self._disk = disk
        self._tasks_of = tasks_of
        self._remove_folder = remove_folder
        self._leaving: dict[QueueStore, Path] = {}
        self._gone = 0

    def delete(self, queue: QueueStore, folder: Path) -> None:
        """Nothing more is begun on `queue`. Raises `OSError`."""
        queue.close()
        self._leaving[queue] = folder
        self.remove_left()

    def remove_left(self) -> None:
        """Removes deleted queues on which no thread works any more. Raises `OSError`."""
        for queue in [queue for queue in self._leaving if not self._tasks_of(queue)]:
            folder = self._leaving.pop(queue)
            queue.delete()
            self.remove(folder, queue.bodies.condemned, durable=queue.durable)

    def wait(self, name: str) -> None:
        """Blocks until what had this name is removed. Raises `OSError`, and `DiskHangsError`."""
        for queue in [queue for queue in self._leaving if queue.queue == name]:
            for task in self._tasks_of(queue):
                task.wait()
            self.remove_left()

    def remove(self, folder: Path, condemned: Sequence[Condemned], *, durable: bool) -> None:
        """Removes the folder of a queue; it doesn't come back. Raises `OSError`."""
        self._gone += 1
        gone = folder.with_name(f"{folder.name}.{self._gone}{folders.GONE_SUFFIX}")
        self._disk.rename(folder, gone)
        if durable:
            self._disk.sync(gone.parent)
        self._remove_folder(gone, [*condemned])
