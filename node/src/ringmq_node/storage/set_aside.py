"""The set-aside files of a data directory: written, listed, read, removed.

A file is written under another name, synced, and renamed; then the directory is synced. So after a
power cut there is a whole file or none, and `find` removes half-made ones. Nothing here fails the
store: when the disk takes no more, the replica keeps the log that it was about to cut.

All of it blocks. Errors are `OSError`, and those of a `StoreError` for a file that can't be used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run
from ringmq_node.storage.disk.data_directory import folder_name
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, StoreError
from ringmq_node.storage.format.formats import SET_ASIDE
from ringmq_node.storage.format.queue_folder import NEW_SUFFIX
from ringmq_node.storage.format.record_file import SPARSE_BYTES, RecordFile
from ringmq_node.storage.format.records import (
    END_PAYLOAD,
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    file_header,
    new_marker,
    parse_header,
    record_header,
)
from ringmq_node.storage.format.set_aside import (
    DIRECTORY,
    END_BYTES,
    INFO_BYTES_MAX,
    SetAsideInfo,
    file_name,
    name_of,
)


@dataclass(frozen=True, slots=True)
class SetAsideFile:
    """A whole file: what it is about, how many messages it has, how many had no body."""

    info: SetAsideInfo
    messages: int
    missing: int
    body_bytes: int
    file_bytes: int

    @property
    def name(self) -> str:
        return name_for(self.info)


@dataclass(frozen=True, slots=True)
class SetAsideRun:
    """Messages at consecutive positions."""

    first_position: int
    block: Block
    transient: bool


def name_for(info: SetAsideInfo) -> str:
    """The name under which operators know it."""
    return info.name(folder_name(info.queue_id))


class SetAsideWriter:
    """One file that is being made. Used by one thread at a time."""

    def __init__(self, disk: Disk, root: Path, info: SetAsideInfo) -> None:
        """Writes nothing yet. `root`: the data directory."""
        self._disk = disk
        self._root = root
        self._info = info
        self._path = root / DIRECTORY / file_name(name_for(info))
        self._new = self._path.with_name(self._path.name + NEW_SUFFIX)
        self._marker = new_marker()
        self._end = 0
        self._messages = 0
        self._body_bytes = 0

    def begin(self) -> None:
        self._disk.remove(self._new)
        header = file_header(SET_ASIDE, self._marker, 0)
        self._disk.write(self._new, 0, [header])
        self._end = len(header)
        self._append(RecordKind.SET_ASIDE, self._info.encode())

    def add(self, runs: Sequence[Run]) -> None:
        for run in runs:
            flags = FLAG_TRANSIENT if run.transient else 0
            self._append(RecordKind.ENTRY, run.block.view, flags=flags, number=run.first_position)
            self._messages += run.block.count
            self._body_bytes += run.block.body_bytes()

    def finish(self, missing: int) -> SetAsideFile:
        """The file is there for good when this returns. `missing`: live messages without a body."""
        payload = END_PAYLOAD.pack(self._body_bytes)
        self._append(RecordKind.END, payload, number=self._messages, epoch=missing)
        # Before the name: a file under its own name is whole, whatever cuts the power.
        self._disk.sync(self._new)
        self._disk.rename(self._new, self._path)
        self._disk.sync(self._path.parent)
        self._disk.sync(self._root)
        return SetAsideFile(self._info, self._messages, missing, self._body_bytes, self._end)

    def abandon(self) -> None:
        self._disk.remove(self._new)

    def _append(
        self,
        kind: RecordKind,
        payload: bytes | memoryview,
        *,
        flags: int = 0,
        number: int = 0,
        epoch: int = 0,
    ) -> None:
        header = record_header(
            self._marker, self._end, kind, payload, flags=flags, number=number, epoch=epoch
        )
        self._disk.write(self._new, self._end, [header, payload])
        self._end += len(header) + len(payload)


def find(disk: Disk, root: Path, *, repair: bool) -> tuple[list[SetAsideFile], list[str]]:
    """The files, in order of their names, and faults of those that can't be read.

    With `repair`, half-made ones are removed: only while no other process writes here.
    """
    found: list[SetAsideFile] = []
    faults: list[str] = []
    folder = root / DIRECTORY
    for name, size in sorted(disk.list(folder).items()):
        path = folder / name
        if name.endswith(NEW_SUFFIX):
            if repair:
                disk.remove(path)
        elif name_of(name) is not None:
            try:
                found.append(describe(disk, path, size))
            except (StoreError, OSError) as error:
                faults.append(f"{path}: {error}")
    return found, faults


def describe(disk: Disk, path: Path, size: int) -> SetAsideFile:
    """Reads the first and the last record only."""
    file = _opened(disk, path, size)
    info = _info_of(file)
    at = size - END_BYTES
    data = disk.read(path, max(at, 0), END_BYTES)
    header = parse_header(file.marker, at, data)
    if header is None or header.kind != RecordKind.END or header.end != size:
        raise _corrupt(path, max(at, 0), END_BYTES, "no end record")
    (body_bytes,) = END_PAYLOAD.unpack_from(data, RECORD_HEADER_BYTES)
    return SetAsideFile(info, header.number, header.epoch, body_bytes, size)


def read(
    disk: Disk, path: Path, size: int, on_fault: Callable[[CorruptionReport], None]
) -> Iterator[SetAsideRun]:
    """The messages, in order of their positions. Damaged records are told to `on_fault`, and
    passed over."""
    file = _opened(disk, path, size)
    offset = FILE_HEADER.size
    while offset < size:
        header, fault = file.header_at(offset)
        after = file.end_of(header, offset)
        if header is not None and not fault and header.kind == RecordKind.ENTRY:
            block, fault = _block_of(file, header)
            if block is not None:
                yield SetAsideRun(header.number, block, bool(header.flags & FLAG_TRANSIENT))
        if fault:
            on_fault(CorruptionReport(str(path), offset, after - offset, fault))
        offset = after


def _block_of(file: RecordFile, header: Header) -> tuple[Block | None, str]:
    if fault := file.payload_fault(header):
        return None, fault
    try:
        return Block(file.payload(header, header.length)), ""
    except ValueError as error:
        return None, str(error)


def _opened(disk: Disk, path: Path, size: int) -> RecordFile:
    file = RecordFile(str(path), SET_ASIDE, size, lambda at, count: disk.read(path, at, count))
    if not file.marker:
        raise _corrupt(path, 0, size, file.unreadable)
    return file


def _info_of(file: RecordFile) -> SetAsideInfo:
    header, fault = file.header_at(FILE_HEADER.size, SPARSE_BYTES)
    if header is None or header.kind != RecordKind.SET_ASIDE or header.length > INFO_BYTES_MAX:
        raise _corrupt(Path(file.name), FILE_HEADER.size, 0, fault or "no description")
    if fault := fault or file.payload_fault(header):
        raise _corrupt(Path(file.name), header.offset, header.length, fault)
    try:
        return SetAsideInfo.decode(file.payload(header, header.length))
    except (ValueError, json.JSONDecodeError) as error:
        raise _corrupt(Path(file.name), header.offset, header.length, str(error)) from error


def _corrupt(path: Path, offset: int, length: int, what: str) -> CorruptError:
    return CorruptError(CorruptionReport(str(path), offset, length, what))
