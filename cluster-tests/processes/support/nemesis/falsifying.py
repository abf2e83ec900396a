"""Other bodies in the files of a node that is stopped, with checksums that are right."""

from __future__ import annotations

from pathlib import Path

from ringmq_node.storage.format.formats import JOURNAL, SEGMENT
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import RECORD_HEADER_BYTES, RecordKind, record_header


def falsify(folder: Path, body: bytes, other: bytes) -> None:
    """Gives an embedded message another body of the same length, wherever it is below `folder`."""
    assert len(body) == len(other)
    found = False
    for format, suffix in ((JOURNAL, "jif"), (SEGMENT, "idx")):
        for path in folder.rglob(f"*.{suffix}"):
            data = bytearray(path.read_bytes())
            file = RecordFile(str(path), format, len(data), lambda at, n: bytes(data[at : at + n]))  # noqa: B023 - called here
            for header, _ in file.scan(lambda header, payload: header).records:
                place = data.find(body, header.offset, header.end)
                if place < 0:
                    continue
                found = True
                data[place : place + len(body)] = other
                start = header.offset + RECORD_HEADER_BYTES
                data[header.offset : start] = record_header(
                    file.marker,
                    header.offset,
                    RecordKind(header.kind),
                    bytes(data[start : header.end]),
                    flags=header.flags,
                    number=header.number,
                    epoch=header.epoch,
                    synced=header.synced,
                )
            path.write_bytes(data)
    assert found, f"{body!r} is in no file of {folder}"
