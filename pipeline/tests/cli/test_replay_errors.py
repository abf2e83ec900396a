"""What a user of `replay` can mend is one line, not a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringmq_pipeline.cli import invoke


@contextmanager
def no_session(*_: object, **__: object) -> Iterator[None]:
    yield None


@pytest.mark.parametrize("broken", ["file", "log", "manifest", "progress", "no progress"])
def test_what_cant_be_read_is_one_line_that_names_it(
    broken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("ringmq_pipeline.session.spark_session", no_session)
    table = tmp_path / "table"
    names = {
        "file": "a.parquet",
        "log": "_delta_log/00000000000000000000.json",
        "manifest": "_manifest/query/0.json",
    }
    if broken in names:
        file = table / names[broken]
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
    else:
        (table / "_manifest").mkdir(parents=True)
    noted = tmp_path / "noted"
    if broken == "progress":
        noted.write_text("hello\n")
    words = ["replay", "--from", str(table), "--queue", "q", "--endpoints", "a:1", "--quiet"]
    words += ["--progress", str(noted)] + (["--resume"] if "progress" in broken else [])
    assert invoke(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    named = {"file": "a.parquet", "log": "_delta_log", "manifest": "0.json"}
    assert named.get(broken, "noted") in line
