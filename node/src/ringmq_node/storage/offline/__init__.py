"""A data directory, read while no node has it open: its contents, and whether they are sound.

Nothing here writes. The engine's own recovery reads the queues' files, over a disk that only
pretends to rename and remove (`disk`), so that this and a node's start can't differ.
`statistics` counts, `verify` reads every byte, `inspection` shows single records.
"""

from ringmq_node.storage.offline.contents import DataDirectory, NotADataDirectoryError
from ringmq_node.storage.offline.disk import open_offline
from ringmq_node.storage.offline.faults import Fault, TornTail
from ringmq_node.storage.offline.verify import Verification, verify

__all__ = [
    "DataDirectory",
    "Fault",
    "NotADataDirectoryError",
    "TornTail",
    "Verification",
    "open_offline",
    "verify",
]
