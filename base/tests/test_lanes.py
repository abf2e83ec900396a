"""What has one more try, and what has none: by a suite of its own, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import play

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


@pytest.mark.slow
def test_only_what_came_too_late_has_one_more_try(tmp_path: Path) -> None:
    done = play(SUITE, tmp_path)
    told = done.stdout
    assert done.returncode == 1, told + done.stderr
    failed = {line.split("::")[1].split()[0] for line in told.splitlines() if "FAILED" in line}
    assert failed == {
        "test_that_is_always_late",
        "test_that_is_wrong_once",
        "test_without_processes",
    }
    assert "3 failed, 1 passed, 2 rerun" in told
