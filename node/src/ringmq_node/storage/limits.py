"""The bounds of a store, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Each with its unit. The defaults are for a node with a few GiB of memory."""

    # Blocks kept in memory, over all queues. Those that aren't on disk yet are not bounded here.
    cache_bytes_max: int = 256 << 20
    # A journal with more messages and acks, or more bytes, is sealed and flushed to segments.
    journal_entries_max: int = 65_536
    journal_bytes_max: int = 64 << 20
    # How much a flush writes between two syncs, and between two looks at what has been removed.
    flush_piece_bytes_max: int = 4 << 20
    # Files synced at the same time.
    sync_threads: int = 4
    # A round of one queue that isn't larger is done on the loop's thread while the disk is
    # fast (see `pace`). 0: never.
    sync_in_place_bytes_max: int = 16 << 10


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since `Store.open`, except where it says now."""

    queues_now: int
    cache_bytes_now: int
    # Sync rounds, and files synced in them.
    rounds: int
    files_synced: int
    journal_bytes_written: int
    # Journals sealed; those not yet flushed; bytes that went to segments.
    journals_sealed: int
    journals_sealed_now: int
    segments_now: int
    segment_bytes_written: int
    segments_deleted: int
    # Blocks read back from disk.
    blocks_read: int
    failed_now: bool


@dataclass(slots=True)
class Counters:
    """What the parts of a store count into, on the event loop's thread."""

    cache_bytes: int = 0
    rounds: int = 0
    files_synced: int = 0
    journal_bytes: int = 0
    sealed: int = 0
    segment_bytes: int = 0
    segments_deleted: int = 0
    blocks_read: int = 0
