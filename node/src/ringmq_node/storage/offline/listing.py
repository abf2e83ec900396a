"""Single records, as they are in a file: what each says, and whether anything needs it still.

Nothing is interpreted that the record doesn't say itself, but for two numbers: how many of its
messages live, by the state of its queue; and how many references a stored body has, by all queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.ops import Outline, Remove, Requeue
from ringmq_node.storage.format import formats, journal_records, tables
from ringmq_node.storage.format.checkpoint import Checkpoint
from ringmq_node.storage.format.record_file import HEAD_BYTES_MAX, RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, FLAG_TRANSIENT, Header, RecordKind
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.data_file import join_id
from ringmq_node.storage.messages.files import parse_name
from ringmq_node.storage.messages.relocation import LOST
from ringmq_node.storage.offline.bodies import References
from ringmq_node.storage.offline.contents import DataDirectory
from ringmq_node.storage.offline.faults import plain, relative
from ringmq_node.storage.offline.walk import block_body, open_records, steps
from ringmq_node.storage.queue.choice import choose, live_bytes
from ringmq_node.storage.queue.recovery import Recovered

JOURNAL, SEGMENT, BODIES, MAP = "journal", "segment", "bodies", "map"
_FORMATS: Final = {
    JOURNAL: formats.JOURNAL,
    SEGMENT: formats.SEGMENT,
    BODIES: formats.MESSAGE_FILE,
    MAP: formats.RELOCATION_MAP,
}
_KINDS: Final = {format.magic: kind for kind, format in _FORMATS.items()}
_SUFFIXES: Final = {".jif": JOURNAL, ".idx": SEGMENT, ".rdq": BODIES, ".map": MAP}
# Of one record; how many there are is always said.
_SHOWN_MAX: Final = 20

Details = dict[str, object]


@dataclass(frozen=True, slots=True)
class Record:
    """One record, or with `fault` bytes that are none. `details` by kind, see docs/cli.md."""

    file: str
    offset: int
    length: int
    kind: str
    number: int = 0
    epoch: int = 0
    synced: int = 0
    transient: bool = False
    # Where the record has bodies, or refers to some.
    messages: int = 0
    body_bytes: int = 0
    # Of a record of the message store all, if anything refers to it. None: not known.
    messages_live: int | None = None
    bytes_live: int | None = None
    details: Details = field(default_factory=dict)
    fault: str | None = None


@dataclass(slots=True)
class FileSummary:
    """What `Record`s of one file add up to; `number` is None where the header is damaged."""

    file: str
    kind: str
    number: int | None
    size_bytes: int
    records: int = 0
    messages: int = 0
    body_bytes: int = 0
    # None: not known.
    messages_live: int | None = 0
    bytes_live: int | None = 0
    faults: int = 0

    def add(self, record: Record) -> None:
        self.records += record.fault is None
        self.faults += record.fault is not None
        self.messages += record.messages
        self.body_bytes += record.body_bytes
        if record.fault is not None:
            return
        if None in (self.messages_live, record.messages_live):
            self.messages_live = self.bytes_live = None
        else:
            self.messages_live = (self.messages_live or 0) + (record.messages_live or 0)
            self.bytes_live = (self.bytes_live or 0) + (record.bytes_live or 0)


@dataclass(frozen=True, slots=True)
class Lives:
    """Tells a queue's living messages from garbage."""

    found: Recovered

    def of(self, bodies: Sequence[BodyRange]) -> tuple[int, int]:
        """How many live, and their bytes."""
        live = self.found.state.live
        chosen = choose(bodies, live, RangeSet(), RangeSet(), self.found.cuts)
        count = sum(choice[3] for choice in chosen)
        return count, sum(live_bytes(choice, live) for choice in chosen)


def kind_of(directory: DataDirectory, path: Path) -> str | None:
    """What a file is, by its first bytes, or else by its name; None for no file of records."""
    kind = _KINDS.get(directory.disk.read(path, 0, 8))
    return kind or next(map(_SUFFIXES.get, path.suffixes), None)


