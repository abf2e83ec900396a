"""`replay --rate`: what all tasks that go on at a time publish together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringmq_pipeline.cli import invoke
from ringmq_pipeline.cli.replay import PARALLEL
from ringmq_pipeline.jobs.replay import ReplayJob, ReplayTally


@contextmanager
def no_session(*_: object, **__: object) -> Iterator[None]:
    yield None


@pytest.mark.parametrize("ordering", ["queue", "none"])
@pytest.mark.parametrize("rate", [1, 2, 3, 4, 5, 999, 1000])
def test_the_tasks_share_the_rate(
    ordering: str, rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[ReplayJob] = []

    def replay(_spark: None, job: ReplayJob, **_: object) -> ReplayTally:
        jobs.append(job)
        return ReplayTally()

    monkeypatch.setattr("ringmq_pipeline.jobs.replay.replay", replay)
    monkeypatch.setattr("ringmq_pipeline.session.spark_session", no_session)
    words = ["replay", "--from", str(tmp_path), "--queue", "q", "--endpoints", "a:1", "--quiet"]
    words += ["--progress", str(tmp_path / "noted"), "--ordering", ordering, "--rate", str(rate)]
    assert invoke(words) == 0
    [job] = jobs
    together = job.parallel * int(job.sink["maxRatePerTask"])
    # What doesn't divide is left: less than one message a second of each task.
    assert rate - job.parallel < together <= rate
    assert job.parallel == (1 if ordering == "queue" else min(PARALLEL, rate))


def test_a_replay_names_its_producers_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", "--from", str(tmp_path), "--progress", str(tmp_path / "noted"), "--quiet"]
    assert invoke([*words, "--option", "producerid=mine"]) == 2
    assert "give --producer-id" in capsys.readouterr().err
