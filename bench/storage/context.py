"""What every case gets: where it may write, and how it runs a workload."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.storage.events import Record
from bench.storage.watch import Watched

# What issue 3 asks: a backlog of any size in a process that stays below this.
BUDGET_BYTES = 256 << 20
_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
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

    def follow(self, watched: Watched, record: Record, until: str) -> None:
        watched.follow(
            record,
            roots=[watched.process.pid],
            directory=self.data,
            until=until,
            deadline_s=_DEADLINE_S,
            say=self.say,
        )

    def run(self, work: str, **parameters: int) -> Record:
        """Runs a workload to its end. Raises `BenchError` if it fails."""
        record = Record()
        with self.start(work, **parameters) as watched:
            self.follow(watched, record, "result")
            watched.wait(timeout_s=120)
        return record


def evict(directory: Path) -> None:
    """Takes all files below `directory` out of the page cache, as a power cut does.

    What is dirty is written first: it can't be evicted, and the case is not about losing it.
    """
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path.is_symlink() or not path.is_file():
                continue
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
