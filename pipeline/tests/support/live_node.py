"""A node in a thread of the test's process, for clients that don't use asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loops import run
from node.tests.nodes import lone_node

import ringmq

START_S = 30.0
POLL_S = 0.02


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(POLL_S)


class LiveNode:
    """Its address, and verbs for the queues that a test makes there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = ringmq.connect_sync(address)

    def fill(self, queue: str, bodies: list[bytes], properties: object = None) -> None:
        """Declares the queue and publishes to it; all are confirmed. It has to be new, or empty."""
        self.client.declare_queue(queue)
        assert not self.stat(queue).messages, f"another test has messages in {queue!r}"
        self.publish(queue, bodies, properties)

    def publish(self, queue: str, bodies: list[bytes], properties: object = None) -> None:
        with self.client.publisher(queue) as publisher:
            publisher.publish_batch(bodies, properties)  # type: ignore[arg-type]

    def stat(self, queue: str) -> ringmq.PositionStat:
        return self.client.reader(queue).stat()

    def bodies(self, queue: str) -> list[bytes]:
        """Of what is in the queue now, in order."""
        batches = self.client.reader(queue).browse(self.stat(queue).first)
        return [body for batch in batches for body in batch.messages.bodies]


@contextmanager
def live_node(folder: Path) -> Iterator[LiveNode]:
    started = threading.Event()
    found: list[str] = []
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        node = await lone_node(folder)
        ended = asyncio.Event()
        await node.start()
        try:
            found.append(node.address)
            ends.append((asyncio.get_running_loop(), ended))
            started.set()
            await ended.wait()
        finally:
            await node.stop()

    thread = threading.Thread(target=lambda: run(serve()), name="live-node", daemon=True)
    thread.start()
    assert started.wait(START_S), "the node hasn't started"
    live = LiveNode(found[0])
    try:
        yield live
    finally:
        live.client.close()
        loop, ended = ends[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(START_S)
