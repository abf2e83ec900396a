"""The surroundings of a case: its directory, and how it starts and follows a workload."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.storage.observations import Observations
from bench.storage.watch import Watched

# A process with a backlog of any size has to stay below this.
BUDGET_BYTES = 256 << 20
_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """`messages` of `size` bytes, at most `window` of them unconfirmed."""

    messages: int
    size: int
    window: int


@dataclass(frozen=True, slots=True)
class Context:
    """`directory` is empty, on the disk that is measured, and removed after the case."""

    directory: Path
    build: Path
    say: Callable[[str], None]

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "stderr"

    def start(self, work: str, **parameters: int) -> Watched:
        """Starts a workload of `bench.storage.work` on `data`."""
        command = [sys.executable, "-m", "bench.storage.work", work, str(self.data)]
        return Watched([*command, json.dumps(parameters)], self.log)

    def follow(self, watched: Watched, observed: Observations, until: str) -> None:
        watched.follow(
            observed,
            roots=[watched.process.pid],
            directory=self.data,
            until=until,
            deadline_s=_DEADLINE_S,
            say=self.say,
        )

    def run(self, work: str, **parameters: int) -> Observations:
        """Runs a workload to its end. Raises `BenchError` if it fails."""
        observed = Observations()
        with self.start(work, **parameters) as watched:
            self.follow(watched, observed, "result")
            watched.wait(timeout_s=120)
        return observed
