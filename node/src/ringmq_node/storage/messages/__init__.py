"""The message store of a node: large bodies, found by location and counted by reference."""

from ringmq_node.storage.messages.compaction import CompactionJob, compact
from ringmq_node.storage.messages.store import MessageStore, MessageStoreStatistics
from ringmq_node.storage.messages.writing import MessagesJob, write

__all__ = [
    "CompactionJob",
    "MessageStore",
    "MessageStoreStatistics",
    "MessagesJob",
    "compact",
    "write",
]
