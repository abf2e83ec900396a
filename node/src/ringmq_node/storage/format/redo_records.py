"""The records of the commit log: records of many journals, and where in each of them they belong.

A log gives each journal a number when it first has bytes of it, and says then which journal that
is. A journal's record lies in the log without what the log knows already: its two checksums and the
marker. `decode` makes its bytes again, exactly as the journal has them.

The payload of a record of the log, little endian:

    journals     u32       that get their numbers here
    records      u32       of journals
    per journal  32 bytes
      number     u32       in this log
      folder     16 bytes  the name of the queue's folder, as 16 bytes for its 32 hex digits
      generation u64       the journal's
      marker     u32       the journal's: no other file of this folder and generation has it
    per record   34 bytes
      journal    u32       its number
      offset     u32       of the record, in the journal
      unsynced   u32       the offset less what the record says of `synced`
      length     u32       as in the record's header, and so are
      kind       u8
      flags      u8
      number     u64
      epoch      u64
    payloads of all records, one after another
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ringmq_node.storage.format.records import RECORD_PREFIX, RECORD_REST, record_header

_COUNTS: Final = struct.Struct("<II")
_JOURNAL: Final = struct.Struct("<I16sQI")
_RECORD: Final = struct.Struct("<IIIIBBQQ")
FOLDER_DIGITS: Final = 32
# Of a journal: a record that ends behind it has no place in a log.
OFFSET_MAX: Final = 0xFFFF_FFFF


class Journal(NamedTuple):
    """Which journal. `folder` is the name of the queue's folder."""

    folder: str
    generation: int
    marker: int


class RedoRow(NamedTuple):
    """One record of a journal, but for its payload. `journal` is its number in the log."""

    journal: int
    offset: int
    unsynced: int
    length: int
    kind: int
    flags: int
    number: int
    epoch: int


class RedoPiece(NamedTuple):
    """One record of a journal, header and payload, as it lies there."""

    journal: Journal
    offset: int
    data: bytes


class RedoRows:
    """Gathers what one record of the log has."""

    def __init__(self) -> None:
        self._journals: list[bytes] = []
        self._rows: list[bytes] = []
        self._payloads: list[bytes] = []

    def name(self, number: int, journal: Journal) -> None:
        """The log calls `journal` by this number from here on."""
        folder = bytes.fromhex(journal.folder)
        self._journals.append(_JOURNAL.pack(number, folder, journal.generation, journal.marker))

    def add(self, number: int, offset: int, buffers: Sequence[bytes]) -> None:
        """Records of the journal with this number, from `offset` on: header and payload each."""
        rows, unpack_rest, prefix = self._rows, RECORD_REST.unpack_from, RECORD_PREFIX.size
        payloads = buffers[1::2]
        for header, payload in zip(buffers[::2], payloads, strict=True):
            _, length, kind, flags, _, its_number, epoch, synced = unpack_rest(header, prefix)
            rows.append(
                _RECORD.pack(
                    number, offset, offset - synced, length, kind, flags, its_number, epoch
                )
            )
            offset += len(header) + len(payload)
        self._payloads += payloads

    def encode(self) -> bytes:
        counts = _COUNTS.pack(len(self._journals), len(self._rows))
        return b"".join([counts, *self._journals, *self._rows, *self._payloads])


def decode_tables(payload: bytes) -> tuple[dict[int, Journal], list[RedoRow], int]:
    """The journals that get their numbers in a record, its rows, and where the payloads begin.

    Raises `ValueError` if the payload isn't as `RedoRows` writes it.
    """
    if len(payload) < _COUNTS.size:
        raise ValueError("no table of records")
    journals, records = _COUNTS.unpack_from(payload)
    rows_at = _COUNTS.size + journals * _JOURNAL.size
    at = rows_at + records * _RECORD.size
    if at > len(payload):
        raise ValueError(f"tables of {journals} journals, {records} records go beyond the payload")
    named = {
        number: Journal(folder.hex(), generation, marker)
        for number, folder, generation, marker in _JOURNAL.iter_unpack(
            payload[_COUNTS.size : rows_at]
        )
    }
    rows = [*map(RedoRow._make, _RECORD.iter_unpack(payload[rows_at:at]))]
    if at + sum(row.length for row in rows) != len(payload):
        raise ValueError("the records' payloads don't fill the record")
    return named, rows, at


def decode(
    payload: bytes, known: Mapping[int, Journal]
) -> tuple[dict[int, Journal], list[RedoPiece]]:
    """The journals that get their numbers in a record, and the pieces that it has.

    `known` are those that records before it have named. Raises `ValueError` as `decode_tables`, and
    for a record of a journal that nothing names: what did may be damaged.
    """
    named, rows, at = decode_tables(payload)
    pieces: list[RedoPiece] = []
    for row in rows:
        journal = named.get(row.journal) or known.get(row.journal)
        if journal is None:
            raise ValueError(f"a record of journal {row.journal}, which nothing before it names")
        if row.unsynced > row.offset:
            raise ValueError(f"a record at {row.offset} was synced up to {row.unsynced} before it")
        body = payload[at : at + row.length]
        header = record_header(
            journal.marker,
            row.offset,
            row.kind,
            body,
            flags=row.flags,
            number=row.number,
            epoch=row.epoch,
            synced=row.offset - row.unsynced,
        )
        pieces.append(RedoPiece(journal, row.offset, header + body))
        at += row.length
    return named, pieces
