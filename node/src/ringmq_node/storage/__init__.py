"""The storage engine: a replica's messages on the disk of its node, and how they come back.

`Store` is one data directory, `QueueStore` one queue in it. The wings, from below: `format` is how
bytes look, `disk` how the disk is touched, `messages` the message stores of large bodies, and
`queue` one queue's journal, segments and index. `offline` reads a directory that no node has open.
"""

from ringmq_node.storage.disk.disk import Disk, FileDisk
from ringmq_node.storage.disk.life import StoreLife
from ringmq_node.storage.errors import (
    CorruptError,
    CorruptionReport,
    DirectoryInUseError,
    DiskFullError,
    ForeignDirectoryError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    UnsupportedFormatError,
)
from ringmq_node.storage.format.packing import PackedParts, packed_in_pieces
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.queue.queue_store import QueueStore
from ringmq_node.storage.statistics import StoreStatistics
from ringmq_node.storage.store import Store

__all__ = [
    "CorruptError",
    "CorruptionReport",
    "DirectoryInUseError",
    "Disk",
    "DiskFullError",
    "FileDisk",
    "ForeignDirectoryError",
    "PackedParts",
    "QueueStore",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreLife",
    "StoreLimits",
    "StoreStatistics",
    "UnsupportedFormatError",
    "packed_in_pieces",
]
