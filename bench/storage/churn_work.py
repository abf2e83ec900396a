"""The workload of compaction: messages come, and as many go, at random."""

from __future__ import annotations

import random
from pathlib import Path

from bench import procs
from bench.storage import driver
from bench.storage.driver import Engine, KnownBodies
from bench.storage.events import Teller
from bench.storage.phases import BODIES, QUEUE, quiet
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove


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
