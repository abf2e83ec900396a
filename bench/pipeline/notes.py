"""What a run has measured so far. It is in the result file after each measurement.

A run takes half an hour or more. If it is interrupted, the file has what was measured until then.
If a part of it fails, the other parts are measured all the same, and the run fails at its end.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.comparison import Say
from bench.measure import BenchError
from bench.pipeline.measured import Measured
from bench.pipeline.saved import Result, merged


class Notes:
    """`facts`: of the run, for each of its rows. Raises `BenchError` for a file that is there and
    is no result of this benchmark, before anything is measured."""

    def __init__(self, path: Path, rows: Sequence[str], facts: dict[str, Any], say: Say) -> None:
        self._path, self._rows, self._facts, self._say = path, rows, facts, say
        self._began = time.monotonic()
        self._complete: set[str] = set()
        self.runs: list[Measured] = []
        self.failed: dict[str, str] = {}
        self.result()

    def say(self, text: str) -> None:
        """Progress, with the time since the run began."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._say(f"{minutes:3}:{seconds:02}  {text}")

    def take(self, measured: Measured) -> None:
        self.runs.append(measured)
        self.say(measured.line())
        self.save()

    def complete(self, rows: Iterable[str]) -> None:
        """Everything of these rows is measured, but for those of which a part has failed."""
        self._complete |= {*rows} - self.failed.keys()
        self.save()

    @contextmanager
    def part(self, rows: Iterable[str], what: str) -> Iterator[None]:
        """What fails in the block fails these rows, and the run goes on behind the block. An
        interrupt ends the run."""
        try:
            yield
        except Exception as error:
            if (interrupt := _interrupt_behind(error)) is not None:
                raise interrupt from error
            for row in rows:
                self.failed.setdefault(row, f"{what}: {error}")
            why = str(error) if isinstance(error, BenchError) else traceback.format_exc()
            self.say(f"{what} has failed: {why}")

    def result(self) -> Result:
        """With the other rows of the file, if it is there."""
        measured = {each.row for each in self.runs}
        facts = {
            row: self._facts | {"complete": row in self._complete}
            for row in self._rows
            if row in measured
        }
        return merged(self._path, facts, self.runs)

    def save(self) -> None:
        self.result().write(self._path)

    def check(self) -> None:
        """Raises `BenchError` if a part has failed."""
        if self.failed:
            told = "; ".join(f"{row}: {why}" for row, why in self.failed.items())
            raise BenchError(f"rows that aren't complete: {told}")


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """A SIGTERM or Ctrl-C, after which Spark or a node hasn't ended as it should."""
    at: BaseException | None = error
    while at is not None and isinstance(at, Exception):
        at = at.__context__
    return at
