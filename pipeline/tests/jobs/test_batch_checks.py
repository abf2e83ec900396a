"""What is refused before a batch of an ingest is in any table. No Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow
import pytest
from deltalake import write_deltalake
from pyspark.sql import types
from tables import batch, rows

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.batch_checks import check_columns, check_table
from ringmq_pipeline.jobs.ingest_notes import FILE, Note, read_note, write_note
from ringmq_pipeline.sinks import sink_for

KINDS = ("delta", "parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_lacks_a_batch_of_the_checkpoint_gets_no_other(
    kind: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    sink_for(kind, table).commit(batch(0, 0, 10), rows(0, 10))
    shutil.copytree(table, tmp_path / "older")
    sink_for(kind, table).commit(batch(1, 10, 20), rows(10, 20))
    # Batch 2 had no rows.
    note, next_one = Note(batch=2, in_table=1), batch(3, 20, 30)
    check_table(table, note, next_one)
    check_table(tmp_path / "other", Note(batch=2), next_one)
    # It's the same wherever it is.
    table.rename(tmp_path / "moved")
    check_table(tmp_path / "moved", note, next_one)
    with pytest.raises(JobError, match=r"no batch of this checkpoint.*queue 'orders' at 20"):
        check_table(table, note, next_one)
    assert not table.exists()
    with pytest.raises(JobError, match="batches of this checkpoint only to number 0"):
        check_table(tmp_path / "older", note, next_one)
    sink_for(kind, table).commit(batch(7, 0, 10, query="another"), rows(0, 10))
    with pytest.raises(JobError, match="no batch of this checkpoint"):
        check_table(table, note, next_one)


def test_a_table_that_has_a_first_batch_has_it(tmp_path: Path) -> None:
    sink_for("delta", tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    check_table(tmp_path, Note(batch=0, in_table=0), batch(1, 10, 20))


def struct(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def test_other_columns_than_the_tables_are_refused_by_name(tmp_path: Path) -> None:
    long = pyarrow.array([1], pyarrow.int64())
    inner = pyarrow.StructArray.from_arrays([long, [["x"]]], ["id", "tags"])
    table = pyarrow.table({"body": [b"x"], "value": inner, "took": long})
    write_deltalake(tmp_path, table)
    tags = types.ArrayType(types.StringType(), containsNull=False)
    value = struct(id=types.LongType(), tags=tags)
    # What Spark's files make of an interval is for the sink to say.
    took = types.DayTimeIntervalType()
    check_columns(tmp_path, struct(body=types.BinaryType(), value=value, took=took))
    check_columns(tmp_path / "not there", struct(body=types.BinaryType()))
    other = struct(id=types.StringType(), tags=tags)
    told = (
        r"columns \(value: struct<id long, .*> there, struct<id string, tags array<string>> now\)"
    )
    with pytest.raises(JobError, match=told):
        check_columns(tmp_path, struct(body=types.BinaryType(), value=other, took=took))
    with pytest.raises(JobError, match=r"value: struct<.* there, not now; took: long there, not"):
        check_columns(tmp_path, struct(body=types.BinaryType()))
    more = struct(body=types.BinaryType(), value=value, took=took, error=types.StringType())
    with pytest.raises(JobError, match="error: not there, string now"):
        check_columns(tmp_path, more)


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_note(tmp_path) == Note()
    note = Note(3, "--decode json", 2)
    write_note(tmp_path, note)
    assert read_note(tmp_path) == note
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "more": 1}'])
def test_a_file_that_is_no_note_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(JobError, match=FILE):
        read_note(tmp_path)
