"""Tables that several processes write, or that are written in ways that would hide rows."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from power_cuts import Synced
from tables import Killed, batch, ignore, positions, rows

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sinks import Sink, parquet
from ringmq_pipeline.sinks.batches import DELTA_LOG, RowsInTableError, TableBatch
from ringmq_pipeline.sinks.delta import DeltaSink
from ringmq_pipeline.sinks.locks import locked
from ringmq_pipeline.sinks.parquet import MANIFESTS, ParquetSink

KINDS = ("delta", "parquet")


def sink(kind: str, path: Path, reached: Callable[[str], None] = ignore) -> Sink:
    return DeltaSink(path, reached) if kind == "delta" else ParquetSink(path, reached)


def beside_another(end: int) -> TableBatch:
    """Of a checkpoint that finds nothing but holes up to `end`, and rows of another queue."""
    other = batch(0, 0, 5, queue_id="other").ranges[0]
    orders = batch(0, 0, end, query="new")
    return replace(orders, ranges=(*orders.ranges, replace(other, queue="other")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", ["written", "durable"])
def test_of_two_checkpoints_at_once_one_brings_the_messages(
    step: str, kind: str, tmp_path: Path
) -> None:
    """A driver that was paused goes on, while its lease has gone to another checkpoint."""
    sink(kind, tmp_path).commit(batch(0, 0, 10, "old"), rows(0, 10))

    def overtake(reached: str) -> None:
        if reached == step:
            sink(kind, tmp_path).commit(batch(0, 0, 20, "new"), rows(10, 20))

    with pytest.raises(RowsInTableError, match="positions 10 to 19 already"):
        sink(kind, tmp_path, overtake).commit(batch(1, 10, 20, "old"), rows(10, 20))
    assert positions(kind, tmp_path) == [*range(20)]
    # Nor does one see them twice who reads everything that isn't hidden.
    if kind == "parquet":
        assert len([*(tmp_path / "data").rglob("*.parquet")]) == len(
            parquet.committed_files(tmp_path)
        )


def test_the_last_look_at_a_table_is_under_its_lock(tmp_path: Path) -> None:
    """Up to the manifest: at each step another process would have to wait."""
    refused = []

    def look(step: str) -> None:
        if step in ("renamed", "drafted", "linked"):
            lock = tmp_path / MANIFESTS / parquet.LOCK
            with pytest.raises(JobError, match="has the table's lock"), locked(lock, wait_s=0):
                pytest.fail(step)
            refused.append(step)

    ParquetSink(tmp_path, look).commit(batch(0, 0, 10), rows(0, 10))
    assert refused == ["renamed", "drafted", "linked"]
    with locked(tmp_path / MANIFESTS / parquet.LOCK, wait_s=0):
        pass


def test_a_table_without_locks_isnt_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(JobError, match="has no locks"):
        ParquetSink(tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    assert positions("parquet", tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_queue_never_goes_back(kind: str, tmp_path: Path) -> None:
    sink(kind, tmp_path).commit(batch(0, 0, 100, "old"), rows(0, 100))
    sink(kind, tmp_path).commit(beside_another(60), rows(0, 5, queue="other"))
    with pytest.raises(RowsInTableError, match="positions 60 to 99 already"):
        sink(kind, tmp_path).commit(batch(1, 60, 100, "new"), rows(60, 100))
    if kind == "parquet":
        # Each one by itself: those of the other checkpoint may be cleared away.
        manifest = json.loads((tmp_path / MANIFESTS / "new" / "0.json").read_text())
        assert manifest["ends"]["ringmq:id:0"] == 100
    assert sink(kind, tmp_path).commit(beside_another(60), rows(0, 0)).skipped
    sink(kind, tmp_path).commit(batch(1, 60, 110, "new"), rows(100, 110))
    assert positions(kind, tmp_path) == sorted([*range(110), *range(5)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_one_format(kind: str, tmp_path: Path) -> None:
    """A reader would find the rows of one of them."""
    other = KINDS[1 - KINDS.index(kind)]
    path = tmp_path / "table"
    sink(kind, path).commit(batch(0, 0, 10), rows(0, 10))
    before = sorted(path.rglob("*"))
    with pytest.raises(JobError, match=f"a table of --format {kind}"):
        sink(other, path).commit(batch(1, 10, 20), rows(10, 20))
    assert sorted(path.rglob("*")) == before
    sink(kind, path).commit(batch(1, 10, 20), rows(10, 20))
    assert positions(kind, path) == [*range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_got_another_format_meanwhile_gets_no_second_one(
    kind: str, tmp_path: Path
) -> None:
    def overtake(step: str) -> None:
        if step == "durable":
            (tmp_path / (MANIFESTS if kind == "delta" else DELTA_LOG)).mkdir()

    with pytest.raises(JobError, match="a table of --format"):
        sink(kind, tmp_path, overtake).commit(batch(0, 0, 10), rows(0, 10))
    if kind == "parquet":
        assert parquet.committed_files(tmp_path) == []


def test_a_reader_knows_a_folder_of_manifests_before_it_has_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it takes the folder for one of plain files, also of those that aren't committed."""
    path = tmp_path / "table"
    synced = Synced(monkeypatch)

    def write(folder: Path) -> int:
        assert (path / MANIFESTS).is_dir()
        assert synced.names_of(path) == {MANIFESTS}
        raise Killed

    with pytest.raises(Killed):
        ParquetSink(path).commit(batch(0, 0, 10), write)


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "a\\b", "a\tb", "a\nb", "a\x7fb"])
def test_a_delta_table_isnt_begun_where_its_log_would_be_elsewhere(
    name: str, tmp_path: Path
) -> None:
    """delta-rs takes the folder's name for a URL's."""
    DeltaSink(tmp_path / "a b").commit(batch(0, 0, 10), rows(0, 10))
    with pytest.raises(JobError, match="a Delta table can't be in a folder whose name has"):
        DeltaSink(tmp_path / name / "table").commit(batch(1, 10, 20), rows(10, 20))
    assert os.listdir(tmp_path) == ["a b"]
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(JobError, match="a Delta table can't be in a folder whose name has"):
        DeltaSink(tmp_path / "link").commit(batch(1, 10, 20), rows(10, 20))
    ParquetSink(tmp_path / name).commit(batch(0, 0, 10), rows(0, 10))
    assert positions("parquet", tmp_path / name) == [*range(10)]


