"""A data directory, read while no node has it open: what is in it, and whether it is sound.

Nothing here writes. What a queue's files mean is asked of the engine's own recovery, over a
disk that only pretends to rename and remove (`disk`), so that this and a node's start can't
differ. `statistics` counts, `verify` reads every byte, `listing` shows single records.
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
