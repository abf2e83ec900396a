"""What a store counts, for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.storage.messages import MessageStoreStatistics


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since `Store.open`, except where it says now."""

    queues_now: int
    queue_memory_bytes_now: int
    # Sync rounds, and files synced in them.
    rounds: int
    files_synced: int
    journal_bytes_written: int
    # Journals sealed; those not yet flushed; bytes that went to segments.
    journals_sealed: int
    journals_sealed_now: int
    sealed_bytes_now: int
    # Messages, and bytes of their bodies, that were removed before a round has written them.
    messages_elided: int
    body_bytes_elided: int
    segments_now: int
    segment_bytes_written: int
    segments_deleted: int
    # Blocks read back from disk.
    blocks_read: int
    failed_now: bool
    # Of the message stores.
    messages: MessageStoreStatistics
    messages_transient: MessageStoreStatistics
