"""In a node's process that `bench profile` has started: cProfile, between two signals.

Every Python imports a `sitecustomize` that it finds on its path; `bench profile` puts this folder
there for its own nodes. So the nodes have no option for it, and run as they always do. SIGUSR1
begins; SIGUSR2 ends, and writes `PID.pstats` into the folder that the environment names.

The profile is of the event loop's thread. Its clock is the wall's: that of the thread's processor
time takes a system call for each look at it, which made small functions ten times as long.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

FOLDER_VARIABLE = "RINGMQ_BENCH_PROFILES"
# Neither `ringmq cluster up`, which starts the nodes, nor the client.
NODE = ["-m", "ringmq_node.cli", "node", "start"]


def install(folder: Path) -> None:
    import cProfile

    profile = cProfile.Profile()

    def begin(_signal_number: int, _frame: object) -> None:
        profile.enable()

    def end(_signal_number: int, _frame: object) -> None:
        profile.disable()
        unready = folder / f"{os.getpid()}.unready"
        profile.dump_stats(unready)
        # Else the next one would have all of this one in it.
        profile.clear()
        # The bench takes a file as soon as it has its name.
        unready.rename(folder / f"{os.getpid()}.pstats")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)


if FOLDER_VARIABLE in os.environ and sys.orig_argv[1 : 1 + len(NODE)] == NODE:
    install(Path(os.environ[FOLDER_VARIABLE]))
