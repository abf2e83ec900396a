"""The records of a journal, decoded without their bodies, and the rule which of them count.

An elided publish (`queue.elision`) was written without its bodies, because a remove in the same
sync round makes them superfluous. A power cut in the middle of that round may keep the publish and
lose the remove. So the record names the offset at which its round ends, and it counts only if the
log is valid up to there, together with all records behind it: see `Pending`.
"""

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
from ringmq_node.storage.format.tables import NUMBER_MAX, BodyRange

# The payload of a fill whose bodies are nowhere: how many messages it had.
HOLLOW_FILL: Final = struct.Struct("<I")
# Before the outline of an elided op: `JournalRecord.counts_with`.
ELIDED: Final = struct.Struct("<Q")

# Kinds with an op, whose number they carry; kinds whose epoch field is the op that they follow.
OPS: Final = frozenset(
    (RecordKind.OP, RecordKind.STORED_OP, RecordKind.HOLLOW_OP, RecordKind.ELIDED_OP)
)
FILLS: Final = frozenset((RecordKind.FILL, RecordKind.STORED_FILL, RecordKind.HOLLOW_FILL))


@dataclass(slots=True)
class JournalRecord:
    """The contents of one record. Empty for kinds that say all in their header."""

    op: Op | Outline | None = None
    bodies: list[BodyRange] = field(default_factory=list)
    # Of an end record.
    next_position: int | None = None
    # Of an elided op: this record and those behind it count only if the log reaches this offset.
    counts_with: int = 0


class Pending:
    """The records of one journal for which it isn't known yet whether they count."""

    def __init__(self) -> None:
        self._records: list[tuple[Header, JournalRecord]] = []
        self._counts_with = 0

    def add(self, header: Header, record: JournalRecord) -> list[tuple[Header, JournalRecord]]:
        """One more record; returns those that are known to count from now on, in order."""
        self._records.append((header, record))
        self._counts_with = max(self._counts_with, record.counts_with)
        if header.end < self._counts_with:
            return []
        counting, self._records = self._records, []
        return counting

    def end_of_log(self, end: int) -> int:
        """The offset at which the log ends, in a journal whose valid part ends at `end`.

        Records that are pending then don't count: the log ends before them.
        """
        return self._records[0][0].offset if self._records else end


def decode_checkpoint(header: Header, payload: bytes) -> Checkpoint:
    """The checkpoint in a record of that kind. Raises `ValueError`."""
    found = checkpoint.decode(payload)
    if max(found.generation, found.state.next_position, found.state.last_number) >= NUMBER_MAX:
        raise ValueError(f"checkpoint at {header.offset} has a number of {NUMBER_MAX} or more")
    return found


def decode(header: Header, payload: bytes, generation: int) -> JournalRecord:
    """Any other record of a journal. Raises `ValueError` if it makes no sense.

    `payload` is whole; of one with a block, the tables are enough. `generation` is the journal's.
    """
    if header.number >= NUMBER_MAX or header.epoch >= NUMBER_MAX:
        raise ValueError(f"record with number {header.number}, epoch {header.epoch}")
    match header.kind:
        case RecordKind.OP:
            return _decode_op(header, payload, generation)
        case RecordKind.FILL:
            length = header.length
            return JournalRecord(
                bodies=[tables.embedded(header, payload, 0, length, header.number, generation)]
            )
        case RecordKind.STORED_OP:
            outline, at = _decode_outline(payload)
            table = payload[at:]
            bodies = tables.stored(header, table, outline.first_position, generation)
            if bodies[-1].last != outline.last_position:
                raise ValueError(
                    f"publish of positions {outline.first_position} to {outline.last_position} "
                    f"refers to bodies up to {bodies[-1].last}"
                )
            return JournalRecord(op=outline, bodies=bodies)
        case RecordKind.STORED_FILL:
            return JournalRecord(bodies=tables.stored(header, payload, header.number, generation))
        case RecordKind.HOLLOW_OP:
            outline, at = _decode_outline(payload)
            if at != len(payload):
                raise ValueError(f"outline of {at} bytes has {len(payload)}")
            return JournalRecord(op=outline)
        case RecordKind.ELIDED_OP:
            return _decode_elided(header, payload)
        case RecordKind.END:
            return JournalRecord(next_position=_number(END_PAYLOAD, payload))
        case RecordKind.HOLLOW_FILL:
            _number(HOLLOW_FILL, payload)
            return JournalRecord()
        case RecordKind.EPOCH:
            return JournalRecord()
    raise ValueError(f"record of kind {header.kind} in a journal")


def _decode_op(header: Header, payload: bytes, generation: int) -> JournalRecord:
    if payload[:1] != bytes([ops.PUBLISH]):
        op = ops.decode(payload)
        assert not isinstance(op, ops.Publish)
        if (
            isinstance(op, ops.Remove | ops.Requeue | ops.Doom)
            and op.ranges
            and max(last for _, last in op.ranges) >= NUMBER_MAX
        ):
            raise ValueError(f"op on a position of {NUMBER_MAX} or more")
        if isinstance(op, ops.NoteGone) and max(op.acked_end, op.purged_end) >= NUMBER_MAX:
            raise ValueError(f"op on a position of {NUMBER_MAX} or more")
        return JournalRecord(op=op)
    outline, at = _decode_outline(payload)
    length = header.length - at
    body = tables.embedded(header, payload, at, length, outline.first_position, generation)
    if body.last != outline.last_position:
        raise ValueError(
            f"publish has {outline.count} messages, its block has {body.last - body.first + 1}"
        )
    return JournalRecord(op=outline, bodies=[body])


def _decode_elided(header: Header, payload: bytes) -> JournalRecord:
    if len(payload) < ELIDED.size:
        raise ValueError(f"payload of {len(payload)} bytes")
    end: int = ELIDED.unpack_from(payload)[0]
    outline, at = _decode_outline(payload[ELIDED.size :])
    if ELIDED.size + at != len(payload) or outline.transient or end < header.end:
        raise ValueError(f"elided publish of {len(payload)} bytes that counts with {end}")
    return JournalRecord(op=outline, counts_with=end)


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
