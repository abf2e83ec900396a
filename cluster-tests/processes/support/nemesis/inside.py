"""A client as a program of its own, for a host (a network namespace) of its own. Its words:

    declare SEEDS QUEUE
    publish SEEDS QUEUE TAG TOTAL DEADLINE_S [BATCH_MESSAGES]    from a line on stdin to the next
    consume SEEDS QUEUE FOR_S
    resume SEEDS QUEUE LAST        as a producer of its own, up to LAST
    drain SEEDS QUEUE REPLICAS     once so many are synchronised

SEEDS as everywhere, separated by commas. The last line on stdout is the result, as JSON.
`nemesis.programs` starts it, from a starter that has imported this module.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable

from history.records import Drained, to_line
from loops import run
from waiting import until

import ringmq
from nemesis.oracle import Delivered, body_of
from nemesis.wire import RawStream, Refusal
from nemesis.workload import Publishing

BATCH_MESSAGES = 250
PRODUCER = b"a producer of its own"
PAUSE_S = 0.03
DRAIN_S_MAX = 60.0


async def declare(seeds: str, queue: str) -> object:
    """The names of the ring's nodes, the master's first."""
    async with ringmq.connect(seeds) as client:
        info = await client.declare_queue(queue)
        return [replica.node for replica in info.ring]


async def publish(
    seeds: str,
    queue: str,
    tag: str,
    total: str,
    deadline_s: str,
    batch_messages: str = str(BATCH_MESSAGES),
) -> object:
    """TOTAL messages, a batch every `PAUSE_S` from a line on stdin on, or as many as there is time
    for until the next line, and what became of them."""
    load = Publishing(
        seeds.split(","),
        queue,
        tag=tag,
        total=int(total),
        deadline_s=float(deadline_s),
        batch_messages=int(batch_messages),
        batches_at_once=int(total),
        pause_s=PAUSE_S,
    )
    # The test waits until all programs have started, which takes seconds on a busy machine.
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    async with load:
        print("open", flush=True)
        told = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), told.set)
        waits = [
            asyncio.ensure_future(load.finishes(within_s=float(deadline_s) + 60.0)),
            asyncio.ensure_future(told.wait()),
        ]
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in rest:
            wait.cancel()
        for wait in done:
            wait.result()
    return {
        "attempted": load.attempted,
        "confirmed": sorted(load.confirmed),
        "confirmed_at": load.confirmed_at,
        "took_s": time.monotonic() - began,
        "errors": sorted({str(error) for error in load.errors}),
        "history": list(map(to_line, load.records)),
    }


async def consume(seeds: str, queue: str, for_s: str) -> object:
    """The moments at which messages came; each batch is acknowledged."""
    came_at = []
    async with ringmq.connect(seeds) as client, client.consumer(queue, prefetch=1000) as consumer:
        print("open", flush=True)
        end = time.monotonic() + float(for_s)
        while time.monotonic() < end:
            batch = await consumer.next_batch(timeout_s=0.5)
            if batch is not None:
                came_at.append(time.monotonic())
                await consumer.ack(batch)
    return came_at


async def promote(seeds: str, queue: str, *nodes: str) -> object:
    """One node after the other."""
    async with ringmq.connect(seeds) as client:
        for node in nodes:
            await client.promote_mirror(queue, node)
    return list(nodes)


async def resume(seeds: str, queue: str, last: str) -> object:
    """The sequence that the producer is told and goes on from, or why it is told none."""
    async with RawStream(seeds.split(",")[0], "Publish") as stream:
        try:
            opened = await stream.open_publisher(queue, PRODUCER)
        except Refusal as refusal:
            return refusal.reason
        if opened.last_sequence < int(last):
            numbers = range(opened.last_sequence + 1, int(last) + 1)
            bodies = [body_of("resumed", number - 1, 100) for number in numbers]
            await stream.send_batch(numbers[0], bodies)
            await stream.confirmed_up_to(int(last))
        return opened.last_sequence


async def drain(seeds: str, queue: str, replicas: str) -> object:
    """All that is in the queue, as lines of a history."""
    found = Delivered()
    async with ringmq.connect(seeds) as client:

        async def is_whole() -> bool:
            ring = (await client.queue(queue)).ring
            return sum(replica.synchronised for replica in ring) == int(replicas)

        await until(is_whole, f"{replicas} synchronised replicas", within_s=DRAIN_S_MAX)
        async with client.consumer(queue, prefetch=5000) as consumer:
            while (await client.queue(queue)).messages_ready:
                while (batch := await consumer.next_batch(timeout_s=0.5)) is not None:
                    found.note("drain", batch)
                    await consumer.ack(batch)
    return [to_line(record) for record in (*found.records, Drained(time.monotonic(), ""))]


async def play(what: str, *arguments: str) -> None:
    programs: dict[str, Callable[..., Awaitable[object]]]
    programs = {
        "declare": declare,
        "publish": publish,
        "consume": consume,
        "promote": promote,
        "resume": resume,
        "drain": drain,
    }
    result = await programs[what](*arguments)
    print(json.dumps(result), flush=True)


def main() -> None:
    # A client that isn't served in time has to say where it was meanwhile.
    logging.basicConfig(format="%(asctime)s client %(message)s")
    logging.getLogger("ringmq").setLevel(logging.DEBUG)
    run(play(*sys.argv[1:]))
