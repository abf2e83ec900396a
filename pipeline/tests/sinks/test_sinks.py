"""Batches that end after any step are in the table once when they are tried again.

No Spark: `write` is what the job has it do, to write files into a new folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from power_cuts import Synced
from tables import Killed, batch, ignore, positions, rows, table_files

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sinks.batches import RowsInTableError
from ringmq_pipeline.sinks.delta import DeltaSink
from ringmq_pipeline.sinks.parquet import MANIFESTS, ParquetSink

STEPS = {
    "delta": ("written", "durable", "created", "committed"),
    "parquet": ("written", "durable", "renamed", "drafted", "linked", "committed"),
}
CASES = [(kind, step) for kind, steps in STEPS.items() for step in steps]
KINDS = tuple(STEPS)


def sink(kind: str, path: Path, reached: Callable[[str], None] = ignore) -> DeltaSink | ParquetSink:
    return DeltaSink(path, reached) if kind == "delta" else ParquetSink(path, reached)


@pytest.mark.parametrize(("kind", "step"), CASES)
def test_a_batch_that_ended_after_a_step_is_there_once(
    kind: str, step: str, tmp_path: Path
) -> None:
    def kill(reached: str) -> None:
        if reached == step:
            raise Killed

    path = tmp_path / "table"
    if step != "created":
        sink(kind, path).commit(batch(0, 0, 10), rows(0, 10))
        before = {file: file.read_bytes() for file in path.rglob("*.parquet")}
    else:
        before = {}
    first = 10 if before else 0
    number = 1 if before else 0
    with pytest.raises(Killed):
        sink(kind, path, kill).commit(batch(number, first, 30), rows(first, 30))
    done = sink(kind, path).commit(batch(number, first, 30), rows(first, 30))
    assert done.skipped == (step in ("linked", "committed"))
    sink(kind, path).commit(batch(number + 1, 30, 35), rows(30, 35))
    assert positions(kind, path) == [*range(35)]
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize(("kind", "step"), [*CASES, *((kind, "") for kind in KINDS)])
def test_a_batch_survives_a_power_cut_once_it_may_be_acknowledged(
    kind: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the try before was killed: what that has written may not be on the disk."""

    def kill(reached: str) -> None:
        if reached == step:
            raise Killed

    path = tmp_path / "lake" / "of" / "orders"
    synced = Synced(monkeypatch)
    if step:
        with pytest.raises(Killed):
            sink(kind, path, kill).commit(batch(0, 0, 10), rows(0, 10))
    sink(kind, path).commit(batch(0, 0, 10), rows(0, 10))
    assert positions(kind, path) == [*range(10)]
    of_table = path / ("_delta_log" if kind == "delta" else MANIFESTS)
    files = [*table_files(kind, path), *of_table.rglob("*.json")]
    assert len(files) > 2
    assert [synced.lacks(file, tmp_path) for file in files] == [[]] * len(files)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_speaks_of_what_survives_a_power_cut(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told to begin behind rows of the table acknowledges them with his first batch."""

    def kill(reached: str) -> None:
        if reached in ("linked", "committed"):
            raise Killed

    synced = Synced(monkeypatch)
    with pytest.raises(Killed):
        sink(kind, tmp_path / "table", kill).commit(batch(0, 0, 10, "one"), rows(0, 10))
    with pytest.raises(RowsInTableError):
        sink(kind, tmp_path / "table").commit(batch(0, 0, 20, "two"), rows(0, 20))
    of_table = tmp_path / "table" / ("_delta_log" if kind == "delta" else MANIFESTS)
    for file in of_table.rglob("*.json"):
        assert synced.lacks(file, tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_folders_above_a_mount_point_are_left_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an automounter can't be synced."""
    mounted = tmp_path / "net" / "lake"
    mounted.mkdir(parents=True)
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = real(path, follow_symlinks=follow_symlinks)
        if path in (mounted.parent, *mounted.parent.parents):
            return os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])
        return found

    monkeypatch.setattr(Path, "stat", stat)
    synced = Synced(monkeypatch)
    sink(kind, mounted / "table").commit(batch(0, 0, 10), rows(0, 10))
    assert synced.names_of(mounted) == {"table"}
    assert synced.names_of(mounted.parent) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_skipped_without_being_read(kind: str, tmp_path: Path) -> None:
    def refuse(folder: Path) -> int:
        pytest.fail("its messages may be gone by now")

    for number in range(12):
        sink(kind, tmp_path).commit(
            batch(number, number * 10, number * 10 + 10), rows(number * 10, number * 10 + 10)
        )
    for number in range(12):
        assert sink(kind, tmp_path).commit(batch(number, number * 10, 120), refuse).skipped
    assert positions(kind, tmp_path) == [*range(120)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_goes_further_than_the_tables_is_not_skipped(
    kind: str, tmp_path: Path
) -> None:
    """From a checkpoint that was restored, or whose newest file was lost with the power, Spark
    plans a batch once more, and by then there is more to read. It may not be acknowledged."""
    sink(kind, tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    sink(kind, tmp_path).commit(batch(1, 10, 20), rows(10, 20))
    with pytest.raises(JobError, match=r"batch 1.*only to position 20, not to 30"):
        sink(kind, tmp_path).commit(batch(1, 10, 30), rows(10, 30))
    # A new queue has been found meanwhile.
    new = replace(
        batch(1, 10, 20), ranges=(*batch(1, 10, 20).ranges, *batch(1, 0, 5, queue_id="new").ranges)
    )
    with pytest.raises(JobError, match=r"only to position 0, not to 5"):
        sink(kind, tmp_path).commit(new, rows(0, 5))
    assert sink(kind, tmp_path).commit(batch(1, 10, 20), rows(10, 20)).skipped
    assert positions(kind, tmp_path) == [*range(20)]


def test_a_folder_of_another_plan_is_not_taken_for_the_batch(tmp_path: Path) -> None:
    """As above, but the first plan's try ended before its manifest."""

    def kill(reached: str) -> None:
        if reached == "renamed":
            raise Killed

    with pytest.raises(Killed):
        ParquetSink(tmp_path, kill).commit(batch(0, 0, 10), rows(0, 10))
    with pytest.raises(JobError, match="another plan of batch 0"):
        ParquetSink(tmp_path).commit(batch(0, 0, 20), rows(0, 20))
    ParquetSink(tmp_path).commit(batch(0, 0, 20, query="another checkpoint"), rows(0, 20))
    assert positions("parquet", tmp_path) == [*range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_another_checkpoint_cant_bring_the_same_messages_again(kind: str, tmp_path: Path) -> None:
    sink(kind, tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    with pytest.raises(RowsInTableError, match="positions 7 to 9 already"):
        sink(kind, tmp_path).commit(batch(0, 0, 20, query="other"), rows(7, 20))
    assert positions(kind, tmp_path) == [*range(10)]
    # A new checkpoint whose queue has only what is new counts from 0, too.
    sink(kind, tmp_path).commit(batch(0, 0, 20, query="third"), rows(10, 20))
    # Positions of another queue of the same name are other messages.
    sink(kind, tmp_path).commit(batch(1, 0, 5, query="third", queue_id="anew"), rows(0, 5))
    assert positions(kind, tmp_path) == sorted([*range(20), *range(5)])


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_processes_one_commits(kind: str, tmp_path: Path) -> None:
    """A driver that was paused goes on while its successor has committed the same batch."""
    sink(kind, tmp_path).commit(batch(0, 0, 10), rows(0, 10))

    def overtake(step: str) -> None:
        if step == "durable":
            sink(kind, tmp_path).commit(batch(1, 10, 20), rows(10, 20))

    with pytest.raises(JobError):
        sink(kind, tmp_path, overtake).commit(batch(1, 10, 20), rows(10, 20))
    assert positions(kind, tmp_path) == [*range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_rows_does_no_harm(kind: str, tmp_path: Path) -> None:
    assert sink(kind, tmp_path).commit(batch(0, 0, 10), rows(0, 0)).rows == 0
    sink(kind, tmp_path).commit(batch(1, 10, 20), rows(10, 20))
    assert positions(kind, tmp_path) == [*range(10, 20)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("makes_folder", [True, False])
def test_rows_that_were_written_elsewhere_are_no_batch_without_rows(
    makes_folder: bool, kind: str, tmp_path: Path
) -> None:
    """Workers that see another folder under the table's name. They would be acknowledged."""

    def write(folder: Path) -> int:
        if makes_folder:
            folder.mkdir()
        return 10

    with pytest.raises(JobError, match="10 rows were written, and 0 are there"):
        sink(kind, tmp_path).commit(batch(0, 0, 10), write)
    sink(kind, tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    assert positions(kind, tmp_path) == [*range(10)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_row_groups_does_no_harm(kind: str, tmp_path: Path) -> None:
    """Spark writes one for a table without rows, as most batches have none for the quarantine."""

    def write(folder: Path) -> int:
        folder.mkdir()
        schema = pyarrow.schema([("position", pyarrow.int64())])
        pyarrow.parquet.ParquetWriter(folder / "empty.parquet", schema).close()
        return 0

    assert sink(kind, tmp_path).commit(batch(0, 0, 10), write).rows == 0
    sink(kind, tmp_path).commit(batch(1, 10, 20), rows(10, 20))
    assert positions(kind, tmp_path) == [*range(10, 20)]


def test_a_table_keeps_its_columns(tmp_path: Path) -> None:
    def others(folder: Path) -> int:
        folder.mkdir()
        pyarrow.parquet.write_table(pyarrow.table({"other": [1]}), folder / "a.parquet")
        return 1

    DeltaSink(tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    with pytest.raises(JobError, match="the table has the columns queue"):
        DeltaSink(tmp_path).commit(batch(1, 10, 11), others)
    assert positions("delta", tmp_path) == [*range(10)]
