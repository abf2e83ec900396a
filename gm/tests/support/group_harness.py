"""Groups in one process, on loopback, over one registry file; and an application that remembers.

async with local_cluster(tmp_path, "abc") as cluster:
    rings = await cluster.create_ring("r", "abc")
    rings["a"].multicast(b"x")
    await until(lambda: cluster.apps["r"]["c"].payloads == [b"x"])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from waiting import until

from ringmq_gm import (
    Group,
    GroupOptions,
    LogEnd,
    MemberId,
    Ring,
    RingFailedError,
    Role,
    View,
    first_view,
    next_incarnation,
    ring_key,
)
from ringmq_gm.registry.base import Guard, Put, Registry
from ringmq_gm.registry.sqlite import SqliteRegistry
from ringmq_wire import WireServer

DEADLINE_S = 15.0


@dataclass
class ListApplication:
    """Keeps the delivered ops; an op counts as on disk once `persist` has run."""

    ring: Ring | None = None
    ops: list[tuple[int, int, bytes]] = field(default_factory=list)
    persisted: int = 0
    confirmed: tuple[int, int] = (0, 0)
    roles: list[Role] = field(default_factory=list)
    catch_ups: list[tuple[int, MemberId]] = field(default_factory=list)
    deleted: bool = False
    failure: RingFailedError | None = None
    # Says "on disk" at once.
    at_once: bool = True
    # The applications of the same ring, by node: a joiner copies from them.
    others: dict[str, ListApplication] = field(default_factory=dict)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, _, payload in self.ops]

    @property
    def log_end(self) -> LogEnd:
        return LogEnd(self.ops[-1][1], self.ops[-1][0]) if self.ops else LogEnd()

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        assert number == len(self.ops) + 1, (number, len(self.ops))
        self.ops.append((number, epoch, payload))
        if self.at_once:
            self.persist(number)

    def persist(self, number: int) -> None:
        self.persisted = number
        assert self.ring is not None
        self.ring.persisted(number)

    def watermarks(self, received: int, persisted: int) -> None:
        assert received >= self.confirmed[0]
        assert persisted >= self.confirmed[1]
        self.confirmed = (received, persisted)

    def role_changed(self, role: Role, view: View) -> None:
        self.roles.append(role)
        self.confirmed = (0, 0)

    def contact_changed(self, has_contact: bool) -> None:
        self.has_contact = has_contact

    def start_catch_up(self, number: int, source: MemberId) -> None:
        assert self.ring is not None
        self.catch_ups.append((number, source))
        self.ops = self.others[source.node].ops[:number]
        self.ring.caught_up(number)

    def loss_ended(self) -> None:
        """Its log has no other end meanwhile: it takes what the ring delivers, at once."""

    def ring_deleted(self) -> None:
        self.deleted = True

    def ring_failed(self, failure: RingFailedError) -> None:
        self.failure = failure


@dataclass
class Node:
    """One group with its registry, server and task."""

    name: str
    group: Group
    registry: Registry
    server: WireServer
    task: asyncio.Task[None]
    port: int

    async def stop(self) -> None:
        """In good order."""
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.server.stop(0)
        await self.registry.close()
        if not self.task.cancelled():
            self.task.result()


class LocalCluster:
    """Nodes by name; applications by ring and node."""

    def __init__(self, path: Path, options: GroupOptions) -> None:
        self.path = path
        self.options = options
        self.nodes: dict[str, Node] = {}
        self.apps: dict[str, dict[str, ListApplication]] = {}

    async def start(self, name: str, *, advertised: str | None = None) -> Node:
        """Starts (again) a node; `advertised` is the address that the others are told."""
        registry = SqliteRegistry(self.path / "registry.db")
        incarnation = await next_incarnation(registry, name)
        server = WireServer()
        port = server.bind("127.0.0.1:0")
        group = Group(
            registry,
            node=name,
            incarnation=incarnation,
            address=advertised or f"127.0.0.1:{port}",
            options=self.options,
            seed=len(self.nodes),
        )
        server.add(group.routes())
        server.start()
        task = asyncio.create_task(group.run(), name=f"group {name}")
        node = self.nodes[name] = Node(name, group, registry, server, task, port)
        ready = asyncio.create_task(group.wait_ready())
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            ready.cancel()
            task.result()
        return node

    async def create_ring(
        self, name: str, nodes: Iterable[str], *, min_insync: int = 2
    ) -> dict[str, Ring]:
        """A ring with a member on each of these nodes, the first one its master."""
        members = [self.nodes[node].group.me for node in nodes]
        view = first_view(members, min_insync)
        registry = self.nodes[members[0].node].registry
        key = ring_key(name)
        assert await registry.commit([Guard(key, 0)], [Put(key, view.encode())]) is not None
        rings = {member.node: self.open(name, member.node) for member in members}
        await until(lambda: all(ring.view is not None for ring in rings.values()))
        return rings

    def open(self, name: str, node: str, app: ListApplication | None = None) -> Ring:
        apps = self.apps.setdefault(name, {})
        app = app or apps.get(node) or ListApplication()
        apps[node] = app
        app.others = apps
        app.ring = self.nodes[node].group.open(name, app, app.log_end)
        return app.ring


@asynccontextmanager
async def local_cluster(
    path: Path, nodes: Iterable[str], options: GroupOptions | None = None
) -> AsyncIterator[LocalCluster]:
    """Starts the nodes; stops all at the end, and shows that nothing is left running."""
    before = asyncio.all_tasks()
    cluster = LocalCluster(path, options or GroupOptions())
    try:
        for node in nodes:
            await cluster.start(node)
        yield cluster
    finally:
        await asyncio.gather(*(node.stop() for node in cluster.nodes.values()))
    await until(lambda: not leftover_tasks(before))


def leftover_tasks(before: set[asyncio.Task[object]]) -> list[asyncio.Task[object]]:
    """Tasks of ours that were not there before. grpcio keeps one of its own for the process."""
    return [
        task
        for task in asyncio.all_tasks() - before
        if not task.done() and "grpc" not in repr(task.get_coro())
    ]
