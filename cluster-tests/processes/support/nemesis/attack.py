"""A node under attack by one peer, and a calm client that it serves meanwhile.

async with attacked(tmp_path) as node:
    peer = await connected(node.address)
    peer.transport.write(frames.PREFACE + ...)
    ...
    node.assert_untouched("a flood")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from waiting import leeway, until
from wirepair import REQUEST, read_frames

import ringmq
from nemesis.cluster import Cluster
from ringmq_base.limits import MIB
from ringmq_wire import frames
from ringmq_wire.codes import ErrorCode
from ringmq_wire.compression import Headers

# That the calm client has before an attack begins.
CONFIRMS = 30
CONFIRM_S_MAX = 1.0
# Of a node's memory, whatever is sent to it: a window of its connection, and what the allocator
# keeps of it.
GROWTH_BYTES_MAX = 48 * MIB


class Hostile(asyncio.Protocol):
    """A connection that sends what it is told, and keeps all that comes until it is lost."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    @property
    def goaway(self) -> ErrorCode | None:
        """The code of the last GOAWAY that has come whole."""
        whole, at = len(self.received), 0
        while whole - at >= 9 and whole - at >= 9 + int.from_bytes(self.received[at : at + 3]):
            at += 9 + int.from_bytes(self.received[at : at + 3])
        codes = [
            ErrorCode(int.from_bytes(payload[4:8]))
            for kind, _, _, payload in read_frames(bytes(self.received[:at]))
            if kind == frames.GOAWAY
        ]
        return codes[-1] if codes else None


async def connected(address: str) -> Hostile:
    host, _, port = address.partition(":")
    _, peer = await asyncio.get_running_loop().create_connection(Hostile, host, int(port))
    return peer


def call_to(path: str) -> Headers:
    return tuple((name, path.encode() if name == b":path" else value) for name, value in REQUEST)


class Calm:
    """A client of the same node, that publishes one message after the other."""

    def __init__(self) -> None:
        self.confirms = 0
        self.slowest_s = 0.0

    async def publish(self, client: ringmq.Client) -> None:
        loop = asyncio.get_running_loop()
        async with client.publisher("q") as publisher:
            while True:
                began = loop.time()
                await publisher.publish(b"calm")
                self.slowest_s = max(self.slowest_s, loop.time() - began)
                self.confirms += 1


class Attacked:
    """A node under attack, and its calm client."""

    def __init__(self, cluster: Cluster, calm: Calm) -> None:
        self.cluster = cluster
        self.calm = calm
        self.address = cluster.addresses["a"]
        self.before = cluster.resident_bytes("a")
        self.growth_bytes = 0

    def look(self) -> None:
        growth = self.cluster.resident_bytes("a") - self.before
        self.growth_bytes = max(self.growth_bytes, growth)

    def assert_untouched(self, what: str, growth_bytes_max: int = GROWTH_BYTES_MAX) -> None:
        assert self.growth_bytes <= growth_bytes_max, (what, self.growth_bytes)
        assert self.calm.slowest_s <= leeway(CONFIRM_S_MAX), (what, self.calm.slowest_s)


@asynccontextmanager
async def attacked(
    folder: Path, *, within_s: float = 100.0, **settings: Any
) -> AsyncIterator[Attacked]:
    """The node is alone, and serves its calm client when the block is entered and left."""
    async with (
        Cluster(folder, nodes=("a",), **settings) as cluster,
        asyncio.timeout(leeway(within_s)),
    ):
        await cluster.declare("q")
        async with cluster.client() as client:
            calm = Calm()
            publishing = asyncio.create_task(calm.publish(client))
            try:
                await until(lambda: calm.confirms >= CONFIRMS)
                yield Attacked(cluster, calm)
                confirms = calm.confirms
                await until(lambda: calm.confirms > confirms + 1)
                assert not publishing.done()
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
