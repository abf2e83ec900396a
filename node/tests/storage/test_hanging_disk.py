"""A disk that doesn't answer, and one that is slower than what is appended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.test_queue_store import publish
from node.tests.storage.workload import LIMITS, QUEUE, open_store

from ringmq_node.storage import Store, StoreFailedError
from ringmq_node.storage import store as store_module
from ringmq_node.storage.watch import WatchedDisk

# Nothing is written in place: on the loop's thread a call can't be seen.
IN_THREADS = replace(LIMITS, sync_in_place_bytes_max=0, disk_timeout_s=0.1)


class Gate(SimulatedDisk):
    """Its writes of some files wait while it is shut."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        # Somebody waits.
        self.reached = threading.Event()
        self._suffix = suffix

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes], *, sync: bool = False
    ) -> None:
        if self._suffix in path.name and not self.open.is_set():
            self.reached.set()
            self.open.wait()
        super().write(path, offset, buffers, sync=sync)


@pytest.fixture(params=[".jif", ".rdq", ".idx"], ids=["round", "bodies", "flush"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    disk = Gate(request.param)
    yield disk
    disk.open.set()


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 0.02)


async def started(store: Store) -> asyncio.Task[None]:
    running = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    return running


def test_a_disk_that_hangs_fails_the_store_and_does_not_keep_it_from_closing(
    gate: Gate, quick_ticks: None
) -> None:
    failed = asyncio.Event()

    async def main() -> None:
        store = open_store(gate, replace(IN_THREADS, journal_entries_max=5, embed_below=100))
        store.on_failed = lambda _: failed.set()
        queue = store.open_queue(QUEUE)
        running = await started(store)
        gate.open.clear()
        publish(queue, [b"x"] * 10)
        publish(queue, [bytes(200)])
        began = time.monotonic()
        async with asyncio.timeout(10):
            await failed.wait()
            assert time.monotonic() - began >= IN_THREADS.disk_timeout_s / 2
            assert "has not come back for 0.1 s" in str(store.failure)
            assert store.statistics().failed_now
            with pytest.raises(StoreFailedError):
                publish(queue, [b"y"])
            with pytest.raises(StoreFailedError):
                await store.sync()
            began = time.monotonic()
            store.close()
            assert time.monotonic() - began < 1.0
            await running
        # The call comes back after all, and nobody minds.
        gate.open.set()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_slow_disk_and_a_process_that_was_stopped_are_not_a_disk_that_hangs() -> None:
    gate = Gate(".jif")
    disk = WatchedDisk(gate)
    gate.open.clear()
    thread = threading.Thread(target=disk.write, args=(Path("/q/1.jif"), 0, [b"x"]), daemon=True)
    thread.start()
    try:
        assert gate.reached.wait(10)
        # However long ago it began: in a second the process has looked once.
        assert disk.look(1.0, 1.0) is None
        late = disk.look(1.0, 1.0)
        assert late == "a write of /q/1.jif has not come back for 1 s"
    finally:
        gate.open.set()
        thread.join(10)
    assert disk.look(60.0, 1.0) is None
