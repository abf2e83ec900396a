"""The bounds of a store, and what its parts count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Each with its unit. The defaults are for a node with a few GiB of memory."""

    # Bodies and index entries in memory, over all queues. Beside them are bodies that aren't on
    # the disk yet.
    queue_memory_bytes_max: int = 256 << 20
    # A journal with more messages and acks, or more bytes, is sealed and flushed to segments.
    journal_entries_max: int = 65_536
    journal_bytes_max: int = 64 << 20
    # While sealed journals have more bytes, over all queues, rounds wait for the flush.
    sealed_bytes_max: int = 4 << 30
    # How much a flush writes between two syncs, and between two looks at what has been removed.
    flush_piece_bytes_max: int = 4 << 20
    # What may wait for its round, over all queues; above it the ring's links give no credit.
    # Above half of it whoever fetches from other nodes waits for a round.
    unsynced_bytes_max: int = 64 << 20
    # Files synced at the same time.
    sync_threads: int = 4
    # A round of one queue that isn't larger is done on the loop's thread while the disk is
    # fast (see `sync_duration`). 0: never.
    sync_in_place_bytes_max: int = 16 << 10
    # A call of the disk that takes longer than this, in a thread, fails the store.
    disk_timeout_s: float = 30.0
    # How much is read before it is fetched.
    read_ahead_bytes: int = 2 << 20
    # A queue that nothing was appended to for so many seconds has its journal flushed, if
    # that has so many bytes.
    idle_ticks_max: int = 5
    idle_journal_bytes_min: int = 1 << 20
    # Batches whose messages are on average smaller, properties included, are embedded in
    # the index; the others go to the message store. 0: all go there.
    embed_below: int = 4096
    # What is put into the message store as one record, unless one message alone is larger.
    # One that lives keeps the others on the disk.
    store_block_bytes_max: int = 16 << 10
    # A file of the message store is not begun before the one before it is this large.
    store_file_bytes_max: int = 16 << 20
    # Compaction begins when more than this part of the bytes of all files is garbage, and
    # there are at least so many files; for a file that is nearly empty, also before.
    store_garbage_fraction: float = 0.5
    store_files_min: int = 3
    # How much compaction copies in a second, and in one piece.
    compaction_bytes_per_s_max: int = 32 << 20
    compaction_piece_bytes_max: int = 1 << 20
    # Message ids remembered, so that a fan-out stores a body once.
    recent_ids_max: int = 16_384
    # Blocks written or read lately, of each message store.
    store_cache_bytes_max: int = 16 << 20


@dataclass(slots=True)
class Written:
    """Bytes that one queue has written since it was opened."""

    # Durable, with headers.
    journal_bytes: int = 0
    segment_bytes: int = 0
    # Of bodies, given to the message store, which didn't have them; elided ones too.
    stored_bytes: int = 0
    # Of bodies alone, without properties and tables, to the journals or the message store: what
    # waits for its round, and what was removed before that and isn't written.
    body_bytes: int = 0
    elided_bytes: int = 0


@dataclass(slots=True)
class Counters:
    """What the parts of a store count into, on the event loop's thread."""

    queue_memory_bytes: int = 0
    # What durable queues were given since the last round began.
    gathered_bytes: int = 0
    rounds: int = 0
    files_synced: int = 0
    journal_bytes: int = 0
    sealed: int = 0
    # Of journals that are sealed and not flushed.
    sealed_bytes: int = 0
    segment_bytes: int = 0
    segments_deleted: int = 0
    blocks_read: int = 0
    elided_messages: int = 0
    elided_bytes: int = 0
