"""The task: it reads its numbers when due, tells store and node, and survives failed reads."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path

import pytest
from children import child_environment
from loops import run

from ringmq_node.resources import Alarm, ResourceMonitor
from ringmq_node.resources.limits import MemoryFraction, Size
from ringmq_node.resources.memory import LOOK_S_MAX
from ringmq_node.resources.monitor import RETRY_S, TRIM_REST_RATIO, free_bytes

KIB_TOTAL = 1_000_000
LIMIT = 400_000 * 1024
PAGING = LIMIT // 2


@dataclass
class Machine:
    """A machine whose numbers the test sets. Its clock stands still unless it is moved."""

    root: Path
    free: int = 10**12
    free_after_trim: int | None = None
    now: float = 1000.0
    trims: int = 0
    trim_takes_s: float = 0.0
    alarms: list[tuple[Alarm, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "proc/self").mkdir(parents=True)
        (self.root / "proc/meminfo").write_text(f"MemTotal: {KIB_TOTAL} kB\n")
        self.use(0)

    def use(self, size_bytes: int) -> None:
        pages = size_bytes // os.sysconf("SC_PAGE_SIZE")
        (self.root / "proc/self/statm").write_text(f"0 {pages} 0 0 0 0 0\n")

    def clock(self) -> float:
        return self.now

    def disk_free(self, folder: Path) -> int:
        if self.free < 0:
            raise OSError(f"{folder} is gone")
        return self.free

    def trim(self) -> None:
        self.trims += 1
        self.now += self.trim_takes_s
        if self.free_after_trim is not None:
            self.use(self.free_after_trim)

    def alarm(self, kind: Alarm, on: bool) -> None:
        self.alarms.append((kind, on))

    def monitor(self, store: Queues | None = None) -> ResourceMonitor:
        return ResourceMonitor(
            Path("/data"),
            memory_watermark=MemoryFraction(0.4),
            disk_free_limit=Size(50_000_000),
            on_alarm=self.alarm,
            store=store,
            root=self.root,
            clock=self.clock,
            disk_free=self.disk_free,
            trim=self.trim,
        )


class Queues:
    """A store that counts the questions and records the bounds."""

    def __init__(self) -> None:
        self.asked = 0
        self.told: list[float] = []

    def ram_durations(self, now: float) -> list[float]:
        self.asked += 1
        return [10.0, inf]

    def set_duration(self, seconds: float) -> None:
        self.told.append(seconds)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_usage_is_that_of_the_last_look(machine: Machine) -> None:
    monitor = machine.monitor()
    machine.use(100 << 20)
    monitor.look()
    usage = monitor.usage()
    assert usage.memory_used_bytes == 100 << 20
    assert (usage.memory_limit_bytes, usage.memory_total_bytes) == (LIMIT, KIB_TOTAL * 1024)
    assert (usage.disk_free_bytes, usage.disk_limit_bytes) == (10**12, 50_000_000)
    assert (usage.memory_alarm, usage.disk_alarm, usage.duration_s) == (False, False, inf)


def test_each_is_looked_at_when_it_is_due(machine: Machine) -> None:
    monitor = machine.monitor()
    began = machine.now
    machine.free = 50_000_000 + 250_000_000
    due = monitor.look()
    # The disk after 0.5 s; the memory, of 400 MB of which nothing is used, after 0.41.
    assert due == pytest.approx(began + PAGING / 250e6 / 2)
    machine.now, machine.free = due, 100_000_000
    due = monitor.look()
    assert monitor.usage().disk_free_bytes == 300_000_000
    assert due == pytest.approx(began + 0.5)


def test_alarms_are_told_and_logged_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monitor = machine.monitor()
    for used, free in ((0, 10**12), (LIMIT, 10**12), (LIMIT, 1), (LIMIT, 1), (0, 10**12)):
        machine.use(used + 4096)
        machine.free = free
        machine.now += 20.0
        monitor.look()
    memory, disk = Alarm.MEMORY, Alarm.DISK
    assert machine.alarms == [(memory, True), (disk, True), (memory, False), (disk, False)]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"memory alarm on: {LIMIT + 4096} bytes used, the limit is {LIMIT}"),
        ("WARNING", "disk alarm on: 1 bytes free, the limit is 50000000"),
        ("INFO", f"memory alarm off: 4096 bytes used, the limit is {LIMIT}"),
        ("INFO", f"disk alarm off: {10**12} bytes free, the limit is 50000000"),
    ]


def test_the_store_is_told_while_there_is_a_bound_and_when_it_goes(machine: Machine) -> None:
    store = Queues()
    monitor = machine.monitor(store)
    for used in (0, PAGING - 4096, PAGING, PAGING, PAGING * 2, 0, 0, 0, 0, 0, 0, 0, 0):
        machine.use(used)
        machine.now += 20_000.0
        monitor.look()
    # At the mark, at twice the mark, and then it rises until it is twice what the queue holds.
    rises = [5.0 * 1.25**each for each in range(1, 7)]
    assert store.told == pytest.approx([10.0, 10.0, 5.0, *rises, inf], rel=0.001)
    assert monitor.usage().duration_s == inf


def test_the_store_is_asked_each_few_seconds_and_more_often_while_it_matters(
    machine: Machine,
) -> None:
    def asked(seconds: float) -> int:
        before, end = store.asked, machine.now + seconds
        while machine.now < end:
            machine.now = max(machine.now, monitor.look())
        return store.asked - before

    store = Queues()
    monitor = machine.monitor(store)
    machine.use(PAGING - 4096)
    assert 36 <= asked(100.0) <= 41
    machine.use(PAGING)
    assert asked(100.0) > 200


def test_memory_that_the_allocator_gives_back_is_not_in_use(machine: Machine) -> None:
    store = Queues()
    monitor = machine.monitor(store)
    machine.use(LIMIT)
    machine.free_after_trim = 4096
    monitor.look()
    assert (machine.trims, monitor.usage().memory_used_bytes) == (1, 4096)
    assert (store.told, machine.alarms) == ([], [])
    machine.now += 20.0
    monitor.look()
    assert machine.trims == 1


def test_the_allocator_is_called_for_a_fiftieth_of_the_time_at_most(machine: Machine) -> None:
    monitor = machine.monitor(Queues())
    machine.trim_takes_s = 0.1
    machine.use(PAGING)
    began = machine.now
    while machine.now < began + 60.0:
        machine.now = max(machine.now, monitor.look())
    assert 10 <= machine.trims <= 12


def test_memory_that_is_freed_while_the_allocator_rests_is_given_back_later(
    machine: Machine,
) -> None:
    """The look that drops the bound would have been the last one with a trim."""
    monitor = machine.monitor(Queues())
    machine.trim_takes_s = 0.1
    machine.use(PAGING)
    monitor.look()
    assert (machine.trims, isfinite(monitor.usage().duration_s)) == (1, True)
    machine.use(PAGING // 2)
    machine.free_after_trim = 4096
    began = machine.now
    while machine.now < began + TRIM_REST_RATIO * machine.trim_takes_s + LOOK_S_MAX:
        machine.now = monitor.look()
    assert (machine.trims, monitor.usage().memory_used_bytes) == (2, 4096)
    assert not isfinite(monitor.usage().duration_s)
    while machine.now < began + 60.0:
        machine.now = monitor.look()
    assert machine.trims == 2


def test_a_number_that_can_not_be_read_is_logged_once_and_tried_again(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = machine.monitor()
    machine.free = 1
    monitor.look()
    machine.free = -1
    (machine.root / "proc/self/statm").write_text("")
    for _ in range(3):
        machine.now += RETRY_S
        assert monitor.look() == machine.now + RETRY_S
    assert monitor.usage().disk_alarm
    said = [record.getMessage() for record in caplog.records]
    assert said[1:] == [
        "memory can't be watched at the moment: /proc/self/statm can't be read:"
        " list index out of range",
        "disk can't be watched at the moment: /data is gone",
    ]
    machine.free = 10**12
    machine.use(0)
    machine.now += RETRY_S
    monitor.look()
    assert not monitor.usage().disk_alarm


def test_a_watermark_above_the_memory_counts_as_all_of_it(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = ResourceMonitor(
        Path("/data"),
        memory_watermark=Size(10**12),
        disk_free_limit=MemoryFraction(0.5),
        on_alarm=machine.alarm,
        root=machine.root,
    )
    assert monitor.usage().memory_limit_bytes == KIB_TOTAL * 1024
    assert monitor.usage().disk_limit_bytes == KIB_TOTAL * 512
    assert "more than" in caplog.text


def test_the_task_looks_until_it_is_cancelled(tmp_path: Path, machine: Machine) -> None:
    """On this machine's disk and clock."""

    async def story() -> None:
        short = asyncio.Event()
        monitor = ResourceMonitor(
            tmp_path,
            memory_watermark=Size(LIMIT),
            disk_free_limit=Size(0),
            on_alarm=lambda kind, on: short.set(),
            root=machine.root,
        )
        monitor.look()
        task = asyncio.create_task(monitor.run())
        machine.use(LIMIT)
        await asyncio.wait_for(short.wait(), 30)
        assert monitor.usage().memory_alarm
        assert isfinite(monitor.usage().duration_s)
        assert monitor.usage().disk_free_bytes > 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(story())


def test_a_data_directory_that_is_gone(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    with pytest.raises(OSError, match="No such file"):
        free_bytes(tmp_path / "absent")


@pytest.mark.slow
def test_a_real_process_stays_inside_its_budget_and_keeps_messages_in_memory() -> None:
    """A process that takes in far more than its watermark, blocks among other objects."""
    child = Path(__file__).with_name("paging_child.py")
    ended = subprocess.run(
        [sys.executable, str(child)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=child_environment(),
    )
    assert ended.returncode == 0, ended.stderr
    limit, taken, peak, busy, kept, idle, bound_s = map(float, ended.stdout.split())
    assert taken > 2 * limit, ended.stdout
    assert peak < limit, ended.stdout
    # It came to rest near half of the limit, and not by throwing all out.
    assert busy < 0.65 * limit, ended.stdout
    assert kept > 0.15 * limit, ended.stdout
    # And the memory that it freed is the system's again.
    assert idle < 0.2 * limit, ended.stdout
    assert bound_s == inf, ended.stdout
