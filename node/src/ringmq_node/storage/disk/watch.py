"""A disk that is watched, so that one that doesn't answer is noticed.

A system call that never returns raises nothing: an fsync of a device that is gone, or a write to a
network disk without a network. The thread that made the call waits for ever, and so does everybody
who waits for that thread. So each call is noted while it is under way, and the event loop looks at
the notes.

Time is counted in looks, not by a clock. A process that was stopped for a minute finds calls that
are a minute old, though the disk is well.

Thread rule: calls come from any thread, `look` from the event loop's. A call on the event loop's
own thread can't be seen: while it lasts no look is made, and the ring's time-out notices that.
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
        # By thread, as a thread makes one call at a time.
        self._calls: dict[int, _Call] = {}

    def look(self, passed_s: float, waited_s_max: float) -> str | None:
        """Describes the call that has been under way longest, if for more than `waited_s_max`.

        `passed_s` is the time since the last look.
        """
        late: _Call | None = None
        for call in list(self._calls.values()):
            call.waited_s += passed_s
            # Above the limit, not at it: the call may have begun just before its first look.
            if call.waited_s > waited_s_max and (late is None or call.waited_s > late.waited_s):
                late = call
        if late is None:
            return None
        return f"{late.what} of {late.path} has not come back for {waited_s_max:g} s"

    def slow_call(self) -> str:
        """Describes a call that has been under way since before the last look; empty: none is."""
        for call in list(self._calls.values()):
            if call.waited_s:
                return f"{call.what} of {call.path} has not come back yet"
        return ""

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
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        # As `_noted` does it, without a generator: such a call is on the way of each message.
        calls, thread = self._calls, threading.get_ident()
        calls[thread] = _Call("a write", path)
        try:
            self._disk.write(path, offset, buffers, sync=sync)
        finally:
            del calls[thread]

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
