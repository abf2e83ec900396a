"""Processes: their CPU, memory and disk, their ports, and their end.

CPU comes from `/proc/PID/stat` (proc(5)): user and system time of a process,
of its children that have ended and been waited for, and of the tree of its
living children, in ticks of 1/`SC_CLK_TCK` s (10 ms here). Children that
nobody waited for are missing in it: `bench/ended.py` has them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """One line of `/proc/PID/stat`: the parent, and ticks with ended children's."""

    parent: int
    ticks: int


@dataclass(frozen=True, slots=True)
class MachineCpu:
    """Time that all cores together were busy, at a moment, or over a time."""

    busy_s: float
    elapsed_s: float

    def since(self, earlier: MachineCpu) -> MachineCpu:
        return MachineCpu(self.busy_s - earlier.busy_s, self.elapsed_s - earlier.elapsed_s)


def parse_stat(text: str) -> ProcessTimes:
    # The name, second field, may hold spaces and brackets: count from its last one.
    fields = text[text.rindex(")") + 2 :].split()
    # proc(5) counts from 1: 4 is ppid, 14 to 17 are utime, stime, cutime, cstime.
    return ProcessTimes(parent=int(fields[1]), ticks=sum(map(int, fields[11:15])))


def all_processes() -> dict[int, ProcessTimes]:
    found: dict[int, ProcessTimes] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            # One that ended between the listing and the reading isn't there any more.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[int(entry.name)] = parse_stat((entry / "stat").read_text())
    return found


def tree_pids(roots: Iterable[int], processes: dict[int, ProcessTimes]) -> set[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, times in processes.items():
        children[times.parent].append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children[pid])
    return found


def tree_cpu_s(roots: Iterable[int]) -> float:
    """CPU seconds so far of these processes and all that they started."""
    processes = all_processes()
    return sum(processes[pid].ticks for pid in tree_pids(roots, processes)) / TICKS_PER_S


def _status_kib(pid: int, field: str) -> int:
    """A figure of `/proc/PID/status`; 0 for a process that has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
    return 0


@dataclass(frozen=True, slots=True)
class TreeUse:
    """The CPU that a tree of processes has used so far, and its memory.

    `rss_bytes` is resident memory now. `rss_peak_bytes` is the sum of the peaks that the kernel
    keeps for each process: sampling would miss short ones. With more than one process the peaks
    may have been at different times.
    """

    cpu_s: float
    rss_bytes: int
    rss_peak_bytes: int


def tree_use(roots: Iterable[int]) -> TreeUse:
    processes = all_processes()
    pids = tree_pids(roots, processes)
    return TreeUse(
        cpu_s=sum(processes[pid].ticks for pid in pids) / TICKS_PER_S,
        rss_bytes=sum(_status_kib(pid, "VmRSS") for pid in pids) << 10,
        rss_peak_bytes=sum(_status_kib(pid, "VmHWM") for pid in pids) << 10,
    )


def own_rss_peak_bytes() -> int:
    """Not from getrusage(2): its peak is that of the parent, if that was larger at the fork."""
    return _status_kib(os.getpid(), "VmHWM") << 10


def own_written_bytes() -> int:
    """Bytes that this process has had sent to the disk, or will have (proc(5), `io`)."""
    return _written_bytes(os.getpid())


def tree_written_bytes(roots: Iterable[int]) -> int:
    """The same of these processes and all that they started, as far as they still run."""
    total = 0
    for pid in tree_pids(roots, all_processes()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += _written_bytes(pid)
    return total


def _written_bytes(pid: int) -> int:
    for line in (_PROC / str(pid) / "io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise OSError(f"/proc/{pid}/io doesn't say write_bytes")


def disk_use_bytes(directory: Path) -> int:
    """Disk space of all files below `directory`. Files may come and go meanwhile."""
    total = 0
    waiting = [directory]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        # stat(2): in units of 512 bytes, on file systems with larger blocks too.
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def own_cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def machine_cpu() -> MachineCpu:
    # "cpu user nice system idle iowait irq softirq steal guest guest_nice"; guest is in user.
    ticks = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return MachineCpu((sum(ticks) - idle) / TICKS_PER_S, time.monotonic())


def filesystem_of(directory: Path) -> str:
    """The type of the file system: on tmpfs an fsync costs nothing, and shows nothing."""
    best, kind = "", "unknown"
    for line in (_PROC / "mounts").read_text().splitlines():
        _, mount, type_name, *_ = line.split()
        if directory.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, type_name
    return kind


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def wait_until(done: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.1) -> bool:
    """Asks until `done` or the deadline; returns the last answer."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True


def kill_group(process: subprocess.Popen[bytes], *, timeout_s: float = 10) -> None:
    """Kills a process started with `start_new_session`, and its group, and waits for it.

    SIGKILL at once: a benchmark's data is thrown away, an orderly stop takes seconds.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout_s)
