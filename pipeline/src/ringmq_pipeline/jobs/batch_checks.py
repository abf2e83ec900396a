"""What is looked at before a batch of an ingest is in any table: clock, table and columns.

A batch that is refused here is in no table and stays in its queues.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.checkpoints import newest_watermark, times_of
from ringmq_pipeline.jobs.ingest_notes import Note
from ringmq_pipeline.sinks.batches import DELTA_LOG, TableBatch
from ringmq_pipeline.sinks.parquet import MANIFESTS

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

# Types that Spark and Delta call by the same names. Of others it isn't known here what Spark's
# files make of them: the sink looks at its files.
_SAME: Final = frozenset(
    [
        *("string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double"),
        *("date", "timestamp", "timestamp_ntz"),
    ]
)


# --- the clock ---


def check_clock(checkpoint: Path) -> None:
    """Raises `JobError` if the window against repeats ends after now, before a batch is planned:
    its time is decided then."""
    ahead_ms = newest_watermark(checkpoint) - int(time.time() * 1000)
    if ahead_ms >= 0:
        raise JobError(
            f"{_of_clock(ahead_ms)} Wait for so long, see that the clock is right, or begin "
            "another --checkpoint"
        )


def check_batch_time(checkpoint: Path, batch: TableBatch) -> None:
    """Raises `JobError` if Spark would drop all rows of the batch as too late."""
    watermark_ms, timestamp_ms = times_of(checkpoint, batch.number)
    if batch.ranges and timestamp_ms <= watermark_ms:
        raise JobError(
            f"batch {batch.number}: {_of_clock(watermark_ms - timestamp_ms)} The batch keeps its "
            "time: begin another --checkpoint, which begins at this batch's messages"
        )


def _of_clock(ahead_ms: int) -> str:
    return (
        f"--dedupe-window: the clock was ahead, and the window begins {ahead_ms / 1000:.3f} s "
        "after now: Spark would drop all messages as too late."
    )


# --- the table ---


def check_table(table: Path, note: Note, batch: TableBatch) -> None:
    """Raises `JobError` if the table lacks batches that were in it: it was deleted, it is an older
    copy, or another one. With this batch it would have a hole."""
    if note.in_table < 0:
        return
    newest = _newest_batch(table, batch.query)
    if newest >= note.in_table:
        return
    has = "no batch of this checkpoint"
    if newest >= 0:
        has = f"batches of this checkpoint only to number {newest}"
    begins = ", ".join(f"queue {each.queue!r} at {each.first}" for each in batch.ranges)
    raise JobError(
        f"{table}: the table has {has}, which has written batch {note.in_table}. Batch "
        f"{batch.number} begins behind that ({begins or 'no messages'}): give the table that has "
        "what is before, or begin another --checkpoint"
    )


def _newest_batch(table: Path, query: str) -> int:
    """-1: none."""
    numbers = [int(file.stem) for file in (table / MANIFESTS / query).glob("[0-9]*.json")]
    delta = _delta(table)
    version = None if delta is None else delta.transaction_version(query)
    return max([*numbers, -1 if version is None else version])


def _delta(table: Path) -> DeltaTable | None:
    # Of a folder that isn't there, deltalake makes one.
    if not (table / DELTA_LOG).is_dir():
        return None
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(table)
    except TableNotFoundError:
        return None


# --- the columns ---


def check_columns(table: Path, rows: StructType) -> None:
    """Raises `JobError` if the sink of a Delta table would refuse the rows: the quarantine would
    have its part of the batch by then."""
    delta = _delta(table)
    if delta is None:
        return
    fields = json.loads(delta.schema().to_json())["fields"]
    its = {field["name"]: field["type"] for field in fields}
    new = {field["name"]: field["type"] for field in rows.jsonValue()["fields"]}
    other = [name for name in [*its, *(new.keys() - its)] if _differ(its.get(name), new.get(name))]
    if other:
        told = "; ".join(
            f"{name}: {_text(its.get(name))} there, {_text(new.get(name))} now" for name in other
        )
        raise JobError(f"{table}: the table has other columns ({told}): they need another table")


def _differ(one: Any, other: Any) -> bool:
    """Of types as JSON has them. Whether they may be null isn't looked at."""
    if one is None or other is None:
        return True
    if isinstance(one, str) and isinstance(other, str):
        known = all(each in _SAME or each.startswith("decimal(") for each in (one, other))
        return known and one != other
    if isinstance(one, str) or isinstance(other, str):
        return (one if isinstance(one, str) else other) in _SAME
    if one["type"] != other["type"]:
        return True
    if one["type"] == "struct":
        its, new = one["fields"], other["fields"]
        return [each["name"] for each in its] != [each["name"] for each in new] or any(
            _differ(a["type"], b["type"]) for a, b in zip(its, new, strict=True)
        )
    parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(one["type"], ())
    return any(_differ(one[part], other[part]) for part in parts)


def _text(kind: Any) -> str:
    if kind is None:
        return "not"
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        inner = (f"{each['name']} {_text(each['type'])}" for each in kind["fields"])
        return f"struct<{', '.join(inner)}>"
    parts = ("elementType", "keyType", "valueType")
    return f"{kind['type']}<{', '.join(_text(kind[part]) for part in parts if part in kind)}>"
