"""The task that looks at memory and disk, tells the store, and raises alarms.

It reads numbers, gives them to the cores (`memory`, `disk`), carries out their decisions, and
sleeps until the first of them wants to look again. Before it calls memory short it has the
allocator return freed memory to the system (`allocator`). A number that can't be read leaves
the state as it was: the monitor logs that once, and tries again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Protocol

from ringmq_node.resources import allocator, cgroup
from ringmq_node.resources.disk import DiskMonitor
from ringmq_node.resources.limits import Limit
from ringmq_node.resources.memory import LOOK_S_MAX, MemoryMonitor

logger = logging.getLogger(__name__)

RETRY_S = 10.0
# After a call of the allocator it is left alone for this many times the call's duration: it
# gets 2 % of the loop's time.
TRIM_REST_RATIO = 50.0


class Alarm(Enum):
    """A reason to block publishers. The value is its name for people."""

    MEMORY = "memory"
    DISK = "disk"
    # Closed for writes, until the node is started again.
    STORE = "store"


class PagingStore(Protocol):
    """A store that keeps messages in memory for as many seconds as it is told to."""

    def ram_durations(self, now: float, /) -> list[float]:
        """The seconds that a queue's messages in memory last at its rates, of each queue that isn't
        idle; `inf`: nearly idle.

        The monitor asks at least each `LOOK_S_MAX`: the store takes its queues' rates from one
        call to the next.
        """

    def set_duration(self, seconds: float, /) -> None:
        """The bound for every queue; `inf`: none.

        The monitor tells it at each look while there is a bound, even an unchanged one, as rates
        change and new queues come; and once when the bound is dropped.
        """


@dataclass(frozen=True, slots=True)
class Usage:
    """The findings of the last look; 0 for a number that has never been read."""

    memory_used_bytes: int
    memory_limit_bytes: int
    memory_total_bytes: int
    memory_alarm: bool
    disk_free_bytes: int
    disk_limit_bytes: int
    disk_alarm: bool
    # How many seconds of messages each queue may keep in memory; `inf`: no bound.
    duration_s: float


def free_bytes(folder: Path) -> int:
    """Bytes of the file system that this user may still fill. Raises `OSError`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class ResourceMonitor:
    """Call `look` once, then `run`."""

    def __init__(
        self,
        data: Path,
        *,
        memory_watermark: Limit,
        disk_free_limit: Limit,
        on_alarm: Callable[[Alarm, bool], None],
        store: PagingStore | None = None,
        root: Path = cgroup.ROOT,
        clock: Callable[[], float] = monotonic,
        disk_free: Callable[[Path], int] = free_bytes,
        trim: Callable[[], None] = allocator.trim,
    ) -> None:
        """`root`: the folder with `proc` and `sys`. Raises `OSError` if this machine doesn't say
        how much memory it has."""
        self._data = data
        self._root = root
        self._clock = clock
        self._disk_free = disk_free
        self._trim = trim
        self._trim_at = -inf
        # A look wanted the allocator called while it rested.
        self._trim_owed = False
        self._store = store
        self._on_alarm = on_alarm
        self.memory_total_bytes = cgroup.memory_bytes(root)
        watermark = memory_watermark.of(self.memory_total_bytes)
        if watermark > self.memory_total_bytes:
            logger.warning(
                "memory_watermark of %d bytes is more than this process may use: %d bytes count",
                watermark,
                self.memory_total_bytes,
            )
        self._memory = MemoryMonitor(min(watermark, self.memory_total_bytes))
        self._disk = DiskMonitor(disk_free_limit.of(self.memory_total_bytes))
        self._memory_at = -inf
        self._disk_at = -inf
        self._ask_at = -inf
        # By alarm, the last error of reading its number, as it was logged.
        self._unread: dict[Alarm, str] = {}

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            due = self.look()
            await asyncio.sleep(max(0.0, due - self._clock()))

    def look(self) -> float:
        """Takes the looks that are due; returns the time of the next one."""
        now = self._clock()
        if now >= self._memory_at:
            self._memory_at = now + self._attempt(Alarm.MEMORY, self._look_at_memory, now)
        if now >= self._disk_at:
            self._disk_at = now + self._attempt(Alarm.DISK, self._look_at_disk, now)
        return min(self._memory_at, self._disk_at)

    def usage(self) -> Usage:
        memory, disk = self._memory.state, self._disk.state
        return Usage(
            memory_used_bytes=memory.used_bytes,
            memory_limit_bytes=self._memory.limit_bytes,
            memory_total_bytes=self.memory_total_bytes,
            memory_alarm=memory.alarmed,
            disk_free_bytes=disk.free_bytes,
            disk_limit_bytes=self._disk.limit_bytes,
            disk_alarm=disk.alarmed,
            duration_s=memory.duration_s,
        )

    def _attempt(self, kind: Alarm, look: Callable[[float], float], now: float) -> float:
        """Seconds to the next look."""
        try:
            seconds = look(now)
        except OSError as error:
            if self._unread.get(kind) != str(error):
                self._unread[kind] = str(error)
                logger.warning("%s can't be watched at the moment: %s", kind.value, error)
            return RETRY_S
        self._unread.pop(kind, None)
        return seconds

    def _look_at_memory(self, now: float) -> float:
        used = self._used_bytes(now)
        before = self._memory.state
        durations: list[float] = []
        wanted = self._memory.wants_durations(used) or now >= self._ask_at
        # Also where no bound needs them: a store that is never asked would know no rates when
        # the first bound comes.
        if self._store is not None and wanted:
            durations = self._store.ram_durations(now)
            self._ask_at = now + LOOK_S_MAX
        state = self._memory.step(used, durations, now=now)
        bounded = isfinite(state.duration_s) or isfinite(before.duration_s)
        if self._store is not None and bounded:
            self._store.set_duration(state.duration_s)
        if state.alarmed != before.alarmed:
            self._changed(Alarm.MEMORY, state.alarmed, "used", used, self._memory.limit_bytes)
        return state.look_s

    def _used_bytes(self, now: float) -> int:
        used = cgroup.resident_bytes(self._root)
        if not self._trim_owed and not self._memory.wants_durations(used):
            return used
        if now < self._trim_at:
            # This may be the look that drops the bound: no later one would ask for memory that
            # was freed since the last trim, and an idle process would keep it for good.
            self._trim_owed = True
            return used
        self._trim_owed = False
        began = self._clock()
        self._trim()
        self._trim_at = now + TRIM_REST_RATIO * (self._clock() - began)
        return cgroup.resident_bytes(self._root)

    def _look_at_disk(self, now: float) -> float:
        free = self._disk_free(self._data)
        before = self._disk.state
        state = self._disk.step(free, now=now)
        if state.alarmed != before.alarmed:
            self._changed(Alarm.DISK, state.alarmed, "free", free, self._disk.limit_bytes)
        return state.look_s

    def _changed(self, kind: Alarm, on: bool, adjective: str, size: int, limit: int) -> None:
        logger.log(
            logging.WARNING if on else logging.INFO,
            "%s alarm %s: %d bytes %s, the limit is %d",
            kind.value,
            "on" if on else "off",
            size,
            adjective,
            limit,
        )
        self._on_alarm(kind, on)
