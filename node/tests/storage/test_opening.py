"""A queue that is read in a thread comes out as one that is read on the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest
from node.tests.storage.queue.test_queue_store import append, publish
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store

from ringmq_node.queue.ops import Remove
from ringmq_node.storage import StoreLimits, opening
from ringmq_node.storage.queue import recovery

LIMITS = StoreLimits(embed_below=50)


def filled() -> SimulatedDisk:
    """Small bodies in the journal, large ones in the message store."""
    disk = SimulatedDisk()
    store = open_store(disk, LIMITS)

    async def work() -> None:
        queue = store.open_queue(QUEUE)
        for number in range(200):
            publish(queue, [b"%d" % number * (1 if number % 2 else 100)])
        append(queue, Remove(((10, 20),)))
        await store.sync()

    run_store(store, work)
    return disk


def test_a_large_journal_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "ASIDE_BYTES_MIN", 100)
    threads: list[int] = []
    real = recovery.recover

    def recover(*arguments: object) -> object:
        threads.append(threading.get_ident())
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "recover", recover)
    disk = filled()
    plain = open_store(disk.copy(), LIMITS)
    expected = plain.open_queue(QUEUE)

    store = open_store(disk, LIMITS)

    async def work() -> None:
        found = await store.recover(QUEUE)
        assert found is not None
        queue = store.open_queue(QUEUE, found=found)
        assert threads
        assert threads[0] != threading.get_ident()
        queue.check()
        assert queue.state == expected.state
        assert bodies(queue) == bodies(expected)
        assert store.statistics().messages == plain.statistics().messages
        assert await store.recover(QUEUE) is None, "it is open"
        # The references were counted: a body goes when its message does, and not before.
        append(queue, Remove(((0, 150),)))
        await store.sync()
        await asyncio.sleep(0)
        assert bodies(queue) == {at: body for at, body in bodies(expected).items() if at > 150}

    run_store(store, work)
    plain.close()


def test_little_is_read_on_the_loop() -> None:
    store = open_store(filled(), LIMITS)

    async def work() -> None:
        assert await store.recover(QUEUE) is None
        assert await store.recover("unknown") is None

    run_store(store, work)
