"""A store that has failed for want of something that may come back: room, or file descriptors.

A write that fails for want of these has damaged nothing. Its node leaves its rings all the same: it
can't keep what it is given. It looks again and again whether it could go on, and then begins a new
life in the same process (`running`), as if it had been started again by hand.

Pauses between the looks double while one life after another fails, for a disk that is just about
full would otherwise take its node out of the rings and back every second.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from ringmq_base.limits import MIB

# A new life writes some records of its own, and what the rings have taken meanwhile.
ROOM_BYTES = 4 * MIB
# A store opens a few files at a time, the links and the registry as many again.
DESCRIPTORS = 32
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
# A life that has lasted for so many pauses was no failure of the one before.
PAUSES_SURVIVED = 10


def missing(data: Path) -> str:
    """What a life with this data directory would still lack; empty: nothing. Blocks."""
    try:
        with ExitStack() as opened:
            for _ in range(DESCRIPTORS):
                descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
            file = opened.enter_context(tempfile.TemporaryFile(dir=data))
            # Really allocated: a quota, or room that only root may use, is no number to be read.
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        return str(error)
    return ""


def drop_cached(data: Path) -> None:
    """Lets the kernel forget what it has in memory of the files below `data`. Blocks.

    After a failed sync it may hold pages that it takes for written and that are not on the disk. A
    recovery would read them, and report them as durable. Raises `OSError`.
    """
    for folder, _, names in os.walk(data):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class Pauses:
    """Between the looks of a node, over its lives. Pure; times in seconds, of one clock."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    def after(self, life_s: float) -> float:
        """How long to pause after a life of `life_s`, which has failed."""
        if life_s > PAUSES_SURVIVED * self._pause_s:
            self._pause_s = PAUSE_S_MIN
        else:
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return self._pause_s
