"""Workloads of a backlog: its drain, and its recovery by a new process after a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench import procs
from bench.storage.driver import Engine, KnownBodies
from bench.storage.events import Teller
from bench.storage.phases import BODIES, QUEUE, drain_phase, publish_phase, quiet
from ringmq_node.queue.ops import Publish
from ringmq_node.storage import Store

# How long a workload waits for the kill that ends it. The kill comes long before.
KILLED_WITHIN_S = 600.0


async def backlog(
    tell: Teller,
    directory: Path,
    *,
    messages: int,
    size: int,
    batch: int,
    window: int,
    budget: int,
) -> None:
    """A backlog far above the budget, and its drain at once afterwards."""
    async with Engine(directory, budget) as engine:
        queue = engine.store.open_queue(QUEUE)
        bodies = KnownBodies(BODIES, size)
        await publish_phase(
            tell, engine, queue, bodies, messages=messages, batch=batch, window=window
        )
        await drain_phase(tell, engine, queue, bodies, "drain", messages)
        await quiet()
        tell.result(memory_alarms=engine.alarms)


async def fill(
    tell: Teller,
    directory: Path,
    *,
    messages: int,
    size: int,
    batch: int,
    window: int,
    budget: int,
) -> None:
    """Publishes a backlog and waits to be killed, in the middle of any background work."""
    async with Engine(directory, budget) as engine:
        queue = engine.store.open_queue(QUEUE)
        await publish_phase(
            tell,
            engine,
            queue,
            KnownBodies(BODIES, size),
            messages=messages,
            batch=batch,
            window=window,
        )
        await asyncio.sleep(KILLED_WITHIN_S)


async def recover(tell: Teller, directory: Path, *, messages: int) -> None:
    """Opens the directory of a killed process: counts the messages and reads the first."""
    tell.begin("recover", messages)
    store = Store.open(directory, cluster_id="bench", node="bench")
    queue = store.open_queue(QUEUE)
    count = len(queue.state.live)
    assert count == messages, f"{count} of {messages} are there"
    if count:
        first = queue.state.live.first
        (run,) = queue.read(first, first, bytes_max=1, messages_max=1)
        assert run.block.count == 1
    tell.end(count)
    tell.result(rss_peak_bytes=procs.own_rss_peak_bytes())


async def fill_queues(tell: Teller, directory: Path, *, queues: int, size: int) -> None:
    """Publishes one message to each of many queues and waits to be killed."""
    bodies = KnownBodies(BODIES, size)
    async with Engine(directory) as engine:
        tell.begin("fill", queues)
        for number in range(queues):
            queue = engine.store.open_queue(f"bench-{number}")
            await engine.append(queue, Publish(0, bodies.block(number, 1)), 1)
            tell.progress(number)
        await engine.store.sync()
        tell.end(queues)
        await asyncio.sleep(KILLED_WITHIN_S)


async def recover_queues(tell: Teller, directory: Path, *, queues: int) -> None:
    """Opens all of many queues, and reads the message of each."""
    tell.begin("recover", queues)
    store = Store.open(directory, cluster_id="bench", node="bench")
    names = store.queue_names()
    for done, name in enumerate(names):
        queue = store.open_queue(name)
        assert len(queue.state.live) == 1, f"{name} has {len(queue.state.live)} messages"
        assert queue.read(0, 0, bytes_max=1, messages_max=1), f"{name} can't be read"
        tell.progress(done)
    assert len(names) == queues, f"{len(names)} of {queues} queues are there"
    tell.end(queues)
    tell.result(rss_peak_bytes=procs.own_rss_peak_bytes())
