"""What a record of a journal says, without its bodies."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from ringmq_node.queue import ops
from ringmq_node.queue.block import COUNT_MAX
from ringmq_node.queue.ops import Op, Outline
from ringmq_node.storage.format import checkpoint, tables
from ringmq_node.storage.format.checkpoint import Checkpoint
from ringmq_node.storage.format.records import END_PAYLOAD, Header, RecordKind
from ringmq_node.storage.format.tables import NUMBER_MAX, Body
from ringmq_node.storage.queue.index import QueueFile

HOLLOW_FILL: Final = struct.Struct("<I")
# Of an elided op, before its outline: see `Said.counts_with`.
ELIDED: Final = struct.Struct("<Q")

# By kind: the record has an op; it says in its number or in its epoch which op it follows.
OPS: Final = frozenset(
    (RecordKind.OP, RecordKind.STORED_OP, RecordKind.HOLLOW_OP, RecordKind.ELIDED_OP)
)
FILLS: Final = frozenset((RecordKind.FILL, RecordKind.STORED_FILL, RecordKind.HOLLOW_FILL))


@dataclass(slots=True)
class Said:
    """Nothing, for kinds that say it in their header."""

    op: Op | Outline | None = None
    bodies: list[Body] = field(default_factory=list)
    # Of an end record.
    next_position: int | None = None
    # Of an elided op: this record and those behind it count only if the log reaches this offset.
    counts_with: int = 0


class Held:
    """Records of one journal, until it is known whether they count (see `elision`)."""

    def __init__(self) -> None:
        self._records: list[tuple[Header, Said]] = []
        self._counts_with = 0

    def add(self, header: Header, said: Said) -> list[tuple[Header, Said]]:
        """One more record; returns those that count now, in order."""
        self._records.append((header, said))
        self._counts_with = max(self._counts_with, said.counts_with)
        if header.end < self._counts_with:
            return []
        counting, self._records = self._records, []
        return counting

    def begin(self, end: int) -> int:
        """Where in a journal whose valid part ends at `end` the first one is; else `end`."""
        return self._records[0][0].offset if self._records else end


@dataclass(slots=True)
class Journal:
    """A journal and what is in it."""

    file: QueueFile
    bodies: list[Body] = field(default_factory=list)
    loaded: bool = False
    held: Held = field(default_factory=Held)


def decode_checkpoint(header: Header, payload: bytes) -> Checkpoint:
    """Of a record of that kind. Raises `ValueError`."""
    found = checkpoint.decode(payload)
    if max(found.generation, found.state.next_position, found.state.last_number) >= NUMBER_MAX:
        raise ValueError(f"checkpoint at {header.offset} with a number that can't be")
    return found


def decode(header: Header, payload: bytes, generation: int) -> Said:
    """Of any other record of a journal. `payload` is whole, or of a block at least the tables.

    Raises `ValueError`.
    """
    if header.number >= NUMBER_MAX or header.epoch >= NUMBER_MAX:
        raise ValueError(f"record with number {header.number}, epoch {header.epoch}")
    match header.kind:
        case RecordKind.OP:
            return _decode_op(header, payload, generation)
        case RecordKind.FILL:
            length = header.length
            return Said(
                bodies=[tables.embedded(header, payload, 0, length, header.number, generation)]
            )
        case RecordKind.STORED_OP:
            outline, at = _decode_outline(payload)
            table = payload[at:]
            bodies = tables.stored(header, table, outline.first_position, generation)
            if bodies[-1].last != outline.last_position:
                raise ValueError(f"publish of {outline.count} messages refers to others")
            return Said(op=outline, bodies=bodies)
        case RecordKind.STORED_FILL:
            return Said(bodies=tables.stored(header, payload, header.number, generation))
        case RecordKind.HOLLOW_OP:
            outline, at = _decode_outline(payload)
            if at != len(payload):
                raise ValueError(f"outline of {at} bytes has {len(payload)}")
            return Said(op=outline)
        case RecordKind.ELIDED_OP:
            return _decode_elided(header, payload)
        case RecordKind.END:
            return Said(next_position=_number(END_PAYLOAD, payload))
        case RecordKind.HOLLOW_FILL:
            _number(HOLLOW_FILL, payload)
            return Said()
        case RecordKind.EPOCH:
            return Said()
    raise ValueError(f"record of kind {header.kind} in a journal")


def _decode_op(header: Header, payload: bytes, generation: int) -> Said:
    if payload[:1] != bytes([ops.PUBLISH]):
        op = ops.decode(payload)
        assert not isinstance(op, ops.Publish)
        if op.ranges and max(last for _, last in op.ranges) >= NUMBER_MAX:
            raise ValueError("op on a position that can't be")
        return Said(op=op)
    outline, at = _decode_outline(payload)
    length = header.length - at
    body = tables.embedded(header, payload, at, length, outline.first_position, generation)
    if body.last != outline.last_position:
        raise ValueError(f"publish says {outline.count} messages, its block has others")
    return Said(op=outline, bodies=[body])


def _decode_elided(header: Header, payload: bytes) -> Said:
    if len(payload) < ELIDED.size:
        raise ValueError(f"payload of {len(payload)} bytes")
    end: int = ELIDED.unpack_from(payload)[0]
    outline, at = _decode_outline(payload[ELIDED.size :])
    if ELIDED.size + at != len(payload) or outline.transient or end < header.end:
        raise ValueError(f"elided publish of {len(payload)} bytes that counts with {end}")
    return Said(op=outline, counts_with=end)


def _decode_outline(payload: bytes) -> tuple[Outline, int]:
    outline, at = ops.decode_outline(payload)
    if outline.count > COUNT_MAX or outline.last_position >= NUMBER_MAX:
        raise ValueError(f"publish of {outline.count} messages at {outline.first_position}")
    return outline, at


def _number(shape: struct.Struct, payload: bytes) -> int:
    if len(payload) != shape.size:
        raise ValueError(f"payload of {len(payload)} bytes, not {shape.size}")
    number: int = shape.unpack(payload)[0]
    if number >= NUMBER_MAX:
        raise ValueError(f"number {number}")
    return number
