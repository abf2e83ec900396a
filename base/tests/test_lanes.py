"""What has one more try, and what has none: by a suite of its own, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import child_environment

SUITE = """
import pytest
from waiting import TooLateError

tried = []

@pytest.mark.cluster
def test_that_is_late_once():
    tried.append("late")
    if len(tried) == 1:
        raise TooLateError("not within 1 s")

@pytest.mark.cluster
def test_that_is_always_late():
    raise TimeoutError

@pytest.mark.cluster
def test_that_is_wrong_once():
    tried.append("wrong")
    assert tried.count("wrong") == 2

def test_without_processes():
    raise TooLateError("a wake-up was lost")
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_only_what_came_too_late_has_one_more_try(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    words = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    words += ["-c", str(ROOT / "pyproject.toml"), str(suite)]
    # It is no worker of the run that this test is in.
    env = {key: value for key, value in child_environment().items() if "XDIST" not in key}
    done = subprocess.run(
        words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    told = done.stdout
    assert done.returncode == 1, told + done.stderr
    failed = {line.split("::")[1].split()[0] for line in told.splitlines() if "FAILED" in line}
    assert failed == {
        "test_that_is_always_late",
        "test_that_is_wrong_once",
        "test_without_processes",
    }
    assert "3 failed, 1 passed, 2 rerun" in told
