"""Reading a record, while compaction may be moving it. From any thread."""

from __future__ import annotations

import threading
from pathlib import Path

from ringmq_node.queue.block import Block, BlockError
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    RecordKind,
    parse_record,
)
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages.cache import BlockCache
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.data_file import marker_of_record, parse_file_header
from ringmq_node.storage.messages.files import DataFile, LostFile, data_name
from ringmq_node.storage.messages.unwritten import UnwrittenBlocks, key_of

# A reader whose file was removed looks the record up again, so often at most. Each time stands for
# a whole compaction that has gone by.
_LOOKUPS_MAX = 16

_LOST = "record is lost: it was damaged, or is not known"


class RecordReader:
    """Reads records from memory or from the disk.

    `lock` is held while the catalogue and the blocks in memory are looked at, and never during
    I/O. So a file may be moved and removed between the look-up and the read: then the read finds
    no file, and the record is looked up again.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        catalogue: Catalogue,
        unwritten: UnwrittenBlocks,
        cache: BlockCache,
        lock: threading.Lock,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._catalogue = catalogue
        self._unwritten = unwritten
        self._cache = cache
        self._lock = lock
        self.hits = 0
        self.misses = 0

    def read(self, location: RecordLocation) -> Block:
        """Raises `CorruptError`, `ReadError`, `UnsupportedFormatError`."""
        key = key_of(location)
        before: tuple[DataFile | LostFile, int] | None = None
        for _ in range(_LOOKUPS_MAX):
            with self._lock:
                block = self.in_memory(key)
                if block is not None:
                    self.hits += 1
                    return block
                found = self._catalogue.find(location)
            if found is None:
                raise self.lost(location)
            file, offset = found
            # At the same place as before: nobody has moved the record, so the file is gone.
            if found == before or isinstance(file, LostFile):
                raise self.lost(location, "file is not there")
            before = found
            try:
                block = self._read(file, offset, location.length)
            except FileNotFoundError:
                continue
            with self._lock:
                self.misses += 1
                # The record may have been released since the look-up. Then the block stays in the
                # cache for nothing until others push it out; nobody gets it, as no key comes twice.
                self._cache.put(key, block)
            return block
        raise self.lost(location, f"record was moved {_LOOKUPS_MAX} times while it was read")

    def check_record(self, location: RecordLocation) -> int:
        """Reads a record from the disk though its block may be in memory; returns its length, or 0
        if it isn't written yet. Raises as `read` does."""
        key = key_of(location)
        for _ in range(_LOOKUPS_MAX):
            with self._lock:
                if self._unwritten.get(key) is not None:
                    return 0
                found = self._catalogue.find(location)
            if found is None:
                raise self.lost(location)
            file, offset = found
            if isinstance(file, LostFile):
                raise self.lost(location, "file is not there")
            try:
                self._read(file, offset, location.length)
            except FileNotFoundError:
                continue  # Compaction has moved it meanwhile.
            return location.length
        raise self.lost(location, "file is not there")

    def in_memory(self, key: int) -> Block | None:
        """Under the lock."""
        return self._unwritten.get(key) or self._cache.get(key)

    def lost(self, location: RecordLocation, what: str = _LOST) -> CorruptError:
        path = self._directory / data_name(location.file)
        return CorruptError(CorruptionReport(str(path), location.offset, location.length, what))

    def _read(self, file: DataFile, offset: int, length: int) -> Block:
        path = self._directory / data_name(file.number)
        try:
            marker = file.marker or self._read_marker(file, path)
            data = self._disk.read(path, offset, length)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ReadError.of(path, error) from error
        # Compaction may have removed the file between the two reads, or since. Bytes that were read
        # before are those of the record all the same: files are never changed, nor numbers reused.
        header, what = parse_record(marker or marker_of_record(data), offset, data)
        if header is not None and header.kind == RecordKind.HOLE:
            what = "was released before it was written"
        elif header is not None and not what and header.kind != RecordKind.MESSAGE:
            what = f"is a record of kind {header.kind}"
        if not what:
            try:
                return Block(data, RECORD_HEADER_BYTES)
            except BlockError as error:
                what = str(error)
        raise CorruptError(CorruptionReport(str(path), offset, length, what))

    def _read_marker(self, file: DataFile, path: Path) -> int:
        """0 if the file's header is damaged. Raises `CorruptError` if it is another file's."""
        header = parse_file_header(str(path), self._disk.read(path, 0, FILE_HEADER.size))
        if header is None:
            return 0
        if header.number != file.number:
            # All records of that file are valid, and none of them was put at this location.
            what = f"this is store file {header.number}, expected {file.number}"
            raise CorruptError(CorruptionReport(str(path), 0, FILE_HEADER.size, what))
        # Without the lock: threads that do it at the same time write the same marker.
        file.marker = header.marker
        return header.marker
