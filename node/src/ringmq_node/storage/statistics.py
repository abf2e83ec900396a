"""The numbers of a store, for the people who watch it."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.storage.messages import MessageStoreStatistics


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since `Store.open`; a name that ends in `now` is of this moment."""

    queues_now: int
    queue_memory_bytes_now: int
    # Sync rounds, and files synced in them.
    rounds: int
    files_synced: int
    journal_bytes_written: int
    # Journals that were sealed; sealed ones that are not flushed yet, and their bytes.
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
    # The two message stores.
    messages: MessageStoreStatistics
    messages_transient: MessageStoreStatistics
