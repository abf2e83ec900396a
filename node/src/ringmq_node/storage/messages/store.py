"""One message store: large bodies in append-only files, referred to by location.

What it promises

* What `committed` has been told of is there after a power cut (persistent store), for as
  long as it is referred to; a location stays good however often compaction moves the record.
* A record is read as it was put, or `CorruptError` is raised: both its checksums are looked
  at whenever it comes from the disk.
* Nothing is read, parsed or kept per record at a start. Reference counts are not on disk:
  whoever opens the directory calls `share` for what its index refers to, and then, when
  all of it has been shared, `start_collecting`. Until then nothing is deleted or moved.

What it asks

* `release` a location only when what removes it from the index is durable. Else a power cut
  may bring back a message whose body has been deleted. At once may be released what no record
  of an index will refer to: that of a transient message, or of an elided publish (see
  `elision`). Not taken yet, it becomes a hole: only its header is written.
* Each `share` and `put` is followed by at most one `release`; a location without references
  is not shared again, once `start_collecting` has been called. A location is always the
  one that `put` gave: nobody is told where compaction has put the record.
* Jobs are written in the order in which they were taken. One `plan` at a time is under way.
* All is called on the loop's thread, but for `read`, `write` and `compact`.

Numbers of files are never used twice: a new one is above all that are in the directory or in
a map, and the file or map with the highest number is not removed before a higher one is
durable. A file that was there at the start is never appended to, so what a crash has torn
stays at its end, and nothing that is referred to is behind it.

Memory: one byte for each record; for one that was moved and is still referred to 17 bytes
where it was and 1 where it is; about 360 bytes for each file; and what waits to be written.
Measured with a million records of 4 KiB (4052 in a file): 1.2 bytes each, and 18.5 each if
all of them have been moved. So 100 million, which are 410 GB, take 0.12 GB, and 1.9 GB at worst.
A start takes 2 ms for 250 files, and 1.5 ms for each map of 4052 rows.

See `docs/formats.md` for the formats, `compaction` for the moving.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from ringmq_node.queue.block import Block, BlockError
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RecordKind,
    new_marker,
    parse_payload,
)
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages.cache import BlockCache
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.collector import Collector
from ringmq_node.storage.messages.compaction import CompactionJob
from ringmq_node.storage.messages.files import (
    DataFile,
    data_name,
)
from ringmq_node.storage.messages.walk import marker_of_record, parse_file_header
from ringmq_node.storage.messages.writing import MessagesJob, MessagesPiece, Put

# Looked up again so often when a file is gone that was there a moment ago. Each time stands for a
# whole compaction.
_LOOKUPS_MAX = 16
# Not looked at: an estimate of what Python takes for a file, and for a record that waits.
_FILE_MEMORY_BYTES = 600
_PUT_MEMORY_BYTES = 400


@dataclass(frozen=True, slots=True)
class MessageStoreStatistics:
    """Counts since the start, except where it says now."""

    files_now: int
    maps_now: int
    file_bytes_now: int
    # Records that are referred to, and their bytes with headers; the rest is garbage.
    records_now: int
    live_bytes_now: int
    garbage_bytes_now: int
    # What compaction has copied, and how often it has been through.
    moved_bytes: int
    compactions: int
    files_deleted: int
    # `put` of what was there already; what was released before it was written.
    records_shared: int
    holes: int
    cache_hits: int
    cache_misses: int
    cache_bytes_now: int
    # An estimate, the cache and what is not on the disk yet included.
    memory_bytes_now: int


class MessageStore:
    """The persistent or the transient store of a node. See the top of this module."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        limits: StoreLimits,
        counters: Counters,
        *,
        persistent: bool,
    ) -> None:
        """Takes stock of `directory`, or empties it if it is the transient store's.

        Reads names, sizes and maps. Raises `OSError`, `UnsupportedFormatError`.
        """
        # Offsets have 4 bytes.
        assert limits.store_file_bytes_max <= PAYLOAD_BYTES_MAX
        self.directory = directory
        self.persistent = persistent
        self._disk = disk
        self._limits = limits
        self._counters = counters
        # Held for look-ups and changes of what look-ups see; never during I/O.
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
        self._current: DataFile | None = None
        # By key: to be taken; taken or not, but not on the disk yet.
        self._gathered: dict[int, Put] = {}
        self._unwritten: dict[int, Block] = {}
        self._unwritten_bytes = 0
        self._cache = BlockCache(limits.store_cache_bytes_max)
        self._recent: OrderedDict[bytes, RecordLocation] = OrderedDict()
        self._jobs_taken = 0
        self._jobs_committed = 0
        self._shared = 0
        self._holes = 0
        self._hits = 0
        self._misses = 0

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
        """There are queues that are not opened yet: until `start_collecting` a new file's number
        is well above what they can refer to, also where files are lost."""
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
        length = RECORD_HEADER_BYTES + len(block.data)
        assert length <= PAYLOAD_BYTES_MAX, f"a block of {len(block.data)} bytes"
        file = self._file_for(length)
        location = RecordLocation(file.number, file.records, file.end, length)
        put = Put(file, location.ordinal, location.offset, length, message_id, block)
        key = _key(location)
        file.records += 1
        file.end += length
        file.add(location.ordinal, length)
        self._gathered[key] = put
        with self._lock:
            self._unwritten[key] = block
        self._unwritten_bytes += length
        if message_id:
            self._remember(message_id, location)
        return location, block

    def _known(self, block: Block, message_id: bytes) -> tuple[RecordLocation, Block] | None:
        location = self._recent.get(message_id)
        if location is None or not self._catalogue.count(location):
            return None
        with self._lock:
            kept = self._block_in_memory(_key(location))
        # An id that is used for two messages must not make one of the other.
        if kept is None or (kept is not block and kept.data != block.data):
            return None
        self._catalogue.add(location)
        return location, kept

    def _remember(self, message_id: bytes, location: RecordLocation) -> None:
        assert len(message_id) == 16, message_id
        self._recent[message_id] = location
        self._recent.move_to_end(message_id)
        if len(self._recent) > self._limits.recent_ids_max:
            self._recent.popitem(last=False)

    def _file_for(self, length: int) -> DataFile:
        """The file that is written to; the next one if this is full."""
        file = self._current
        if file is not None and file.end + length > self._limits.store_file_bytes_max:
            file.sealed = True
            self._sealed(file)
            file = None
        if file is None:
            number = self._catalogue.new_number()
            file = DataFile(number, new_marker(), FILE_HEADER.size, sealed=False)
            with self._lock:
                self._catalogue.files[number] = file
            self._current = file
        return file

    def _sealed(self, file: DataFile) -> None:
        """Nothing more is appended to it; once it is written, it may be compacted or removed."""
        self._catalogue.note_idle(file.number)
        self._catalogue.released_bytes += file.disk_bytes - file.live_bytes

    # -- counting

    def share(self, location: RecordLocation) -> None:
        """One reference more. Of a location that can't be read, too: reading it says so."""
        with self._lock:
            count = self._catalogue.add(location)
        assert count > 1 or not self._collector.started, f"{location} may have been deleted"

    def release(self, location: RecordLocation) -> None:
        """One reference less. With none left, it is garbage; see above for when to call this."""
        if self._catalogue.drop(location):
            return
        key = _key(location)
        put = self._gathered.get(key)
        if put is not None and put.block is not None:
            put.block = None
            put.file.hole_bytes += location.length - RECORD_HEADER_BYTES
            self._holes += 1
        if key in self._unwritten or key in self._cache:
            with self._lock:
                self._forget_unwritten(key)
                self._cache.drop(key)

    def is_durable(self, location: RecordLocation) -> bool:
        """Whether the record is on the disk (transient store: written)."""
        file = self._catalogue.files.get(location.file)
        if isinstance(file, DataFile):
            return location.offset + location.length <= file.written
        return file is not None

    def lost(self, location: RecordLocation) -> CorruptionReport | None:
        """What is wrong, if it is known that the record can't be read."""
        if self._catalogue.find(location) is not None:
            return None
        self._catalogue.note_used(location.file)
        return self._lost(location, "record is lost: it was damaged, or is not known").report

    # -- reading

    def read(self, location: RecordLocation) -> Block:
        """The block of a record. From any thread.

        Raises `CorruptError`, `UnsupportedFormatError`.
        """
        key = _key(location)
        before: tuple[DataFile, int] | None = None
        for _ in range(_LOOKUPS_MAX):
            with self._lock:
                block = self._block_in_memory(key)
                if block is not None:
                    self._hits += 1
                    return block
                place = self._catalogue.find(location)
            if place is None:
                raise self._lost(location, "record is lost: it was damaged, or is not known")
            if place == before:
                raise self._lost(location, "file is not there")
            before = place
            try:
                block = self._read(*place, location.length)
            except FileNotFoundError:
                # Moved between the look-up and the opening of the file.
                continue
            with self._lock:
                self._misses += 1
                self._cache.put(key, block)
            return block
        raise self._lost(location, f"record was moved {_LOOKUPS_MAX} times while it was read")

    def _read(self, file: DataFile, offset: int, length: int) -> Block:
        path = self.directory / data_name(file.number)
        try:
            marker = file.marker or self._read_marker(file, path)
            data = self._disk.read(path, offset, length)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ReadError(f"{path}: can't be read: {error}") from error
        header, payload, what = parse_payload(marker or marker_of_record(data), offset, data)
        if header is not None and header.kind == RecordKind.HOLE:
            what = "was released before it was written"
        elif header is not None and not what and header.kind != RecordKind.MESSAGE:
            what = f"is a record of kind {header.kind}"
        elif not what and len(payload) + RECORD_HEADER_BYTES != length:
            what = f"is a record with {len(payload)} bytes of payload"
        if not what:
            try:
                return Block(payload)
            except BlockError as error:
                what = str(error)
        raise CorruptError(CorruptionReport(str(path), offset, length, what))

    def _read_marker(self, file: DataFile, path: Path) -> int:
        """0 if the file's header is damaged. Raises `CorruptError` if it is another file's."""
        header = parse_file_header(str(path), self._disk.read(path, 0, FILE_HEADER.size))
        if header is None:
            return 0
        if header.number != file.number:
            # All its records are valid, and none of them is what was put here.
            what = f"is store file {header.number}"
            raise CorruptError(CorruptionReport(str(path), 0, FILE_HEADER.size, what))
        file.marker = header.marker
        return header.marker

    def _block_in_memory(self, key: int) -> Block | None:
        return self._unwritten.get(key) or self._cache.get(key)

    def _lost(self, location: RecordLocation, what: str) -> CorruptError:
        path = self.directory / data_name(location.file)
        return CorruptError(CorruptionReport(str(path), location.offset, location.length, what))

    # -- writing

    def take(self) -> MessagesJob | None:
        """What has gathered since the last time, to be given to `write`; None if nothing."""
        if not self._gathered:
            return None
        job = MessagesJob(
            self.directory, self.persistent, self._jobs_taken, first=self._jobs_taken == 0
        )
        self._jobs_taken += 1
        for put in self._gathered.values():
            if not job.pieces or job.pieces[-1].file is not put.file:
                job.pieces.append(MessagesPiece(put.file, put.offset, put.file.written))
            job.pieces[-1].puts.append(put)
        self._gathered = {}
        return job

    def committed(self, job: MessagesJob) -> None:
        """`job` has been written: what is in it is durable."""
        assert job.number == self._jobs_committed, "jobs are committed out of order"
        self._jobs_committed += 1
        for piece in job.pieces:
            file = piece.file
            file.written = piece.end
            self._catalogue.highest_durable = max(self._catalogue.highest_durable, file.number)
            with self._lock:
                for put in piece.puts:
                    key = file.number << 32 | put.ordinal
                    if self._forget_unwritten(key) and put.block is not None:
                        self._cache.put(key, put.block)
            if file.sealed:
                self._sealed(file)

    def _forget_unwritten(self, key: int) -> bool:
        block = self._unwritten.pop(key, None)
        if block is None:
            return False
        self._unwritten_bytes -= RECORD_HEADER_BYTES + len(block.data)
        return True

    # -- deleting and moving

    def start_collecting(self) -> None:
        """All that is referred to has been shared: what isn't may be deleted from now on."""
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
        files = [file for file in self._catalogue.data_files() if file.end]
        maps = [*self._catalogue.moved_files()]
        size = sum(file.disk_bytes for file in files)
        live = sum(file.live_bytes for file in files)
        memory = self._cache.size_bytes + self._unwritten_bytes
        memory += _PUT_MEMORY_BYTES * (len(self._unwritten) + len(self._recent))
        memory += _FILE_MEMORY_BYTES * (len(files) + len(maps))
        memory += sum(file.counts.memory_bytes for file in files)
        memory += sum(file.counts.memory_bytes + file.table.memory_bytes for file in maps)
        return MessageStoreStatistics(
            files_now=len(files),
            maps_now=len(maps),
            file_bytes_now=size,
            records_now=sum(file.live_records for file in files),
            live_bytes_now=live,
            garbage_bytes_now=size - live,
            moved_bytes=self._collector.moved_bytes,
            compactions=self._collector.compactions,
            files_deleted=self._collector.files_deleted,
            records_shared=self._shared,
            holes=self._holes,
            cache_hits=self._hits,
            cache_misses=self._misses,
            cache_bytes_now=self._cache.size_bytes,
            memory_bytes_now=memory,
        )

    def check(self) -> None:
        """Asserts what has to hold between any two calls."""
        self._catalogue.check()
        assert self._unwritten_bytes == sum(
            RECORD_HEADER_BYTES + len(block.data) for block in self._unwritten.values()
        )
        for key, put in self._gathered.items():
            count = put.file.counts.get(put.ordinal)
            assert (count > 0) == (put.block is not None) == (key in self._unwritten), key


def _key(location: RecordLocation) -> int:
    return location.file << 32 | location.ordinal
