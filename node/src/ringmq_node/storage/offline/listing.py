"""One file, record by record: the fields of each, the damage in between, and the sums.

A record shows its own fields, but for two numbers that come from elsewhere: how many of its
messages live, by the state of its queue; and how many references a stored body has, by all queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, FLAG_TRANSIENT, Header, RecordKind
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.files import parse_name
from ringmq_node.storage.messages.relocation import LOST
from ringmq_node.storage.offline import details as details_by_kind
from ringmq_node.storage.offline.contents import DataDirectory
from ringmq_node.storage.offline.faults import plain, relative
from ringmq_node.storage.offline.file_kinds import BODIES, FORMATS, MAP
from ringmq_node.storage.offline.shown import Details, FileSummary, LiveMessages, ShownRecord
from ringmq_node.storage.offline.store_references import StoreReferences
from ringmq_node.storage.offline.walk import open_records, stretches


class FileListing:
    """One file. `records` goes through it once, and fills `summary`."""

    def __init__(
        self,
        directory: DataDirectory,
        path: Path,
        size: int,
        kind: str,
        *,
        live: LiveMessages | None = None,
        references: StoreReferences | None = None,
    ) -> None:
        """`live` for files of a queue, `references` for those of the message store.

        Raises `UnsupportedFormatError`, `OSError`.
        """
        self._directory = directory
        self._path = path
        self._kind = kind
        self._name = relative(directory.root, path)
        self._live = live
        self._references = references
        self._file: RecordFile | None = None
        number: int | None = None
        if kind == MAP:
            parsed = parse_name(path.name)
            number = parsed[0] if parsed is not None else None
        else:
            owned = kind != BODIES
            self._file = open_records(directory.disk, path, FORMATS[kind], size, owned=owned)
            number = self._file.number
        self.summary = FileSummary(self._name, kind, number, size)

    def records(self) -> Iterator[ShownRecord]:
        """All records in order, damage in between. Raises `OSError`."""
        for record in self._moved() if self._file is None else self._framed(self._file):
            self.summary.add(record)
            yield record

    # -- maps

    def _moved(self) -> Iterator[ShownRecord]:
        size = self.summary.size_bytes
        data = self._directory.disk.read(self._path, 0, size)
        number = self.summary.number
        try:
            table = relocation.decode(self._name, -1 if number is None else number, data)
        except relocation.MapError as error:
            yield self._damage(0, size, str(error))
            return
        columns = (table.ordinals, table.files, table.new_ordinals, table.offsets)
        for row, (ordinal, file, new_ordinal, offset) in enumerate(zip(*columns, strict=True)):
            lost = file == LOST
            details: Details = {"file": file, "ordinal": new_ordinal, "offset": offset}
            yield ShownRecord(
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

    def _framed(self, file: RecordFile) -> Iterator[ShownRecord]:
        for report in file.corruptions:
            yield self._damage(report.offset, report.length, report.what)
        if not file.marker:
            yield self._damage(0, self.summary.size_bytes, file.unreadable)
            return
        describe = details_by_kind.BY_FILE_KIND[self._kind]
        ordinal = 0
        for offset, end, header, what in stretches(file, payloads=True):
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
            # A record with a damaged payload is one of the ordinals. Of a damaged header nobody
            # can say how many records it stands for.
            ordinal += header is not None
            yield self._damage(offset, end - offset, what)

    def _damage(self, offset: int, length: int, what: str) -> ShownRecord:
        return ShownRecord(self._name, offset, length, "damage", fault=plain(what))

    def _record(self, header: Header, bodies: list[BodyRange], details: Details) -> ShownRecord:
        messages, size = self._live.of(bodies) if self._live is not None else (None, None)
        return ShownRecord(
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
            messages,
            size,
            details,
        )

    def _stored_record(
        self, header: Header, bodies: list[BodyRange], details: Details, ordinal: int
    ) -> ShownRecord:
        """Its header has a message id for number and epoch; its number here is its ordinal."""
        messages = sum(body.last - body.first + 1 for body in bodies)
        size = sum(body.body_bytes for body in bodies)
        count = details["references"] = self._references_to(ordinal)
        return ShownRecord(
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

    def _references_to(self, ordinal: int) -> int | None:
        number = self.summary.number
        if self._references is None or number is None:
            return None
        return self._references.count(RecordLocation(number, ordinal, 0, 0))


def _kind_name(header: Header) -> str:
    return RecordKind(header.kind).name.lower().replace("_", " ")
