"""Sees a disk that doesn't answer.

A call of the system that never returns raises nothing: an fsync of a device that is gone, a write
to a network disk without a network. The thread that made it waits for ever, and whoever waits for
the thread, too. So every call is noted while it is under way, and the event loop looks at them.

Time is counted in looks, not by a clock: a process that was stopped for a minute finds calls that
are a minute old, and a disk that is well.

Thread rule: calls come from any thread, `look` from the event loop's. A call on the event loop's
own thread is not seen: while it lasts nothing here beats, and the ring's time-out sees that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk


@dataclass(slots=True)
class _Call:
    what: str
    path: Path
    waited_s: float = 0.0


class WatchedDisk:
    """A `Disk` that says how long its calls have been under way."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # By thread: none makes two at a time.
        self._calls: dict[int, _Call] = {}

    def look(self, passed_s: float, waited_s_max: float) -> str | None:
        """`passed_s` have gone by since the last look. What has waited for longer than
        `waited_s_max`, or None."""
        late: _Call | None = None
        for call in list(self._calls.values()):
            call.waited_s += passed_s
            # Above, not at: of the first of these steps it may have seen only the end.
            if call.waited_s > waited_s_max and (late is None or call.waited_s > late.waited_s):
                late = call
        if late is None:
            return None
        return f"{late.what} of {late.path} has not come back for {waited_s_max:g} s"

    @contextmanager
    def _noted(self, what: str, path: Path) -> Iterator[None]:
        thread = threading.get_ident()
        self._calls[thread] = _Call(what, path)
        try:
            yield
        finally:
            del self._calls[thread]

    # -- Disk

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes], *, sync: bool = False
    ) -> None:
        with self._noted("a write", path):
            self._disk.write(path, offset, buffers, sync=sync)

    def sync(self, path: Path) -> None:
        with self._noted("a sync", path):
            self._disk.sync(path)

    def sync_all(self, directory: Path) -> None:
        with self._noted("a sync", directory):
            self._disk.sync_all(directory)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        with self._noted("a read", path):
            return self._disk.read(path, offset, size)

    def rename(self, old: Path, new: Path) -> None:
        with self._noted("a rename", old):
            self._disk.rename(old, new)

    def remove(self, path: Path) -> None:
        with self._noted("the removal", path):
            self._disk.remove(path)

    def list(self, path: Path) -> dict[str, int]:
        with self._noted("a listing", path):
            return self._disk.list(path)
