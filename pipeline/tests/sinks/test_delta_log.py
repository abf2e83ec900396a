"""Checkpoints of a Delta table: whole before anything names them, and as good as the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from power_cuts import Synced
from tables import Killed, batch, ignore, positions, rows

from ringmq_pipeline.sinks import delta_log
from ringmq_pipeline.sinks.batches import DELTA_LOG
from ringmq_pipeline.sinks.delta import DeltaSink
from ringmq_pipeline.sinks.delta_log import DeltaLog

FEW = 3


def fill(path: Path, batches: range, reached: Callable[[str], None] = ignore) -> None:
    """One sink for all, as a query has it."""
    sink = DeltaSink(path, reached)
    for number in batches:
        first = number * 10
        sink.commit(batch(number, first, first + 10), rows(first, first + 10))


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "_delta_log").glob("*.checkpoint*.parquet"))


def named(path: Path) -> int:
    found: int = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())["version"]
    return found


def test_a_checkpoint_stands_for_the_commits_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", FEW)
    fill(tmp_path, range(11))
    assert len(checkpoints(tmp_path)) >= 2
    version = named(tmp_path)
    assert version > FEW
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        if int(commit.stem) < version:
            commit.unlink()
    assert positions("delta", tmp_path) == [*range(110)]
    # The numbers of queries and queues as well: the batch is known.
    assert DeltaSink(tmp_path).commit(batch(3, 30, 40), rows(30, 40)).skipped
    fill(tmp_path, range(11, 20))
    assert named(tmp_path) > version
    assert positions("delta", tmp_path) == [*range(200)]
    assert not [*(tmp_path / "_checkpointing").iterdir()]


@pytest.mark.parametrize("step", ["checkpointed", "hinted", ""])
def test_whatever_names_a_checkpoint_finds_it_after_a_power_cut(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs names them before they are on the disk, and readers then refuse the table."""

    def kill(reached: str) -> None:
        if reached == step:
            raise Killed

    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", FEW)
    synced = Synced(monkeypatch)
    path = tmp_path / "table"
    try:
        fill(path, range(9), kill)
    except Killed:
        assert step
    assert checkpoints(path)
    hint = path / "_delta_log" / "_last_checkpoint"
    assert hint.exists() == (step != "checkpointed")
    seen = [*checkpoints(path), *(path / "_delta_log").glob("*.json")]
    for file in [*seen, hint] if hint.exists() else seen:
        assert synced.lacks(file, tmp_path) == []
    begun = len(positions("delta", path)) // 10
    fill(path, range(begun - 1, begun + 5))
    assert positions("delta", path) == [*range((begun + 5) * 10)]


def test_delta_rs_makes_no_checkpoint_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would at version 99. Ours is behind a hundred commits."""
    synced = Synced(monkeypatch)
    fill(tmp_path / "table", range(98))
    assert DeltaTable(tmp_path / "table").version() == 98
    assert checkpoints(tmp_path / "table") == []
    fill(tmp_path / "table", range(98, 102))
    assert len(checkpoints(tmp_path / "table")) == 1
    for file in (tmp_path / "table" / "_delta_log").iterdir():
        assert synced.lacks(file, tmp_path) == []


def test_a_checkpoint_that_fails_fails_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(table: DeltaTable) -> None:
        raise DeltaError("the disk is full, say")

    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", FEW)
    with monkeypatch.context() as failing, caplog.at_level(logging.WARNING):
        failing.setattr(DeltaTable, "create_checkpoint", fail)
        fill(tmp_path, range(6))
    assert "the disk is full, say" in caplog.text
    assert checkpoints(tmp_path) == []
    fill(tmp_path, range(6, 8))
    assert checkpoints(tmp_path)
    assert positions("delta", tmp_path) == [*range(80)]


@pytest.mark.parametrize("hint", [b"", b"\0" * 60, b'{"versi', b"{}", b"[]", b"\xff", b"null"])
def test_a_garbled_name_of_a_checkpoint_is_none(
    hint: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find the checkpoint all the same, and the next one stands for all before it, also
    where commits are gone."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 3)
    fill(tmp_path, range(5))
    log = tmp_path / DELTA_LOG
    newest = max(log.glob("*.checkpoint.parquet"))
    for commit in log.glob("*.json"):
        if commit.stem < newest.name.partition(".")[0]:
            commit.unlink()
    (log / delta_log.HINT).write_bytes(hint)
    DeltaSink(tmp_path).commit(batch(5, 50, 60), rows(50, 60))
    assert json.loads((log / delta_log.HINT).read_text())["version"] == 6
    assert positions("delta", tmp_path) == [*range(60)]
    newest.unlink()
    assert positions("delta", tmp_path) == [*range(60)]


def test_a_long_log_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch each 5 s, kept for 30 days, is half a million names."""
    looks: list[Path] = []
    versions = DeltaLog._versions

    def look(self: DeltaLog) -> Iterator[tuple[int, Path]]:
        looks.append(self._log)
        return versions(self)

    monkeypatch.setattr(DeltaLog, "_versions", look)
    fill(tmp_path, range(3))
    looks.clear()
    sink = DeltaSink(tmp_path)
    for number in range(3, 8):
        sink.commit(
            batch(number, 10 * number, 10 * number + 10), rows(10 * number, 10 * number + 10)
        )
    assert len(looks) == 1


def test_a_commit_behind_one_that_is_deleted_as_old_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(tmp_path)
    sink.commit(batch(0, 0, 10), rows(0, 10))
    fill(tmp_path, range(1, 4))
    *_, before, old, newest = sorted((tmp_path / DELTA_LOG).glob("*.json"))
    old.unlink()
    synced: list[Path] = []
    monkeypatch.setattr(delta_log, "make_durable", synced.extend)
    sink._log.make_durable(int(newest.stem))
    assert sorted(synced[:2]) == [before, newest]
    assert synced[2:] == [tmp_path / DELTA_LOG, tmp_path]


@pytest.mark.parametrize("step", ["checkpointed", "hinted"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_two_processes_make_checkpoints_at_once(
    goes_on: bool, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one version, or of a newer one: then the name that is there last is the older one's."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 3)

    def overtake(reached: str) -> None:
        if reached == step:
            other = DeltaLog(tmp_path, ignore)
            other.make_durable()
            monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 0)
            other.checkpoint()
            if goes_on:
                DeltaSink(tmp_path).commit(batch(0, 0, 5, "other", "other"), rows(0, 5))
            monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 3)

    DeltaSink(tmp_path).commit(batch(0, 0, 10), rows(0, 10))
    DeltaSink(tmp_path, overtake).commit(batch(1, 10, 20), rows(10, 20))
    DeltaSink(tmp_path, overtake).commit(batch(2, 20, 30), rows(20, 30))
    assert [*(tmp_path / DELTA_LOG).glob("*.checkpoint.parquet")]
    found = sorted([*range(30), *(range(5) if goes_on else ())])
    assert positions("delta", tmp_path) == found
    fill(tmp_path, range(3, 9))
    assert len(positions("delta", tmp_path)) == len(found) + 60
