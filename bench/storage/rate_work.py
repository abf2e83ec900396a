"""Workloads for rates and bytes: append, the bare disk, consume, fan-out."""

from __future__ import annotations

import os
from pathlib import Path

from bench import procs
from bench.peers.footing import write_all
from bench.storage.driver import Engine, KnownBodies
from bench.storage.events import Teller
from bench.storage.phases import BODIES, QUEUE, drain_phase, publish_phase, quiet
from ringmq_node.queue.ops import MESSAGE_ID_BYTES, Publish


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
        await publish_phase(
            tell, engine, queue, bodies, messages=messages, batch=batch, window=window
        )
        await quiet()
        await drain_phase(tell, engine, queue, bodies, "consume", messages)
        tell.result()


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
