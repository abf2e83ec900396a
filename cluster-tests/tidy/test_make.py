"""`make test` plays what its arguments choose; these tests themselves only if they may be meant."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def played_by(arguments: str) -> str:
    """The command line of pytest's in `make test ARGS=...`."""
    # Of the `make` that plays this test.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    said = subprocess.run(
        ["make", "--dry-run", "test", f"ARGS={arguments}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (line,) = [line for line in said.splitlines() if "'not compute'" in line]
    return line


@pytest.mark.parametrize("arguments", ["cluster-tests/tidy/test_loops.py", "-k loops", "-k=loops"])
def test_tests_of_the_layout_are_found_where_they_are_asked_for(arguments: str) -> None:
    assert "--ignore" not in played_by(arguments)


@pytest.mark.parametrize("arguments", ["", "-x", "node/tests -x"])
def test_else_they_are_played_once(arguments: str) -> None:
    """By `make check`, which goes before."""
    assert "--ignore=cluster-tests/tidy" in played_by(arguments)
