"""The limits of a store, and the counters that its parts share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The defaults are for a node with a few GiB of memory."""

    # Bodies and index entries in memory, over all queues. Bodies that aren't on the disk yet come
    # on top of it.
    queue_memory_bytes_max: int = 256 << 20
    # A journal with more messages and acks, or more bytes, is sealed and flushed to segments.
    journal_entries_max: int = 65_536
    journal_bytes_max: int = 64 << 20
    # While sealed journals have more bytes, over all queues, rounds wait for the flush.
    sealed_bytes_max: int = 4 << 30
    # Bytes that a flush writes in one step: between two syncs, and between two looks at the acks.
    flush_piece_bytes_max: int = 4 << 20
    # Bytes that wait for their round, over all queues. Above it the ring's links give no credit;
    # above half of it, a replica that fetches from other nodes waits for a round.
    unsynced_bytes_max: int = 64 << 20
    # Queues in one round; the others are in the next ones. All of a round are taken in one piece of
    # work on the loop, and reported in another: 0.1 ms for a queue, or more. If more journals lack
    # bytes that a log has, the next round writes these.
    round_queues_max: int = 200
    # Bytes in one round, but for the last share of a queue in it; and bytes that each message store
    # writes in one. What a queue has gathered waits in shares of so many bytes (see `gathering`).
    round_bytes_max: int = 4 << 20
    share_bytes_max: int = 1 << 20
    # Files synced at the same time.
    sync_threads: int = 4
    # A round with one sync and at most so many bytes is done on the loop's thread while the disk
    # is fast (see `disk.sync_duration`). 0: never.
    sync_in_place_bytes_max: int = 16 << 10
    # A round of at least so many queues goes through the commit log, unless they have more bytes
    # each on average. A log of so many bytes is left for the other one.
    commit_log_queues_min: int = 2
    commit_log_bytes_per_queue_max: int = 64 << 10
    commit_log_bytes_max: int = 32 << 20
    # Bytes that a log has and the journals don't have yet. Above it the next round writes them into
    # the journals; else the next tick does. 0: each round has those of the round before written.
    # The same for index entries of these bytes: 3 us of the loop each if their bodies leave memory.
    write_behind_bytes_max: int = 2 << 20
    write_behind_entries_max: int = 2048
    # A call of the disk in a thread that takes longer fails the store.
    disk_timeout_s: float = 30.0
    # Bytes of bodies that are read ahead of the consumers of a queue.
    read_ahead_bytes: int = 2 << 20
    # A queue without an append for so many ticks (seconds) has its journal flushed, if that has
    # so many bytes.
    idle_ticks_max: int = 5
    idle_journal_bytes_min: int = 1 << 20
    # A batch whose messages are smaller on average, properties included, is embedded in the
    # index; any other goes to the message store. 0: all go there.
    embed_below: int = 4096
    # The size of a record of the message store, unless one message alone is larger. A message
    # that lives keeps the others of its record on the disk.
    store_block_bytes_max: int = 16 << 10
    # The message store begins another file when the current one has reached this size.
    store_file_bytes_max: int = 16 << 20
    # Compaction begins when more than this fraction of all bytes is garbage, and there are at
    # least so many files. A file that is nearly empty is compacted before that.
    store_garbage_fraction: float = 0.5
    store_files_min: int = 3
    # Bytes that compaction copies in a second, and in one step.
    compaction_bytes_per_s_max: int = 32 << 20
    compaction_piece_bytes_max: int = 1 << 20
    # Ids of the latest messages, which the message store remembers so that a fan-out stores a
    # body once.
    recent_ids_max: int = 16_384
    # Blocks that were written or read lately, of each message store.
    store_cache_bytes_max: int = 16 << 20


@dataclass(slots=True)
class Written:
    """Bytes that one queue has written since it was opened."""

    # Durable bytes, with headers. Those of a journal may be in the commit log only, so far.
    journal_bytes: int = 0
    segment_bytes: int = 0
    # Blocks given to the message store that it didn't have before; elided ones too.
    stored_bytes: int = 0
    # Of bodies alone, without properties and tables: given to the journal or the message store,
    # whether their round has ended or not; and, of these, elided before it.
    body_bytes: int = 0
    elided_bytes: int = 0


@dataclass(slots=True)
class Counters:
    """Counters that the parts of a store share, on the event loop's thread."""

    queue_memory_bytes: int = 0
    # Bytes appended to durable queues that no round has taken: those that are still gathered, and
    # those of shares that are closed.
    gathered_bytes: int = 0
    closed_bytes: int = 0
    # Of the round that is on its way.
    under_way_bytes: int = 0
    rounds: int = 0
    files_synced: int = 0
    journal_bytes: int = 0
    commit_log_bytes: int = 0
    # Without what compaction has moved.
    message_store_bytes: int = 0
    sealed: int = 0
    # Of journals that are sealed and not flushed yet.
    sealed_bytes: int = 0
    segment_bytes: int = 0
    segments_deleted: int = 0
    blocks_read: int = 0
    elided_messages: int = 0
    elided_bytes: int = 0
    # Of the scrub: finished passes, bytes read, damaged places found, and live messages whose
    # bodies were in them.
    scrub_passes: int = 0
    scrub_bytes: int = 0
    scrub_faults: int = 0
    scrub_messages: int = 0

    @property
    def unsynced_bytes(self) -> int:
        """Appended to durable queues, and on no disk yet."""
        return self.gathered_bytes + self.closed_bytes + self.under_way_bytes