@pytest.mark.parametrize("name", ["a b", "100%", "a%zz", "ä#?", "a:b", "[a]", "{a}", '<"a">'])
def test_a_delta_table_may_be_in_folders_of_other_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / name / "table"
    DeltaSink(path).commit(batch(0, 0, 10), rows(0, 10))
    assert DeltaSink(path).commit(batch(0, 0, 10), rows(0, 10)).skipped
    assert len([*(path / DELTA_LOG).iterdir()]) == 2
    assert len(DeltaTable(path).get_add_actions()["path"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_ingests_of_several_queues_begin_one_table_at_once(kind: str, tmp_path: Path) -> None:
    failed: Counter[str] = Counter()
    for number in range(8):
        path = tmp_path / str(number)
        at_once = threading.Barrier(3)

        def ingest(queue: str, path: Path = path, at_once: threading.Barrier = at_once) -> None:
            def wait(step: str) -> None:
                if step == "durable":
                    at_once.wait(10)

            try:
                sink(kind, path, wait).commit(
                    batch(0, 0, 5, query=queue, queue_id=queue), rows(0, 5)
                )
            except Exception as error:
                failed[repr(error)] += 1

        threads = [threading.Thread(target=ingest, args=(queue,)) for queue in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert positions(kind, path) == sorted([*range(5)] * 3)
        # A table begins once.
        commits = (path / DELTA_LOG).glob("*.json")
        assert sum("metaData" in each.read_text() for each in commits) == (kind == "delta")


def test_rows_in_a_table_are_told_with_a_way_out(tmp_path: Path) -> None:
    error = RowsInTableError(tmp_path / "bad", "orders", 12, 30)
    assert str(tmp_path / "bad") in str(error)
    assert 'startingOffsets {"orders": 30}' in str(error)
    # Another table of the job may lack what is before 30.
    other = error.without_advice()
    assert (other.table, other.queue, other.first, other.end) == (
        tmp_path / "bad",
        "orders",
        12,
        30,
    )
    assert "positions 12 to 29 already" in str(other)
    assert "startingOffsets" not in str(other)
    assert "give another --quarantine" in str(other)
