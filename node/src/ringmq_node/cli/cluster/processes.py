"""Node processes on this machine: started detached, found again, ended.

A process is identified by its pid *and* its start time (`/proc/PID/stat`, or `ps` on
systems without /proc). The pid alone isn't enough: systems use pids again, and a pid file
outlives its process. Only a process that matches in both is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/self/stat")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """`started` is opaque: one process keeps it for its whole life."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        return start_of(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Sends the signal; does nothing if the process has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start_of(pid: int) -> str | None:
    """The start time of process `pid`. None if there is no such process, or only a zombie."""
    if _PROC.exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # proc(5): field 2 is the name in brackets, which may hold spaces and brackets itself.
        # State is field 3, starttime field 22.
        values = text[text.rindex(")") + 2 :].split()
        return None if values[0] in "ZX" else values[19]
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return None if len(shown) < 2 or shown[0].startswith("Z") else shown[1].strip()


def spawn(arguments: Sequence[str], log: Path) -> Process:
    """`python ARGUMENTS` in a session of its own, its output appended to `log`.

    `posix_spawn` rather than `subprocess`: the new process outlives this one, and a fork
    while gRPC's threads run could copy a lock that one of them holds.
    """
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (
                os.POSIX_SPAWN_OPEN,
                1,
                os.fspath(log),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                0o644,
            ),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    # A child that has ended by now is a zombie until `reap`; it has no start time.
    return Process(pid, start_of(pid) or "")


def reap(processes: Iterable[Process]) -> None:
    """Collects the exit status of our children among `processes` that have ended."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def write_pid_file(path: Path, process: Process) -> None:
    path.write_text(json.dumps({"pid": process.pid, "started": process.started}) + "\n")


def read_pid_file(path: Path) -> Process | None:
    """The process that the file names; None unless it still runs."""
    try:
        content = json.loads(path.read_text())
        process = Process(int(content["pid"]), str(content["started"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # A crash cut the file short while it was written. Its process can't be known.
        return None
    return process if process.alive else None


def stop(processes: Sequence[Process], *, timeout_s: float) -> list[Process]:
    """SIGTERM to all; after `timeout_s` SIGKILL to those still running, which are returned."""
    for process in processes:
        process.send(signal.SIGTERM)
    late = wait_ended(processes, timeout_s)
    for process in late:
        process.send(signal.SIGKILL)
    wait_ended(late, timeout_s)
    return late


def wait_ended(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """The processes that have not ended in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        reap(processes)
        left = [process for process in processes if process.alive]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_S)
