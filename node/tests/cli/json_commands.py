"""Runs commands with --json, and looks up what they print in docs/cli.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringmq_node.cli.app import invoke

Run = Callable[..., Any]
CLI_DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


def run_json(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command with --json; returns what it printed, by lines if there are several."""

    def run(*words: object, code: int = 0) -> Any:
        got = invoke([*map(str, words), "--json"])
        out, err = capsysbinary.readouterr()
        assert got == code, err
        lines = [json.loads(line) for line in out.splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return run


def assert_documented(report: dict[str, Any]) -> None:
    documented = CLI_DOCS.read_text()
    assert [name for name in report if f"`{name}`" not in documented] == []
