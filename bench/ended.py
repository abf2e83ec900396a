"""The processor time of processes whose parents don't ask for it.

A process that has ended counts for its parent, once that waits for it. A parent that ignores
SIGCHLD never waits (wait(2)), and the time is gone with the process. Spark's daemon of Python
workers is such a parent, and kills the worker of a task that has failed. So the sum of a tree of
processes (`bench.procs`) falls when such a one ends, and a difference of two sums may be below 0.

Here a thread looks at the children of such parents again and again, and keeps the newest figure
of each that isn't there any more. What a child uses after the last look at it is not seen: at most
`EVERY_S` of each of its threads, and more if this thread had to wait for a processor.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from bench import procs

EVERY_S = 0.1
# All processes of the machine are looked at for new parents: 5 ms each time.
LOOKS_PER_SEARCH = 10
_PROC = Path("/proc")
_SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)


class EndedChildren:
    """A context manager: it looks while its block runs. `roots`: the trees that it looks at."""

    def __init__(self, roots: Iterable[int], every_s: float = EVERY_S) -> None:
        self._roots = list(roots)
        self._every_s = every_s
        self._parents: list[int] = []
        # Ticks by process id, of those that were there at the last look.
        self._living: dict[int, int] = {}
        self._ended_ticks = 0
        self._stop = threading.Event()
        # Both the thread and the caller look.
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ended-children", daemon=True)

    def __enter__(self) -> EndedChildren:
        self._look(search=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """CPU seconds that children of such parents had used when they ended, since the begin of
        the block. `procs.tree_cpu_s` has none of it any more."""
        self._look(search=False)
        return self._ended_ticks / procs.TICKS_PER_S

    def _run(self) -> None:
        looks = 0
        while not self._stop.wait(self._every_s):
            looks += 1
            self._look(search=looks % LOOKS_PER_SEARCH == 0)

    def _look(self, *, search: bool) -> None:
        with self._looking:
            if search:
                tree = procs.tree_pids(self._roots, procs.all_processes())
                self._parents = [pid for pid in tree if _ignores_children(pid)]
            living = _ticks_of(itertools.chain.from_iterable(map(_children, self._parents)))
            for pid, ticks in self._living.items():
                # Fewer ticks: the id is another process's by now.
                if living.get(pid, -1) < ticks:
                    self._ended_ticks += ticks
            self._living = living


def _children(parent: int) -> list[int]:
    """Of all its threads (proc(5), `children`, which a few kernels are built without)."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in (_PROC / str(parent) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _ticks_of(pids: Iterable[int]) -> dict[int, int]:
    found = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = procs.parse_stat((_PROC / str(pid) / "stat").read_text()).ticks
    return found


def _ignores_children(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & _SIGCHLD_BIT)
    return False
