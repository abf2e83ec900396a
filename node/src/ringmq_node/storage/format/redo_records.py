"""The records of the commit log: bytes of many journals, and where in each of them they belong.

The payload of a record, little endian:

    count        u32       pieces
    per piece    40 bytes
      folder     16 bytes  the name of the queue's folder, as 16 bytes for its 32 hex digits
      generation u64       the journal's
      marker     u32       the journal's: no other file of this folder and generation has it
      length     u32       of the piece, in bytes
      offset     u64       in the journal
    bytes of all pieces, one after another
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

_COUNT: Final = struct.Struct("<I")
_PIECE: Final = struct.Struct("<16sQIIQ")
FOLDER_DIGITS: Final = 32


class RedoPiece(NamedTuple):
    """Bytes of one journal. `folder` is the name of the queue's folder."""

    folder: str
    generation: int
    marker: int
    offset: int
    data: bytes


def encode(pieces: Sequence[RedoPiece]) -> bytes:
    """The payload of a record with these pieces."""
    table = [
        _PIECE.pack(
            bytes.fromhex(piece.folder),
            piece.generation,
            piece.marker,
            len(piece.data),
            piece.offset,
        )
        for piece in pieces
    ]
    return b"".join([_COUNT.pack(len(pieces)), *table, *(piece.data for piece in pieces)])


def decode(payload: bytes) -> list[RedoPiece]:
    """The pieces of a record. Raises `ValueError` if the payload isn't as `encode` writes it."""
    if len(payload) < _COUNT.size:
        raise ValueError("no table of pieces")
    (count,) = _COUNT.unpack_from(payload)
    at = _COUNT.size + count * _PIECE.size
    if at > len(payload):
        raise ValueError(f"a table of {count} pieces goes beyond the record")
    pieces: list[RedoPiece] = []
    for folder, generation, marker, length, offset in _PIECE.iter_unpack(payload[_COUNT.size : at]):
        pieces.append(
            RedoPiece(folder.hex(), generation, marker, offset, payload[at : at + length])
        )
        at += length
    if at != len(payload):
        raise ValueError("the pieces don't fill the record")
    return pieces
