"""From the options to tasks: which queues of a directory each task reads, and which segments.

A task opens the directory anew and recovers its queues from their journals. So a node's queues are
shared out among few tasks, and one queue is cut by segments only where there are fewer queues than
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ringmq_store.options import Rows, StoreOptions
from pyspark_ringmq_store.rows import message_batches, piece_batches, queue_batches
from ringmq_node.storage.offline import DataDirectory, open_offline
from ringmq_node.storage.offline.queues import QueueFolder
from ringmq_pipeline.option_values import OptionError

if TYPE_CHECKING:
    import pyarrow


class StoreChangedError(RuntimeError):
    """The directory isn't what it was when the query was planned."""


@dataclass(slots=True)
class StorePartition(InputPartition):
    """`folders` of the directory; of each, the segments whose number modulo `slices` is `slice`."""

    node: str
    directory: str
    folders: tuple[str, ...]
    slice: int = 0
    slices: int = 1


class StoreReader(DataSourceReader):
    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Raises `OptionError` for a queue that no directory has; `StoreError`, `OSError`."""
        wanted = set(self._options.queues)
        seen: set[str] = set()
        tasks = -(-self._options.min_partitions // len(self._options.stores))
        found: list[StorePartition] = []
        for node, folder in self._options.stores:
            root = Path(folder)
            with open_offline(root) as disk:
                queues = DataDirectory(root, disk).queues
            if wanted:
                queues = [queue for queue in queues if names_of(queue) & wanted]
                seen.update(*map(names_of, queues))
            found += _share_out(node, folder, queues, tasks)
        if wanted - seen:
            names = ", ".join(sorted(wanted - seen))
            raise OptionError("queues", f"no directory has {names}")
        # Spark wants a partition also where there is nothing to read.
        node, folder = self._options.stores[0]
        return [*found] or [StorePartition(node, folder, ())]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, StorePartition)
        root = Path(partition.directory)
        with open_offline(root) as disk:
            directory = DataDirectory(root, disk)
            named = {queue.path.name: queue for queue in directory.queues}
            if gone := set(partition.folders) - named.keys():
                raise StoreChangedError(
                    f"{root}: the folder {min(gone)} of a queue was there when the query was "
                    "planned, and is gone: read a copy that nobody changes"
                )
            queues = [named[name] for name in partition.folders]
            if self._options.rows is Rows.QUEUES:
                if partition.slice == 0:
                    yield queue_batches(directory, partition.node, queues)
                return
            slices = (partition.slice, partition.slices)
            if self._options.rows is Rows.PIECES:
                yield from piece_batches(directory, partition.node, queues, slices)
                return
            yield from message_batches(directory, partition.node, queues, slices, self._options)


def names_of(queue: QueueFolder) -> set[str]:
    """Whatever people may call a queue: with its vhost only where that isn't the default one."""
    label = queue.label or ""
    names = {queue.name, queue.label, queue.path.name, label.rpartition("\x1f")[2]}
    return {name for name in names if name}


def _share_out(
    node: str, folder: str, queues: list[QueueFolder], tasks: int
) -> Iterator[StorePartition]:
    """The largest queues first, each to the task that has the least."""
    slices = tasks // len(queues) if queues else 1
    if slices > 1:
        for queue in queues:
            for number in range(slices):
                yield StorePartition(node, folder, (queue.path.name,), number, slices)
        return
    shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(tasks, len(queues)))]
    for queue in sorted(queues, key=lambda each: (-sum(each.sizes.values()), each.path.name)):
        share = min(range(len(shares)), key=lambda index: shares[index][0])
        taken, names = shares[share]
        shares[share] = (taken + sum(queue.sizes.values()) + 1, [*names, queue.path.name])
    for _, names in shares:
        yield StorePartition(node, folder, tuple(names))
