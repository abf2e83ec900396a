"""A short `make chaos`, as a user runs it: three rounds against real nodes in namespaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import child_environment
from history.records import Nemesis, View, read

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

CANNOT_RUN_HERE = 2
# Two that last a few seconds, and one in which all is lost that may be.
KINDS = ("kill", "one-way cut", "all killed, a disk lost")
SEED = 4


def test_three_rounds(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "chaos", "--minutes=1", f"--seed={SEED}", "--rounds=3"]
    # Other tests run beside it: what takes how long is no matter here.
    words += ["--untimed"]
    words += [f"--folder={tmp_path / 'run'}", *(f"--kind={kind}" for kind in KINDS)]
    done = subprocess.run(
        words, env=child_environment(), capture_output=True, text=True, timeout=150, check=False
    )
    told = done.stdout + done.stderr
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(told)
    assert done.returncode == 0, told
    assert "all is well: 0 lost, 0 duplicated" in told
    assert f"again: make chaos SEED={SEED} MINUTES=1 ARGS=" in told
    for kind in KINDS:
        assert kind in told
    records = list(read(tmp_path / "run" / "history.jsonl"))
    assert {each.round for each in records if isinstance(each, Nemesis)} == {1, 2, 3}
    assert len([each for each in records if isinstance(each, View)]) > 3
    for written in ("timeline.png", "report.txt", "a.log", "b.log", "c.log"):
        assert (tmp_path / "run" / written).stat().st_size > 0
