"""The result file. A run of some rows takes the place of these rows in a file that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import BenchError
from bench.pipeline import report
from bench.pipeline.measured import Measured


@dataclass(frozen=True, slots=True)
class Result:
    """`facts`: of each row, those of the run that measured it. `complete` is among them."""

    facts: dict[str, dict[str, Any]]
    runs: list[Measured]

    def to_json(self, name: str) -> dict[str, Any]:
        return {"name": name, "rows": self.facts, **report.to_json(self.runs)}

    def write(self, path: Path) -> None:
        """The file that is there stays whole until the new one is."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.to_json(path.stem), indent=2) + "\n")
        new.replace(path)


def merged(path: Path, facts: Mapping[str, dict[str, Any]], runs: Sequence[Measured]) -> Result:
    """With the other rows of the file, if it is there. A row that isn't complete leaves a complete
    one in its place. Raises `BenchError` for a file that is no result of this benchmark."""
    found = _read(path) if path.exists() else Result({}, [])
    taken = {
        row
        for row, of_row in facts.items()
        if of_row["complete"] or row not in found.facts or not found.facts[row]["complete"]
    }
    together = {row: of_row for row, of_row in found.facts.items() if row not in taken}
    together |= {row: of_row for row, of_row in facts.items() if row in taken}
    others = [each for each in found.runs if each.row not in taken]
    return Result(together, others + [each for each in runs if each.row in taken])


def _read(path: Path) -> Result:
    try:
        content = json.loads(path.read_text())
        runs = [Measured.from_json(each) for each in content["measurements"]]
        return Result(dict(content["rows"]), runs)
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path} is no result of this benchmark ({error!r}): give another name to --save"
        ) from error
