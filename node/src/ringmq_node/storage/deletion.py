"""Deleting queues, without waiting for the threads that work on them.

A thread writes by path. If a folder were renamed under it, the write would make the folder again.
So a queue that is deleted takes nothing more and can't be found any more, and its memory and its
files go when no thread works on it: as a rule at once, else when its round or flush has ended.

A queue that has failed and was given up is deleted in the same way, but for its memory: whatever
was wrong with it may still be. It has left the node's budget when it was given up.

A power cut before that brings the queue back, as one that nobody has opened. The node's registry
says that it was deleted, and the node deletes it at its start.

Everything is called on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Task
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.queue_store import QueueStore


class Deletions:
    """Of one store."""

    def __init__(
        self,
        disk: Disk,
        tasks_of: Callable[[QueueStore], list[Task]],
        remove_folder: Callable[[Path, Sequence[Condemned], list[IndexEntry]], None],
    ) -> None:
        """`tasks_of(queue)` returns the tasks of threads that work on it just now.
        `remove_folder(folder, condemned, entries)` is given a renamed folder, which no start takes
        for a queue, the dead segments in it, and entries to be let go of."""
        self._disk = disk
        self._tasks_of = tasks_of
        self._remove_folder = remove_folder
        self._leaving: dict[QueueStore, Path] = {}
        # Their files stay. A round under way must not release their bodies: nothing may be written
        # that says so.
        self.given_up: set[QueueStore] = set()
        self._gone = 0

    def give_up(self, queue: QueueStore) -> None:
        """The queue has failed. It counts no more in what the node's queues may hold together."""
        self.given_up.add(queue)
        queue.flusher.forget()
        queue.bodies.give_up_share()

    def delete(self, queue: QueueStore, folder: Path) -> None:
        """Deletes `queue`, now or when its threads are done. The caller begins no further work on
        it. Raises `OSError`."""
        queue.close()
        self._leaving[queue] = folder
        self.remove_left()

    def delete_unopened(self, name: str, folder: Path) -> None:
        """Deletes a queue that isn't open. Threads may still work on it if it was given up. Raises
        `OSError`."""
        for queue in [queue for queue in self.given_up if queue.queue == name]:
            if self._tasks_of(queue):
                self._leaving[queue] = folder
                return
            self.given_up.discard(queue)
        self.remove(folder, (), [], durable=True)

    def remove_left(self) -> None:
        """Removes deleted queues on which no thread works any more. Raises `OSError`."""
        for queue in [queue for queue in self._leaving if not self._tasks_of(queue)]:
            folder = self._leaving.pop(queue)
            if queue in self.given_up:
                self.delete_unopened(queue.queue, folder)
                continue
            entries = queue.delete()
            self.remove(folder, queue.bodies.condemned, entries, durable=queue.durable)

    def wait(self, name: str) -> None:
        """Blocks until a deleted queue of this name is removed: a new one needs its folder. Raises
        `OSError`, and `DiskHangsError`."""
        for queue in [queue for queue in self._leaving if queue.queue == name]:
            for task in self._tasks_of(queue):
                task.wait()
            self.remove_left()

    def remove(
        self,
        folder: Path,
        condemned: Sequence[Condemned],
        entries: list[IndexEntry],
        *,
        durable: bool,
    ) -> None:
        """Removes the folder of a queue. When this returns, no power cut brings the queue back, if
        it was `durable`. Raises `OSError`."""
        if not self._disk.list(folder):
            return  # Nothing was ever written to this queue, so it has no folder.
        self._gone += 1
        gone = folder.with_name(f"{folder.name}.{self._gone}{folders.GONE_SUFFIX}")
        self._disk.rename(folder, gone)
        if durable:
            self._disk.sync(gone.parent)
        self._remove_folder(gone, [*condemned], entries)
