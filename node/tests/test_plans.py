"""The loop of the fuzzers of plans, with a plan that fails at a 7."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from node.tests.plans import Failure, fuzz


@dataclass(frozen=True)
class Numbers:
    steps: tuple[int, ...]

    @classmethod
    def of(cls, seed: int, steps: int) -> Numbers:
        return cls(tuple(range(seed, seed + steps)))


def no_seven(plan: Numbers, events: Counter[str]) -> Failure | None:
    for at, step in enumerate(plan.steps):
        events["steps"] += 1
        try:
            assert step != 7
        except AssertionError as error:
            return Failure.of(error, at)
    return None


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fuzz_numbers.py", *arguments])
    return fuzz("Numbers.", Numbers.of, no_seven, steps=5)


def test_plan_that_failed_is_run_again_by_the_command_that_was_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert called(monkeypatch, "--seed", "2", "--steps", "6", "--seconds", "0") == 1
    told = capsys.readouterr().out.splitlines()
    # One run, of six steps; those before the 7 aren't needed.
    assert told[:2] == ["seed 2: Numbers(steps=())", "7"]
    again = "again: python fuzz_numbers.py"
    assert told[2] == f"{again} --seed 2 --steps 6 --seconds 0"
    assert "1 runs, 1 failed" in told[-2]
    assert called(monkeypatch, *told[2].removeprefix(again).split()) == 1
    assert capsys.readouterr().out.splitlines()[:3] == told[:3]


def test_plan_without_a_failure_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, "--seed", "8", "--seconds", "0") == 0


def test_story_names_the_sources_that_were_edited_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "edited.py"
    source.touch()
    module = ModuleType("edited")
    module.__file__ = str(source)
    monkeypatch.setitem(sys.modules, "edited", module)
    os.utime(source, (0, 0))
    assert called(monkeypatch, "--seed", "7", "--seconds", "0") == 1
    assert "edited" not in capsys.readouterr().out
    in_an_hour = time.time() + 3600
    os.utime(source, (in_an_hour, in_an_hour))
    assert called(monkeypatch, "--seed", "7", "--seconds", "0") == 1
    told = f"edited since this began, so that lines below may be wrong: {source}"
    assert told in capsys.readouterr().out.splitlines()
