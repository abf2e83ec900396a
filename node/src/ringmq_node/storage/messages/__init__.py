"""The message store of a node: large bodies, found by location and counted by reference."""

from ringmq_node.storage.messages.compaction import compact
from ringmq_node.storage.messages.statistics import MessageStoreStatistics
from ringmq_node.storage.messages.steps import CompactionJob
from ringmq_node.storage.messages.store import MessageStore
from ringmq_node.storage.messages.unwritten import ALL_RECORDS, NO_RECORD, key_of
from ringmq_node.storage.messages.writing import MessagesJob, write

__all__ = [
    "ALL_RECORDS",
    "NO_RECORD",
    "CompactionJob",
    "MessageStore",
    "MessageStoreStatistics",
    "MessagesJob",
    "compact",
    "key_of",
    "write",
]
