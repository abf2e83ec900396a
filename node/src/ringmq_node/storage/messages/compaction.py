"""Moving what lives of files that are mostly garbage: the steps, and what threads do in them.

One compaction takes the live records of some files (the victims) into one new file (the
target), and goes through these steps, each a job for a thread, with the loop between them:

1. `CopyJob`, many times: copies a bounded piece of one victim to the end of the target. What
   was released meanwhile is not in the next piece.
2. `PublishJob`: syncs the target and the directory; writes the map of each victim, and anew
   each map that leads into a victim; syncs the directory. When the loop hears that it is
   done, it looks things up at their new places, at once for all of them.
3. `RemoveJob`: removes the victims. Only now, so a reader that finds no file where it has just
   looked one up can look again, and will find it elsewhere.

A map leads to where the record is, never to another map. Two kinds of files keep it so: those
that `put` has written, whose locations callers have, get a map when they are moved; those
that compaction has written are known to maps only, and these are written anew.

The power may be cut at any point:

* before the target and its name are durable: no map mentions it. What is there of it at a
  restart is referred to by nobody, and removed.
* with a map, and the victim still there: **the data file counts, the map is removed**. The
  victim is whole, whatever became of the rest.
* with some maps anew and others old: each leads to a place that is durable, the target or
  a victim, and a victim goes only when all maps are durable.

A record whose payload is damaged is not copied: it is reported, and its row in the map says
`LOST`, so that reading it raises `CorruptError` for ever. After a damaged header nobody knows
any more which record is which: if there are live ones behind it, the file is left alone.

Transient stores do the same without maps and syncs: after a restart they are empty.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport, UnsupportedFormatError
from ringmq_node.storage.format.formats import MESSAGE_FILE
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    file_header,
    parse_payload,
    record_header,
)
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.files import NEW_SUFFIX, data_name, map_name
from ringmq_node.storage.messages.relocation import LOST, Table
from ringmq_node.storage.messages.walk import (
    Window,
    marker_of_record,
    parse_file_header,
    read_record_header,
)

# Records looked at in one piece, whether they are copied or not.
_RECORDS_MAX = 16_384

# File, ordinal and offset.
Row = tuple[int, int, int]


def _column() -> array[int]:
    return array("I")


@dataclass(slots=True, eq=False)
class CompactionJob:
    """One step. `RemoveJob`, `CopyJob` or `PublishJob`."""

    directory: Path
    persistent: bool
    # What the step has found damaged.
    corruptions: list[CorruptionReport] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class RemoveJob(CompactionJob):
    names: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Moves:
    """What has been copied of one victim, in the order of its records."""

    number: int
    ordinals: array[int] = field(default_factory=_column)
    new_ordinals: array[int] = field(default_factory=_column)
    offsets: array[int] = field(default_factory=_column)
    lengths: array[int] = field(default_factory=_column)
    # Live, but damaged.
    lost: list[int] = field(default_factory=list)

    def extend(self, more: Moves) -> None:
        assert more.number == self.number
        self.ordinals += more.ordinals
        self.new_ordinals += more.new_ordinals
        self.offsets += more.offsets
        self.lengths += more.lengths
        self.lost += more.lost


@dataclass(slots=True, eq=False)
class Place:
    """Where in a file the next record is read or written."""

    number: int
    marker: int
    offset: int
    ordinal: int


@dataclass(slots=True, eq=False)
class CopyJob(CompactionJob):
    """Copies live records of `source`, from its place on, to `target`. Moves both places."""

    source: Place = field(default_factory=lambda: Place(0, 0, 0, 0))
    target: Place = field(default_factory=lambda: Place(0, 0, 0, 0))
    # Not 0 for each ordinal of the source that is live.
    live: bytes = b""
    bytes_max: int = 0
    planned_at: float = 0.0
    # Results.
    moves: Moves = field(default_factory=lambda: Moves(0))
    bytes_copied: int = 0
    ended: bool = False
    # A header is damaged, and what is behind it lives: the source has to stay.
    stuck: bool = False


@dataclass(slots=True, eq=False)
class Rebuilt:
    """A new table for file `number`; `kept` are the rows of the old one that are in it.

    Of a victim, which had no table, `kept` are the ordinals.
    """

    number: int
    table: Table
    kept: Sequence[int]


@dataclass(slots=True, eq=False)
class PublishJob(CompactionJob):
    target: int = 0
    # Whether there is such a file: there was anything to copy.
    target_written: bool = False
    # Victims that get a map.
    direct: list[Moves] = field(default_factory=list)
    # Victims that maps lead to, and these maps with their files' numbers.
    indirect: list[Moves] = field(default_factory=list)
    tables: list[tuple[int, Table]] = field(default_factory=list)
    # Results.
    rebuilt: list[Rebuilt] = field(default_factory=list)


def compact(disk: Disk, job: CompactionJob) -> None:
    """Does one step. Runs in a thread; raises `OSError`."""
    match job:
        case RemoveJob():
            for name in job.names:
                disk.remove(job.directory / name)
            if job.persistent:
                disk.sync(job.directory)
        case CopyJob():
            _Copier(disk, job).run()
        case PublishJob():
            _publish(disk, job)
        case _:
            raise AssertionError(f"unknown step {job!r}")


class _Copier:
    """One `CopyJob` being done."""

    def __init__(self, disk: Disk, job: CopyJob) -> None:
        self._disk = disk
        self._job = job
        self._path = job.directory / data_name(job.source.number)
        self._window = Window(partial(disk.read, self._path))
        self._buffers: list[bytes] = []
        job.moves.number = job.source.number

    def run(self) -> None:
        job = self._job
        target = job.target
        start = target.offset
        if start == 0:
            self._buffers.append(file_header(MESSAGE_FILE, target.marker, target.number))
            target.offset = FILE_HEADER.size
        self._copy()
        if target.offset > max(start, FILE_HEADER.size):
            self._disk.write(job.directory / data_name(target.number), start, self._buffers)
        else:
            target.offset = start

    def _copy(self) -> None:
        job, source = self._job, self._job.source
        live_end = len(job.live.rstrip(b"\0"))
        if not source.marker:
            self._find_marker()
        for _ in range(_RECORDS_MAX):
            if source.ordinal >= live_end:
                job.ended = True
                return
            if job.bytes_copied >= job.bytes_max:
                return
            header = read_record_header(self._window, source.marker, source.offset)
            if header is None:
                what = f"no valid record {source.ordinal}, so the file can't be compacted"
                self._report(source.offset, RECORD_HEADER_BYTES, what)
                job.stuck = job.ended = True
                return
            if job.live[source.ordinal]:
                self._copy_record(header)
            source.offset = header.end
            source.ordinal += 1

    def _copy_record(self, header: Header) -> None:
        job, source, target = self._job, self._job.source, self._job.target
        length = RECORD_HEADER_BYTES + header.length
        what = "was released before it was written"
        payload = b""
        if header.kind == RecordKind.MESSAGE:
            data = self._window.get(header.offset, length)
            _, payload, what = parse_payload(source.marker, header.offset, data)
        if what:
            self._report(header.offset, length, what)
            job.moves.lost.append(source.ordinal)
            return
        framed = record_header(
            target.marker,
            target.offset,
            RecordKind.MESSAGE,
            payload,
            number=header.number,
            epoch=header.epoch,
        )
        self._buffers += (framed, payload)
        job.moves.ordinals.append(source.ordinal)
        job.moves.new_ordinals.append(target.ordinal)
        job.moves.offsets.append(target.offset)
        job.moves.lengths.append(length)
        job.bytes_copied += length
        target.offset += length
        target.ordinal += 1

    def _find_marker(self) -> None:
        source = self._job.source
        try:
            header = parse_file_header(str(self._path), self._window.get(0, FILE_HEADER.size))
        except UnsupportedFormatError as error:
            # No record of it will be valid, so it is left alone.
            self._report(0, FILE_HEADER.size, str(error))
            return
        if header is not None and header.number != source.number:
            self._report(0, FILE_HEADER.size, f"is store file {header.number}")
            return
        if header is not None:
            source.marker = header.marker
            return
        self._report(0, FILE_HEADER.size, "file header is damaged")
        source.marker = marker_of_record(self._window.get(source.offset, RECORD_HEADER_BYTES))

    def _report(self, offset: int, length: int, what: str) -> None:
        self._job.corruptions.append(CorruptionReport(str(self._path), offset, length, what))


def _publish(disk: Disk, job: PublishJob) -> None:
    target = job.directory / data_name(job.target)
    if job.persistent and job.target_written:
        disk.sync(target)
        disk.sync(job.directory)
    places = {moves.number: _places_of(moves, job.target) for moves in job.indirect}
    job.rebuilt = [_table_of(moves, job.target) for moves in job.direct]
    job.rebuilt += [_led_anew(number, table, places) for number, table in job.tables]
    if not job.persistent:
        return
    for rebuilt in job.rebuilt:
        path = job.directory / map_name(rebuilt.number)
        new = path.with_name(path.name + NEW_SUFFIX)
        disk.write(new, 0, [relocation.encode(rebuilt.number, rebuilt.table)], sync=True)
        disk.rename(new, path)
    disk.sync(job.directory)


def _places_of(moves: Moves, target: int) -> dict[int, Row]:
    """Old ordinal to new file, ordinal and offset."""
    moved = zip(moves.ordinals, moves.new_ordinals, moves.offsets, strict=True)
    places = {old: (target, ordinal, offset) for old, ordinal, offset in moved}
    return places | dict.fromkeys(moves.lost, (LOST, 0, 0))


def _table_of(moves: Moves, target: int) -> Rebuilt:
    places = _places_of(moves, target)
    kept = sorted(places)
    return _rebuilt(moves.number, kept, kept, [places[ordinal] for ordinal in kept])


def _led_anew(number: int, table: Table, places: dict[int, dict[int, Row]]) -> Rebuilt:
    """The table with what it had in the victims at its new places.

    What of a victim has neither moved nor been lost was not live, and is left out.
    """
    kept: list[int] = []
    rows: list[Row] = []
    columns = (table.files, table.new_ordinals, table.offsets)
    for row, old in enumerate(zip(*columns, strict=True)):
        file, ordinal, _ = old
        new = places[file].get(ordinal) if file in places else old
        if new is not None:
            kept.append(row)
            rows.append(new)
    return _rebuilt(number, kept, [table.ordinals[row] for row in kept], rows)


def _rebuilt(
    number: int, kept: Sequence[int], ordinals: Sequence[int], rows: Sequence[Row]
) -> Rebuilt:
    files, new_ordinals, offsets = zip(*rows, strict=True) if rows else ((), (), ())
    table = Table(
        array("I", ordinals), array("I", files), array("I", new_ordinals), array("I", offsets)
    )
    return Rebuilt(number, table, array("I", kept))
