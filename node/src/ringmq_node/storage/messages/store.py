"""One message store: large bodies in append-only files, referred to by location.

Its promises

* A record is there after a power cut (persistent store) once `committed` has been told of its
  job, for as long as it is referred to. A location stays good however often compaction moves the
  record.
* A record is read as it was put, or `CorruptError` is raised: both its checksums are looked
  at whenever it comes from the disk.
* A start reads, parses and keeps nothing per record. Reference counts are not on disk: the node
  that opens the directory calls `share` for each location in its index, and when all of them have
  been shared, `start_collecting`. Until then nothing is deleted or moved.

The caller's part

* `release` a location only when the op that removes it from the index is durable. Else a power
  cut may bring back a message whose body has been deleted. A location that no durable record of an
  index will refer to may be released at once: that of a transient message, or of an elided publish
  (see `elision`). If no job has taken it yet, it becomes a hole: only its header is written.
* Each `share` and `put` is followed by at most one `release`. A location without references
  is not shared again, once `start_collecting` has been called. A location is always the
  one that `put` gave: no caller learns where compaction has put the record.
* Jobs are written in the order in which they were taken. One `plan` at a time is under way.
* All calls are made on the loop's thread, except `read`, `write` and `compact`.

Numbers of files are never used twice: a new one is above all that are in the directory or in
a map, and the file or map with the highest number is not removed before a higher one is
durable. A file that was there at the start is never appended to. So a tail that a crash has torn
stays at the end of its file, and no record that is referred to is behind it.

Memory: one byte for each record; for one that was moved and is still referred to 17 bytes
where it was and 1 where it is; about 360 bytes for each file; and the blocks that wait to be
written. Measured with a million records of 4 KiB (4052 in a file): 1.2 bytes each, and 18.5 each
if all of them have been moved. So 100 million, which are 410 GB, take 0.12 GB, and 1.9 GB at worst.
A start takes 2 ms for 250 files, and 1.5 ms for each map of 4052 rows.

The parts: `appending` gives a record its place, `writing` writes it, `lookup` reads it, `catalogue`
counts references, `collector` plans compactions and removals. `files` has the states of a file,
`docs/formats.md` the formats.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages.appending import Appender
from ringmq_node.storage.messages.cache import BlockCache
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.collector import Collector
from ringmq_node.storage.messages.files import DataFile, FileState, MovedFile
from ringmq_node.storage.messages.lookup import RecordReader
from ringmq_node.storage.messages.statistics import (
    PENDING_MEMORY_BYTES,
    MessageStoreStatistics,
    memory_bytes,
)
from ringmq_node.storage.messages.steps import CompactionJob
from ringmq_node.storage.messages.unwritten import UnwrittenBlocks, key_of, record_key
from ringmq_node.storage.messages.writing import MessagesJob


class MessageStore:
    """The persistent or the transient store of a node. See the top of this module."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        limits: StoreLimits,
        *,
        persistent: bool,
    ) -> None:
        """Takes stock of `directory`, or empties it if it is the transient store's.

        Reads names, sizes and maps. Raises `OSError`, `UnsupportedFormatError`.
        """
        self.directory = directory
        self.persistent = persistent
        self._limits = limits
        # Guards all that `RecordReader` looks at from other threads; never held during I/O.
        self._lock = threading.Lock()
        self._catalogue = Catalogue()
        if persistent:
            self._catalogue.load(disk, directory)
        else:
            for name in disk.list(directory):
                disk.remove(directory / name)
        self._collector = Collector(
            directory, limits, self._catalogue, self._lock, persistent=persistent
        )
        self._appender = Appender(self._catalogue, self._lock, limits.store_file_bytes_max)
        self._unwritten = UnwrittenBlocks()
        self._cache = BlockCache(limits.store_cache_bytes_max)
        self._reader = RecordReader(
            directory, disk, self._catalogue, self._unwritten, self._cache, self._lock
        )
        # The locations of the newest message ids, for fan-outs.
        self._recent: OrderedDict[bytes, RecordLocation] = OrderedDict()
        self._shared = 0

    @property
    def corruptions(self) -> list[CorruptionReport]:
        """All damage that has been met, in the order in which it was."""
        return self._catalogue.corruptions

    @property
    def next_plan_at(self) -> float | None:
        """When to `plan` again, if only the rate limit made the last one return None."""
        return self._collector.next_plan_at

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction has begun and isn't done, between two steps too."""
        return self._collector.is_compacting

    def expect_references(self) -> None:
        """Some queues are not opened yet. Until `start_collecting`, the number of a new file is
        well above all that these queues can refer to, even where files are lost."""
        self._catalogue.expects_more = True

    # -- putting

    def put(self, block: Block, message_id: bytes = b"") -> tuple[RecordLocation, Block]:
        """One reference to a record with this block; returns also the block that is kept.

        The record, and the block, of an earlier `put` if that had the same 16-byte
        `message_id` and is still referred to: so a fan-out stores a body once. Durable after
        the next `take`, `write` and `committed`.
        """
        if message_id:
            known = self._known(block, message_id)
            if known is not None:
                self._shared += 1
                return known
        location = self._appender.append(block, message_id)
        with self._lock:
            self._unwritten.add(key_of(location), block)
        if message_id:
            self._remember(message_id, location)
        return location, block

    def _known(self, block: Block, message_id: bytes) -> tuple[RecordLocation, Block] | None:
        location = self._recent.get(message_id)
        if location is None or not self._catalogue.count(location):
            return None
        with self._lock:
            kept = self._reader.in_memory(key_of(location))
        # A publisher may use one id for two different messages. Both have to be stored.
        if kept is None or (kept is not block and not kept.is_same(block)):
            return None
        self._catalogue.add(location)
        return location, kept

    def _remember(self, message_id: bytes, location: RecordLocation) -> None:
        assert len(message_id) == 16, message_id
        self._recent[message_id] = location
        self._recent.move_to_end(message_id)
        if len(self._recent) > self._limits.recent_ids_max:
            self._recent.popitem(last=False)

    # -- counting

    def share(self, location: RecordLocation) -> None:
        """Adds a reference. Also to a location that can't be read: `read` and `lost` say so."""
        # Under the lock: the first reference to a lost file adds it to the table of files.
        with self._lock:
            count = self._catalogue.add(location)
        assert count > 1 or not self._collector.started, f"{location} may have been deleted"

    def release(self, location: RecordLocation) -> None:
        """Takes a reference away. A record without any is garbage; see above for when to call."""
        # Without the lock: counts are the loop's own, and no file leaves the table here.
        if self._catalogue.drop(location):
            return
        key = key_of(location)
        self._appender.make_hole(key)
        if key in self._unwritten or key in self._cache:
            with self._lock:
                self._unwritten.drop(key)
                self._cache.drop(key)

    def is_durable(self, location: RecordLocation) -> bool:
        """Whether the record is on the disk, durable in a persistent store."""
        file = self._catalogue.files.get(location.file)
        if isinstance(file, DataFile):
            return location.offset + location.length <= file.written
        return isinstance(file, MovedFile)

    def lost(self, location: RecordLocation) -> CorruptionReport | None:
        """A report, if it is known without a read that the record can't be read."""
        if self._catalogue.find(location) is not None:
            return None
        self._catalogue.note_used(location.file)
        return self._reader.lost(location).report

    # -- reading and writing

    def read(self, location: RecordLocation) -> Block:
        """The block of a record. From any thread.

        Raises `CorruptError`, `ReadError`, `UnsupportedFormatError`.
        """
        return self._reader.read(location)

    def check_record(self, location: RecordLocation) -> int:
        """Reads a record from the disk though its block may be in memory; returns its length, or 0
        if it isn't written yet. From any thread. Raises as `read` does."""
        return self._reader.check_record(location)

    @property
    def has_pending(self) -> bool:
        """Whether there is anything for the next job."""
        return self._appender.has_pending

    @property
    def pending_bytes(self) -> int:
        """What is to be written; `put` adds to it unless the record is known."""
        return self._appender.pending_bytes

    def reach(self, bytes_max: int) -> int:
        """The key of the last record that is in `take`'s job then, or in one before."""
        return self._appender.reach(bytes_max)

    def take(self, bytes_max: int | None = None) -> MessagesJob | None:
        """The records that were put since the last job, for `write`, in their order: all, or those
        of at most so many bytes, but one at least. None if there are none."""
        return self._appender.take(self.directory, persistent=self.persistent, bytes_max=bytes_max)

    def committed(self, job: MessagesJob) -> None:
        """`job` has been written: its records are durable."""
        self._appender.committed(job)
        for piece in job.pieces:
            with self._lock:
                for record in piece.records:
                    key = record_key(piece.file.number, record.ordinal)
                    # One that was released meanwhile is not unwritten any more, and not cached.
                    if self._unwritten.drop(key) and record.block is not None:
                        self._cache.put(key, record.block)

    # -- deleting and moving

    def start_collecting(self) -> None:
        """All references have been shared: files without any may be deleted from now on."""
        self._collector.start()

    def plan(self, now: float) -> CompactionJob | None:
        """The next step, to be given to `compact`; None if there is nothing to do, or not yet.

        `now` is a monotonic clock's, in seconds. While a step is under way there is no other.
        """
        return self._collector.plan(now)

    def done(self, job: CompactionJob) -> None:
        """The step has been done."""
        self._collector.done(job)

    # -- looking at it

    def statistics(self) -> MessageStoreStatistics:
        """Goes through all files, not through all records."""
        files = [*self._catalogue.data_files()]
        size = sum(file.disk_bytes for file in files)
        live = sum(file.live_bytes for file in files)
        memory = self._cache.size_bytes + self._unwritten.size_bytes
        memory += PENDING_MEMORY_BYTES * (len(self._unwritten) + len(self._recent))
        memory += memory_bytes(self._catalogue)
        return MessageStoreStatistics(
            files_now=len(files),
            maps_now=len([*self._catalogue.moved_files()]),
            files_stuck_now=sum(file.state is FileState.STUCK for file in files),
            file_bytes_now=size,
            records_now=sum(file.live_records for file in files),
            live_bytes_now=live,
            garbage_bytes_now=size - live,
            moved_bytes=self._collector.moved_bytes,
            compactions=self._collector.compactions,
            files_deleted=self._collector.files_deleted,
            records_shared=self._shared,
            holes=self._appender.holes,
            cache_hits=self._reader.hits,
            cache_misses=self._reader.misses,
            cache_bytes_now=self._cache.size_bytes,
            memory_bytes_now=memory,
        )

    def check(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        self._catalogue.check()
        self._unwritten.check()
        self._appender.check(self._unwritten)
