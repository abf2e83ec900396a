"""The phases that workloads share: publish, drain, and wait until the engine is quiet."""

from __future__ import annotations

import asyncio
import time

from bench import procs
from bench.storage.driver import Engine, KnownBodies
from bench.storage.events import Teller
from ringmq_node.storage import QueueStore

QUEUE = "bench"
# The number of different bodies: a multiple of no batch, so that batches differ.
BODIES = 997
# When the engine has written nothing for so long, it has nothing put off: it flushes an idle queue
# after 5 s, and looks for garbage each second.
QUIET_S = 8.0
QUIET_DEADLINE_S = 180.0
# Acks on their way to the disk while more is read.
ACK_WINDOW = 16


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


async def publish_phase(
    tell: Teller,
    engine: Engine,
    queue: QueueStore,
    bodies: KnownBodies,
    *,
    messages: int,
    batch: int,
    window: int,
) -> None:
    """The phase "fill": it ends with the last confirm."""
    tell.begin("fill", messages)
    await engine.publish(
        queue, bodies, messages=messages, batch=batch, window=window, told=tell.progress
    )
    tell.end(messages)


async def drain_phase(
    tell: Teller,
    engine: Engine,
    queue: QueueStore,
    bodies: KnownBodies,
    phase: str,
    messages: int,
) -> None:
    """Reads and acks all of the queue, which has so many messages."""
    tell.begin(phase, messages)
    done = await engine.drain(queue, bodies, window=ACK_WINDOW, told=tell.progress)
    assert done == messages, f"{done} of {messages} came back"
    tell.end(done)
