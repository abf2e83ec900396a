"""The numbers of a store, for the people who watch it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ringmq_node.storage.limits import Counters
from ringmq_node.storage.messages import MessageStoreStatistics
from ringmq_node.storage.queue.queue_store import QueueStore


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since `Store.open`; a name that ends in `now` is of this moment."""

    queues_now: int
    queue_memory_bytes_now: int
    # Sync rounds, and files synced in them.
    rounds: int
    files_synced: int
    journal_bytes_written: int
    # Written once more, before they are written to journals without a sync.
    commit_log_bytes_written: int
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
    # To both message stores, by compaction too.
    message_store_bytes_written: int
    # Blocks read back from disk.
    blocks_read: int
    failed_now: bool
    # The two message stores.
    messages: MessageStoreStatistics
    messages_transient: MessageStoreStatistics


def collect(
    counters: Counters,
    queues: Collection[QueueStore],
    *,
    queues_now: int,
    failed_now: bool,
    messages: MessageStoreStatistics,
    messages_transient: MessageStoreStatistics,
) -> StoreStatistics:
    """Adds up the numbers of `queues`, which are open, and of what they share."""
    return StoreStatistics(
        queues_now=queues_now,
        queue_memory_bytes_now=counters.queue_memory_bytes,
        rounds=counters.rounds,
        files_synced=counters.files_synced,
        journal_bytes_written=counters.journal_bytes,
        commit_log_bytes_written=counters.commit_log_bytes,
        journals_sealed=counters.sealed,
        journals_sealed_now=sum(queue.sealed_count for queue in queues),
        sealed_bytes_now=counters.sealed_bytes,
        messages_elided=counters.elided_messages,
        body_bytes_elided=counters.elided_bytes,
        segments_now=sum(len(queue.bodies.segments) for queue in queues),
        segment_bytes_written=counters.segment_bytes,
        segments_deleted=counters.segments_deleted,
        message_store_bytes_written=counters.message_store_bytes
        + messages.moved_bytes
        + messages_transient.moved_bytes,
        blocks_read=counters.blocks_read,
        failed_now=failed_now,
        messages=messages,
        messages_transient=messages_transient,
    )