class FileListing:
    """One file. `records` goes through it once, and fills `summary`."""

    def __init__(
        self,
        directory: DataDirectory,
        path: Path,
        size: int,
        kind: str,
        *,
        lives: Lives | None = None,
        references: References | None = None,
    ) -> None:
        """`lives` for files of a queue, `references` for those of the message store.

        Raises `UnsupportedFormatError`, `OSError`.
        """
        self._directory = directory
        self._path = path
        self._kind = kind
        self._name = relative(directory.root, path)
        self._lives = lives
        self._references = references
        self._file: RecordFile | None = None
        number: int | None = None
        if kind == MAP:
            parsed = parse_name(path.name)
            number = parsed[0] if parsed is not None else None
        else:
            owned = kind != BODIES
            self._file = open_records(directory.disk, path, _FORMATS[kind], size, owned=owned)
            number = self._file.number
        self.summary = FileSummary(self._name, kind, number, size)

    def records(self) -> Iterator[Record]:
        """All records in order, damage in between. Raises `OSError`."""
        for record in self._moved() if self._file is None else self._framed(self._file):
            self.summary.add(record)
            yield record

    # -- maps

    def _moved(self) -> Iterator[Record]:
        size = self.summary.size_bytes
        data = self._directory.disk.read(self._path, 0, size)
        number = self.summary.number
        try:
            table = relocation.decode(self._name, -1 if number is None else number, data)
        except relocation.MapError as error:
            yield Record(self._name, 0, size, "damage", fault=str(error))
            return
        columns = (table.ordinals, table.files, table.new_ordinals, table.offsets)
        for row, (ordinal, file, new_ordinal, offset) in enumerate(zip(*columns, strict=True)):
            lost = file == LOST
            details: Details = {"file": file, "ordinal": new_ordinal, "offset": offset}
            yield Record(
                self._name,
                FILE_HEADER.size + relocation.ENTRY_BYTES * row,
                relocation.ENTRY_BYTES,
                "lost" if lost else "moved",
                ordinal,
                messages_live=0,
                bytes_live=0,
                details={} if lost else details,
            )

    # -- files of records

    def _framed(self, file: RecordFile) -> Iterator[Record]:
        for report in file.corruptions:
            yield Record(
                self._name, report.offset, report.length, "damage", fault=plain(report.what)
            )
        if not file.marker:
            size = self.summary.size_bytes
            yield Record(self._name, 0, size, "damage", fault=file.unreadable)
            return
        describe = {JOURNAL: self._of_journal, SEGMENT: self._of_segment}.get(
            self._kind, self._of_bodies
        )
        ordinal = 0
        for offset, end, header, what in steps(file, payloads=True):
            if header is not None and not what:
                try:
                    bodies, details = describe(file, header)
                except ValueError as error:
                    what = str(error)
                else:
                    if self._kind == BODIES:
                        yield self._stored_record(header, bodies, details, ordinal)
                    else:
                        yield self._record(header, bodies, details)
                    ordinal += 1
                    continue
            ordinal += header is not None
            yield Record(self._name, offset, end - offset, "damage", fault=plain(what))

    def _count(self, ordinal: int) -> int | None:
        number = self.summary.number
        if self._references is None or number is None:
            return None
        return self._references.count(RecordLocation(number, ordinal, 0, 0))

    def _record(self, header: Header, bodies: list[BodyRange], details: Details) -> Record:
        lives, live_bytes = self._lives.of(bodies) if self._lives is not None else (None, None)
        return Record(
            self._name,
            header.offset,
            header.end - header.offset,
            _kind_name(header),
            header.number,
            header.epoch,
            header.synced,
            bool(header.flags & FLAG_TRANSIENT),
            sum(body.last - body.first + 1 for body in bodies),
            sum(body.body_bytes for body in bodies),
            lives,
            live_bytes,
            details,
        )

    def _stored_record(
        self, header: Header, bodies: list[BodyRange], details: Details, ordinal: int
    ) -> Record:
        """Its header has a message id for number and epoch; its number here is its ordinal."""
        messages = sum(body.last - body.first + 1 for body in bodies)
        size = sum(body.body_bytes for body in bodies)
        count = details["references"] = self._count(ordinal)
        return Record(
            self._name,
            header.offset,
            header.end - header.offset,
            _kind_name(header),
            number=ordinal,
            synced=header.synced,
            messages=messages,
            body_bytes=size,
            messages_live=None if count is None else messages if count else 0,
            bytes_live=None if count is None else size if count else 0,
            details=details,
        )

    def _of_journal(self, file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
        payload = file.payload(header, HEAD_BYTES_MAX)
        if header.kind == RecordKind.CHECKPOINT:
            return [], _checkpoint(journal_records.decode_checkpoint(header, payload))
        said = journal_records.decode(header, payload, self.summary.number or 0)
        details: Details = {}
        match said.op:
            case Outline() as op:
                details = {
                    "op": "publish",
                    "first": op.first_position,
                    "last": op.last_position,
                    "producer": plain(op.producer_id.decode("utf-8", "backslashreplace")),
                    "sequence": op.first_sequence,
                    "message_id": op.message_id.hex(),
                    # A hollow record has no bodies, and still says how many there were.
                    "published": op.count,
                }
                if said.counts_with:
                    details["counts_with"] = said.counts_with
            case Remove(ranges) | Requeue(ranges):
                name = "remove" if isinstance(said.op, Remove) else "requeue"
                details = {"op": name, **_ranges("ranges", ranges, len(ranges))}
        if said.next_position is not None:
            details["next_position"] = said.next_position
        return said.bodies, details | _places(said.bodies)

    def _of_segment(self, file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
        if header.kind == RecordKind.ENTRY:
            bodies = [block_body(file, header, header.number, header.epoch)]
        elif header.kind == RecordKind.STORED_ENTRY:
            payload = file.payload(header, header.length)
            bodies = tables.stored(header, payload, header.number, header.epoch)
        else:
            raise ValueError(f"record of kind {header.kind} in a segment")
        return bodies, _places(bodies)

    def _of_bodies(self, file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
        details: Details = {
            "message_id": join_id(header).hex() if header.number or header.epoch else ""
        }
        if header.kind == RecordKind.HOLE:
            return [], details
        if header.kind != RecordKind.MESSAGE:
            raise ValueError(f"record of kind {header.kind} in a message store")
        return [block_body(file, header)], details


def _kind_name(header: Header) -> str:
    return RecordKind(header.kind).name.lower().replace("_", " ")


def _checkpoint(found: Checkpoint) -> Details:
    state = found.state
    return {
        "generation": found.generation,
        "damaged": found.damaged,
        "last_op": state.last_number,
        "next_position": state.next_position,
        "epochs": len(state.epochs),
        "producers": len(state.producers),
        "cuts": len(found.cuts),
        "redelivered": len(state.redelivered),
        "transient": len(state.transient),
        "messages_live": len(state.live),
        **_ranges("live", state.live, state.live.range_count),
    }


def _ranges(name: str, ranges: RangeSet | Sequence[Range], total: int) -> Details:
    return {name: [*islice(ranges, _SHOWN_MAX)], f"{name}_total": total}


def _places(bodies: list[BodyRange]) -> Details:
    """The positions of a record, and where the bodies are that aren't in it."""
    if not bodies:
        return {}
    details: Details = {"first": bodies[0].first, "last": bodies[-1].last}
    stored = [body for body in bodies if body.location is not None]
    if stored:
        details["locations"] = [
            {
                "file": body.location.file,
                "ordinal": body.location.ordinal,
                "offset": body.location.offset,
                "length": body.location.length,
                "start": body.start,
                "messages": body.last - body.first + 1,
            }
            for body in stored[:_SHOWN_MAX]
            if body.location is not None
        ]
        details["locations_total"] = len(stored)
    return details


def list_files(directory: DataDirectory) -> Iterator[tuple[str, str, str, int]]:
    """File, what it is, of which queue or store, and its size in bytes, for all of the store."""
    for queue in directory.queues:
        for name in sorted(queue.sizes, key=order_of):
            kind = next(map(_SUFFIXES.get, Path(name).suffixes), None)
            if kind is not None:
                owner = plain(queue.label or queue.name or queue.path.name)
                path = queue.path / name
                yield relative(directory.root, path), kind, owner, queue.sizes[name]
    for store in (directory.persistent, directory.transient):
        files = directory.store_files(store)
        for name in sorted(files, key=order_of):
            path = store / name
            yield relative(directory.root, path), _SUFFIXES[path.suffix], store.name, files[name]


def order_of(name: str) -> tuple[str, int, str]:
    """To sort names of files by: journals by generation, the current one last; then segments."""
    stem, _, suffix = name.partition(".")
    number = int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 20 else 1 << 62
    order = {"jif": "0", "idx": "1"}.get(suffix, suffix)
    return order, number, name
