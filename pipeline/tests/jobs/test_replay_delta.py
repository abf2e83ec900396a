"""The files that a replay takes for the rows of a Delta table. No Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.replay_units import files_of_table

# From the specification of Delta: of rows 3, 4, 7, 11, 18 and 29.
DELETED = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"


def write(path: Path, partition: str = "") -> None:
    columns = {"queue": ["q"] * 40, "kind": ["a b:c"] * 40, "body": [b"x"] * 40}
    by = [partition] if partition else None
    write_deltalake(str(path), pyarrow.table(columns), partition_by=by)


def rows(files: list[Path]) -> int:
    return sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)


def delete_rows(path: Path) -> None:
    """As writers do that mark rows instead of rewriting their file."""
    [file] = files_of_table(path)
    vector = {"storageType": "i", "pathOrInlineDv": DELETED, "sizeInBytes": 40, "cardinality": 6}
    name = file.relative_to(path).as_posix()
    add = {
        "path": name,
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 40}),
        "deletionVector": vector,
    }
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    remove = {"path": name, "deletionTimestamp": 1, "dataChange": True}
    entries = [{"protocol": protocol}, {"remove": remove}, {"add": add}]
    number = DeltaTable(path).version() + 1
    log = path / "_delta_log" / f"{number:020}.json"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize("name", ["table", "my table", "é#?"])
@pytest.mark.parametrize("partition", ["", "kind"])
def test_files_are_found_whatever_their_names_are(
    name: str, partition: str, tmp_path: Path
) -> None:
    write(tmp_path / name, partition)
    assert rows(files_of_table(tmp_path / name)) == 40


def test_rows_that_are_deleted_are_not_published(tmp_path: Path) -> None:
    write(tmp_path)
    delete_rows(tmp_path)
    with pytest.raises(JobError, match="deletion vectors"):
        files_of_table(tmp_path)


def test_a_table_whose_files_lack_a_column_is_refused(tmp_path: Path) -> None:
    """Without it, the rows would have another order, or no name of a queue."""
    write(tmp_path, "queue")
    with pytest.raises(JobError, match="partitioned by queue"):
        files_of_table(tmp_path)
