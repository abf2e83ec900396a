"""The result file. A run of some rows takes the place of these rows in a file that is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import BenchError
from bench.pipeline import report
from bench.pipeline.measured import Measured


@dataclass(frozen=True, slots=True)
class Result:
    """`facts`: of each row, those of the run that measured it."""

    facts: dict[str, dict[str, Any]]
    runs: list[Measured]

    def to_json(self, name: str) -> dict[str, Any]:
        return {"name": name, "rows": self.facts, **report.to_json(self.runs)}


def merged(path: Path, rows: Sequence[str], facts: dict[str, Any], runs: list[Measured]) -> Result:
    """With the other rows of the file, if it is there. Raises `BenchError` for a file that is no
    result of this benchmark."""
    found = _read(path) if path.exists() else Result({}, [])
    kept = {row: of_row for row, of_row in found.facts.items() if row not in rows}
    others = [each for each in found.runs if each.row not in rows]
    return Result(kept | dict.fromkeys(rows, facts), others + runs)


def _read(path: Path) -> Result:
    try:
        content = json.loads(path.read_text())
        runs = [Measured.from_json(each) for each in content["measurements"]]
        return Result(dict(content["rows"]), runs)
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path} is no result of this benchmark ({error!r}): give another name to --save"
        ) from error
