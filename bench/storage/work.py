"""The workloads, each in a process of its own: `python -m bench.storage.work NAME DIRECTORY JSON`.

JSON holds the workload's parameters by name; all are whole numbers, sizes in bytes. The workload
tells its phases as `events` on stdout. The process that starts it (`watch`) samples its memory and
its files meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench import procs
from bench.peers.footing import write_all
from bench.storage import driver
from bench.storage.driver import Engine, KnownBodies
from bench.storage.events import Teller
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import MESSAGE_ID_BYTES, Publish, Remove
from ringmq_node.storage import Store

Work = Callable[..., Coroutine[Any, Any, None]]

QUEUE = "bench"
# The number of different bodies: a multiple of no batch, so that batches differ.
BODIES = 997
# When the engine has written nothing for so long, it has nothing put off: it flushes an idle queue
# after 5 s, and looks for garbage each second.
QUIET_S = 8.0
QUIET_DEADLINE_S = 180.0
# Acks on their way to the disk while more is read.
ACK_WINDOW = 16
# How long a workload waits for the kill that ends it. The kill comes long before.
KILLED_WITHIN_S = 600.0


async def quiet() -> None:
    """Returns when the engine has written nothing for `QUIET_S`, or at the deadline."""
    deadline = time.monotonic() + QUIET_DEADLINE_S
    written, since = -1, 0.0
    while (now := time.monotonic()) < deadline:
        if written != (written := procs.own_written_bytes()):
            since = now
        elif now - since >= QUIET_S:
            return
        await asyncio.sleep(0.1)


async def append(
    tell: Teller, directory: Path, *, messages: int, size: int, batch: int, window: int
) -> None:
    """Publishes. The time ends with the last confirm; bytes are counted until all is quiet."""
    async with Engine(directory) as engine:
        queue = engine.store.open_queue(QUEUE)
        bodies = KnownBodies(BODIES, size)
        await engine.publish(
            queue, bodies, messages=batch, batch=batch, window=1, told=lambda _done: None
        )
        before = procs.own_written_bytes()
        tell.begin("append", messages)
        await engine.publish(
            queue, bodies, messages=messages, batch=batch, window=window, told=tell.progress
        )
        tell.end(messages)
        await quiet()
        tell.result(written_bytes=procs.own_written_bytes() - before)


async def limit(tell: Teller, directory: Path, *, messages: int, size: int, per_sync: int) -> None:
    """The same bytes by the shortest loop: `writev` of `per_sync` messages, `fdatasync`."""
    os.makedirs(directory, exist_ok=True)
    body = os.urandom(size)
    descriptor = os.open(directory / "limit", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        write_all(descriptor, body, per_sync)
        os.fdatasync(descriptor)
        before = procs.own_written_bytes()
        tell.begin("append", messages)
        done = 0
        while done < messages:
            count = min(per_sync, messages - done)
            write_all(descriptor, body, count)
            os.fdatasync(descriptor)
            done += count
            tell.progress(done)
        tell.end(messages)
        tell.result(written_bytes=procs.own_written_bytes() - before)
    finally:
        os.close(descriptor)


async def consume(
    tell: Teller, directory: Path, *, messages: int, size: int, batch: int, window: int
) -> None:
    """Reads and acks a backlog, once the engine has flushed all that it had put off."""
    async with Engine(directory) as engine:
        queue = engine.store.open_queue(QUEUE)
        bodies = KnownBodies(BODIES, size)
        tell.begin("fill", messages)
        await engine.publish(
            queue, bodies, messages=messages, batch=batch, window=window, told=tell.progress
        )
        tell.end(messages)
        await quiet()
        tell.begin("consume", messages)
        done = await engine.drain(queue, bodies, window=ACK_WINDOW, told=tell.progress)
        assert done == messages, f"{done} of {messages} came back"
        tell.end(done)
        tell.result()


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
        tell.begin("fill", messages)
        await engine.publish(
            queue, bodies, messages=messages, batch=batch, window=window, told=tell.progress
        )
        tell.end(messages)
        tell.begin("drain", messages)
        done = await engine.drain(queue, bodies, window=ACK_WINDOW, told=tell.progress)
        assert done == messages, f"{done} of {messages} came back"
        tell.end(done)
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
        tell.begin("fill", messages)
        await engine.publish(
            queue,
            KnownBodies(BODIES, size),
            messages=messages,
            batch=batch,
            window=window,
            told=tell.progress,
        )
        tell.end(messages)
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


async def fan_out(
    tell: Teller, directory: Path, *, messages: int, size: int, queues: int, window: int
) -> None:
    """Each body goes to all queues under one message id."""
    bodies = KnownBodies(BODIES, size)
    async with Engine(directory) as engine:
        opened = [engine.store.open_queue(f"bench-{number}") for number in range(queues)]
        before = procs.own_written_bytes()
        tell.begin("publish", messages)
        for number in range(messages):
            block = bodies.block(number, 1)
            message_id = number.to_bytes(MESSAGE_ID_BYTES, "little")
            for queue in opened:
                op = Publish(number, block, message_id=message_id)
                await engine.append(queue, op, window)
            tell.progress(number)
        for queue in opened:
            await engine.confirmed(queue)
        tell.end(messages)
        await quiet()
        tell.result(written_bytes=procs.own_written_bytes() - before)
        for queue in opened:
            assert len(queue.state.live) == messages
            for position in (0, messages - 1):
                (run,) = queue.read(position, position, bytes_max=1, messages_max=1)
                bodies.check(position, run.block.bodies()[0])


async def compaction(
    tell: Teller,
    directory: Path,
    *,
    messages: int,
    live_messages: int,
    size: int,
    batch: int,
    window: int,
) -> None:
    """Keeps `live_messages` alive: each batch that comes removes as many, chosen at random."""
    bodies = KnownBodies(BODIES, size)
    # From one seed: rounds differ by the machine only.
    rng = random.Random(1)
    live: list[int] = []
    async with Engine(directory) as engine:
        queue = engine.store.open_queue(QUEUE)
        before = procs.own_written_bytes()
        tell.begin("churn", messages)
        for position in range(0, messages, batch):
            block: Block = bodies.block(position, min(batch, messages - position))
            await engine.append(queue, Publish(position, block), window)
            live.extend(range(position, position + block.count))
            gone = sorted(_take(live, rng) for _ in range(len(live) - live_messages))
            if gone:
                acked = driver.joined([(at, at) for at in gone])
                await engine.append(queue, Remove(acked), window)
            tell.progress(position, live_bytes=len(live) * size)
        await engine.confirmed(queue)
        tell.end(messages, live_bytes=len(live) * size)
        # The engine goes on compacting when nothing is published any more.
        tell.begin("after", 0)
        await quiet()
        tell.end(0, live_bytes=len(live) * size)
        for position in rng.sample(live, min(100, len(live))):
            (run,) = queue.read(position, position, bytes_max=1, messages_max=1)
            bodies.check(position, run.block.bodies()[0])
        tell.result(written_bytes=procs.own_written_bytes() - before)


def _take(live: list[int], rng: random.Random) -> int:
    at = rng.randrange(len(live))
    live[at], live[-1] = live[-1], live[at]
    return live.pop()


WORK: dict[str, Work] = {
    work.__name__: work
    for work in (
        append,
        limit,
        consume,
        backlog,
        fill,
        recover,
        fill_queues,
        recover_queues,
        fan_out,
        compaction,
    )
}


def main(name: str, directory: str, parameters: str) -> None:
    driver.run(WORK[name](Teller(), Path(directory), **json.loads(parameters)))


if __name__ == "__main__":
    main(*sys.argv[1:])
