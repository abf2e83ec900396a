"""The storage engine: what a replica has on its disk, and how it gets it back.

`Store` is one data directory, `QueueStore` one queue in it. The formats are in
`records`, `journal`, `checkpoint`, `segments` and `directory`, and together in docs/formats.md.
"""

from ringmq_node.storage.disk.disk import Disk, FileDisk
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
    "QueueStore",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreLimits",
    "StoreStatistics",
    "UnsupportedFormatError",
]
