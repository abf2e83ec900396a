"""The counts of a message store."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.storage.messages.catalogue import Catalogue

# Estimates of the memory that Python takes for a file, and for a record that waits.
FILE_MEMORY_BYTES = 600
PENDING_MEMORY_BYTES = 400


@dataclass(frozen=True, slots=True)
class MessageStoreStatistics:
    """Counts since the start, except where it says now."""

    files_now: int
    maps_now: int
    # Those that compaction leaves alone until the next start: damaged, or a read of them failed.
    files_stuck_now: int
    file_bytes_now: int
    # Records that are referred to, and their bytes with headers; the rest is garbage.
    records_now: int
    live_bytes_now: int
    garbage_bytes_now: int
    # Bytes that compaction has copied, and the compactions that have been published.
    moved_bytes: int
    compactions: int
    files_deleted: int
    # Puts that found their record in the store already, and records that were released before
    # they were written.
    records_shared: int
    holes: int
    cache_hits: int
    cache_misses: int
    cache_bytes_now: int
    # An estimate; the cache and all blocks that are not on the disk yet are in it.
    memory_bytes_now: int


def memory_bytes(catalogue: Catalogue) -> int:
    """An estimate of the memory that the files take. Goes through all files, not all records."""
    files = [*catalogue.data_files()]
    maps = [*catalogue.moved_files()]
    memory = FILE_MEMORY_BYTES * (len(files) + len(maps))
    memory += sum(file.counts.memory_bytes for file in files)
    return memory + sum(file.counts.memory_bytes + file.table.memory_bytes for file in maps)
