"""The bodies of one record, and its details for people: by the kind of its file.

Each function raises `ValueError` for a record that isn't as its kind has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.leases import ChangeLease
from ringmq_node.queue.ops import (
    Barrier,
    Doom,
    Forget,
    NoteGone,
    NoteTime,
    Outline,
    Remove,
    Requeue,
    Use,
)
from ringmq_node.storage.format import journal_records, redo_records, tables
from ringmq_node.storage.format.checkpoint import Checkpoint
from ringmq_node.storage.format.record_file import HEAD_BYTES_MAX, RecordFile
from ringmq_node.storage.format.records import Header, RecordKind
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.messages.data_file import join_id
from ringmq_node.storage.offline.faults import plain
from ringmq_node.storage.offline.file_kinds import BODIES, COMMITS, JOURNAL, SEGMENT
from ringmq_node.storage.offline.shown import Details

# Ranges or locations of one record; their total is always shown.
_SHOWN_MAX: Final = 20


def of_journal(file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
    payload = file.payload(header, HEAD_BYTES_MAX)
    if header.kind == RecordKind.CHECKPOINT:
        return [], _checkpoint(journal_records.decode_checkpoint(header, payload))
    said = journal_records.decode(header, payload, file.number or 0)
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
                # Also of a hollow record, which has no bodies.
                "published": op.count,
            }
            if op.expires_at_ms is not None:
                details["expires_at_ms"] = op.expires_at_ms
            if op.priority:
                details["priority"] = op.priority
            if op.born_doomed:
                details["born_doomed"] = True
            if said.counts_with:
                details["counts_with"] = said.counts_with
        case Remove(ranges):
            details = {"op": "remove", **_ranges("ranges", ranges, len(ranges))}
        case Requeue(ranges, counted):
            found = _ranges("ranges", ranges, len(ranges))
            details = {"op": "requeue", "counted": counted, **found}
        case Doom(reason, ranges):
            found = _ranges("ranges", ranges, len(ranges))
            details = {"op": "doom", "reason": reason.value, **found}
        case Barrier():
            details = {"op": "barrier"}
        case NoteTime(time_ms):
            details = {"op": "time", "time_ms": time_ms}
        case Use():
            details = {"op": "use"}
        case Forget(producer_ids):
            details = {"op": "forget", "producers": len(producer_ids)}
        case NoteGone(acked_end, purged_end):
            details = {"op": "gone", "acked_end": acked_end, "purged_end": purged_end}
        case ChangeLease() as change:
            details = {
                "op": "lease",
                "action": change.action.name.lower(),
                "lease": plain(change.name),
                "holder": plain(change.holder),
                "token": change.token,
            }
    if said.next_position is not None:
        details["next_position"] = said.next_position
    return said.bodies, details | _places(said.bodies)


def of_segment(file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
    if header.kind == RecordKind.ENTRY:
        bodies = [tables.read_embedded(file, header, header.number, header.epoch)]
    elif header.kind == RecordKind.STORED_ENTRY:
        payload = file.payload(header, header.length)
        bodies = tables.stored(header, payload, header.number, header.epoch)
    else:
        raise ValueError(f"record of kind {header.kind} in a segment")
    return bodies, _places(bodies)


def of_bodies(file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
    """A record of the message store: its header has a message id for number and epoch."""
    details: Details = {
        "message_id": join_id(header).hex() if header.number or header.epoch else ""
    }
    if header.kind == RecordKind.HOLE:
        return [], details
    if header.kind != RecordKind.MESSAGE:
        raise ValueError(f"record of kind {header.kind} in a message store")
    return [tables.read_embedded(file, header)], details


def of_commits(file: RecordFile, header: Header) -> tuple[list[BodyRange], Details]:
    if header.kind != RecordKind.REDO:
        raise ValueError(f"record of kind {header.kind} in a commit log")
    named, rows, _ = redo_records.decode_tables(file.payload(header, header.length))
    journals = [
        {"journal": number, "folder": journal.folder, "generation": journal.generation}
        for number, journal in islice(named.items(), _SHOWN_MAX)
    ]
    records = [
        {"journal": row.journal, "offset": row.offset, "length": row.length}
        for row in rows[:_SHOWN_MAX]
    ]
    return [], {
        "journals": journals,
        "journals_total": len(named),
        "records": records,
        "records_total": len(rows),
    }


Describe = Callable[[RecordFile, Header], tuple[list[BodyRange], Details]]
BY_FILE_KIND: Final[dict[str, Describe]] = {
    JOURNAL: of_journal,
    SEGMENT: of_segment,
    BODIES: of_bodies,
    COMMITS: of_commits,
}


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
        "expiries": len(state.expiries),
        "priorities": {level: len(ranges) for level, ranges in state.priorities.levels()},
        "doomed": 0 if state.doomed is None else len(state.doomed.positions),
        "messages_live": len(state.live),
        **_ranges("live", state.live, state.live.range_count),
    }


def _ranges(name: str, ranges: RangeSet | Sequence[Range], total: int) -> Details:
    return {name: [*islice(ranges, _SHOWN_MAX)], f"{name}_total": total}


def _places(bodies: list[BodyRange]) -> Details:
    """The positions of a record, and the locations of bodies that are in the message store."""
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
