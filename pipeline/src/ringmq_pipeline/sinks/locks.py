"""A lock of a table or a job, among the processes of one machine: `flock` on a file of it.

The system frees it when its holder ends, however that ends, so nothing is left to clear up. Among
several machines it holds only where the file system carries `flock` to them (NFS does, unless it is
mounted with `local_lock`). Elsewhere only the source's lease keeps two ingests of one queue apart,
and nothing two replays.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ringmq_pipeline.errors import JobError

# A holder needs tens of milliseconds for its syncs, or seconds if it has to read a large batch's
# positions. One that is stopped holds the lock until it goes on or ends: who waits says so.
WAIT_S: Final = 60.0
POLL_S: Final = 0.01


@contextmanager
def locked(file: Path, wait_s: float = WAIT_S, *, whose: str = "the table's") -> Iterator[None]:
    """The file is made if it isn't there, and stays. Raises `JobError`."""
    deadline = time.monotonic() + wait_s
    # Over NFS, a file has to be open for writing.
    with file.open("ab") as opened:
        while not _take(opened.fileno(), file):
            if time.monotonic() >= deadline:
                held = f"has held {whose} lock for {wait_s:g} s" if wait_s else f"has {whose} lock"
                raise JobError(
                    f"{file}: another process {held}: end it if it was stopped, and start again"
                )
            time.sleep(POLL_S)
        yield


def _take(descriptor: int, file: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise JobError(
            f"{file}: the file system has no locks (flock), which keep two processes from writing "
            f"the same rows: {error}"
        ) from error
    return True
