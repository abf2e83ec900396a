from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from ringmq_pipeline import session
from ringmq_pipeline.cli import VERBS, commands, invoke
from ringmq_pipeline.cli import ingest as verb
from ringmq_pipeline.cli.common import LocalPath
from ringmq_pipeline.jobs import ingest as job_module
from ringmq_pipeline.jobs.ingest import IngestTally

PLACES = ["ingest", "--queue", "a", "--to", "t", "--checkpoint", "c"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--once", "--every", "5s"], "give one of them"),
        (["--decode", "json"], "belong together"),
        (["--quarantine", "q"], "belong together"),
        (["--decode", "json", "--quarantine", "./t"], "is the table of --to"),
        (["--decode", "json", "--quarantine", "t/bad"], "--quarantine is in the folder of --to"),
        (["--decode", "json", "--quarantine", "c"], "--checkpoint is in the folder of --quar"),
        (["--checkpoint", "./t/c"], "--checkpoint is in the folder of --to"),
        (["--checkpoint", "t"], "--checkpoint is in the folder of --to"),
        (["--to", "s3://bucket/orders"], "'--to': 's3://bucket/orders' is an address"),
        (["--to", "s3:/bucket/orders"], "give a path, like"),
        (["--checkpoint", "file:///lake/c"], "'--checkpoint': 'file:///lake/c' is an address"),
        (["--decode", "json", "--quarantine", "abfs+x.y-z://a"], "'--quarantine': 'abfs+x"),
        (["--value-schema", "a INT"], "--value-schema is of"),
        (["--conf", "asyncProgressTrackingEnabled=true"], "messages would be lost"),
        (["--option", "asyncProgressTrackingEnabled=true"], "messages would be lost"),
    ],
)
def test_what_would_lose_or_mean_nothing_is_refused(
    more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([*PLACES, *more]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


@pytest.mark.parametrize("name", ["t/_bad", "t/_checkpoints/c", "tt", "of t", "../t"])
def test_folders_that_no_vacuum_takes_are_allowed(name: str, tmp_path: Path) -> None:
    verb._check_folders(tmp_path / "t", tmp_path / "c", tmp_path / name)
    verb._check_folders(tmp_path / "t", tmp_path / name, tmp_path / "q")


@pytest.mark.parametrize("name", ["s3", "a:b", "./s3://bucket", "/lake/s3:/x", "1s:/x"])
def test_paths_with_a_colon_are_paths(name: str) -> None:
    assert LocalPath().convert(name, None, None) == Path(name)


def test_a_store_is_given_by_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["scan", "--store", "a=s3://bucket/a"]) == 2
    assert "'s3://bucket/a' is an address" in capsys.readouterr().err


def test_no_verb_takes_an_address_for_a_path() -> None:
    context = click.Context(commands)
    paths: set[str] = set()
    for name in VERBS:
        command = commands.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option.type, click.Path):
                assert isinstance(option.type, LocalPath), (name, option.name)
                paths.add(str(option.name))
    assert paths >= {"to", "lake", "checkpoint", "quarantine", "noted", "source"}


@pytest.mark.parametrize(
    ("tally", "exit_code", "lag"),
    [
        (IngestTally(is_interrupted=True), 130, None),
        (IngestTally(is_interrupted=True, batches=1, lag=4), 130, 4),
        (IngestTally(), 0, 0),
    ],
)
def test_one_that_was_interrupted_says_so(
    tally: IngestTally,
    exit_code: int,
    lag: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(verb, "check_leases", lambda options: None)
    monkeypatch.setattr(session, "spark_session", lambda *app, **settings: nullcontext())
    monkeypatch.setattr(job_module, "ingest", lambda *job, **calls: tally)
    assert invoke(PLACES) == exit_code
    assert json.loads(capsys.readouterr().out)["lag"] == lag
