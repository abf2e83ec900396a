"""The files that a replay takes for a folder's rows, and those that it can't read. No Spark."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tables import Killed, batch, rows

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.replay_units import file_to_replay, files_of_table, is_ordered
from ringmq_pipeline.sinks.parquet import ParquetSink

KEYS = {"queue": ["q", "q"], "epoch": [1, 1]}


def write(path: Path, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns or {"body": [b"x"]}), path)
    return path


def found(path: Path) -> list[str]:
    return [file.relative_to(path).as_posix() for file in files_of_table(path)]


def test_what_spark_takes_for_hidden_is_no_part_of_a_folder(tmp_path: Path) -> None:
    """Of writers that aren't done, or have died."""
    folder = tmp_path / "_of" / ".us"
    for name in (
        "b.parquet",
        "a/c.parquet",
        "_day=1/d.parquet",
        "whole.parquet/e.parquet",
        "_half.parquet",
        ".half.parquet",
        "_temporary/0/f.parquet",
        ".spark-staging-1/g.parquet",
        "a/_old/_delta_log/h.parquet",
    ):
        write(folder / name)
    assert found(folder) == [
        "_day=1/d.parquet",
        "a/c.parquet",
        "b.parquet",
        "whole.parquet/e.parquet",
    ]


def test_a_file_that_spark_would_skip_is_refused(tmp_path: Path) -> None:
    """Told the columns, Spark says nothing: the unit would be done, without rows."""
    with pytest.raises(JobError, match=r"_x.parquet: Spark skips"):
        files_of_table(write(tmp_path / "_x.parquet"))


@pytest.mark.parametrize("mark", ["_delta_log", "_manifest", "_staging"])
def test_a_folder_of_tables_is_refused(mark: str, tmp_path: Path) -> None:
    """Their folders have files that are replaced, or that nobody has committed."""
    write(tmp_path / "a.parquet")
    write(tmp_path / "deep" / "table" / "b.parquet")
    (tmp_path / "deep" / "table" / mark).mkdir()
    with pytest.raises(JobError, match="deep/table is a table within"):
        files_of_table(tmp_path)


@pytest.mark.parametrize("step", ["durable", "renamed", "committed"])
def test_rows_that_are_not_committed_are_none(step: str, tmp_path: Path) -> None:
    """A table whose first batch died on its way."""

    def die(reached: str) -> None:
        if reached == step:
            raise Killed

    with pytest.raises(Killed):
        ParquetSink(tmp_path, die).commit(batch(0, 0, 10), rows(0, 10))
    assert len(found(tmp_path)) == (2 if step == "committed" else 0)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"x" * 100, b"PAR1" + b"x" * 50 + b"\x10\0\0\0PAR1"]
)
def test_a_file_that_is_no_parquet_is_an_error_that_names_it(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "x.parquet"
    file.write_bytes(content)
    with pytest.raises(JobError, match=r"x\.parquet can't be read as Parquet: .+"):
        file_to_replay(file)


def test_a_file_whose_rows_are_garbled_is_an_error_that_names_it(tmp_path: Path) -> None:
    count = 2000
    file = write(
        tmp_path / "x.parquet", queue=["q"] * count, epoch=[1] * count, position=[*range(count)]
    )
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + b"\xff" * 3000 + whole[3004:])
    assert file_to_replay(file).rows == count
    with pytest.raises(JobError, match=r"x\.parquet can't be read as Parquet"):
        is_ordered(file)


@pytest.mark.parametrize("read", [file_to_replay, is_ordered])
@pytest.mark.parametrize("positions", [["a", "b"], [datetime.datetime(2026, 1, 1)] * 2, [1.5, 2]])
def test_positions_that_are_no_numbers_are_an_error_that_names_the_file(
    read: Callable[[Path], object], positions: list[object], tmp_path: Path
) -> None:
    file = write(tmp_path / "x.parquet", **KEYS, position=positions)
    with pytest.raises(JobError, match=r"x\.parquet: the column `position`"):
        read(file)


@pytest.mark.parametrize("content", ["{x", "", '{"commitInfo": {}}'])
def test_a_broken_log_is_an_error_that_names_it(content: str, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text(content)
    with pytest.raises(JobError, match=r"_delta_log can't be read: [^\n]+$"):
        files_of_table(tmp_path)


@pytest.mark.parametrize("content", ["", "{x", "7", "[]", '{"version": 1}', "{}"])
def test_a_broken_manifest_is_an_error_that_names_it(content: str, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.commit(batch(0, 0, 10), rows(0, 10))
    sink.commit(batch(1, 10, 20), rows(10, 20))
    [manifest] = tmp_path.glob("_manifest/*/1.json")
    json.loads(manifest.read_text())
    manifest.write_text(content)
    with pytest.raises(JobError, match=r"/1\.json"):
        files_of_table(tmp_path)
