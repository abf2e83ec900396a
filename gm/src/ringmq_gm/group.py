"""A node's part in all of its rings: links, failure detection, the registry, timers.

One `Group` per process. It hosts a member of each ring that the node is in, and
joins the pieces together: what a link brings goes to the ring's core, what the core
wants goes to a link, the registry or the application. It decides nothing itself.

A link is kept to every node with which a view is shared, from both sides. To any
other node one is opened when a frame is to be sent there (a joiner's probe, and
its answer), and closed when none was for `link_idle_s`.

A frame for a ring that isn't open here is dropped. Its sender has to try again, and
does, but for a Hello: that is sent once for each view and session. So the newest
Hello for each ring is kept, and given to the ring when it is opened.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import grpc.aio

from ringmq_base.timer import Timer
from ringmq_gm.core.events import (
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    PeerStalled,
    Propose,
    Received,
    Role,
)
from ringmq_gm.core.frames import Envelope, Frame, Hello
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId, View
from ringmq_gm.errors import RingFailedError
from ringmq_gm.links.detector import Detector, Down, Finding, Silent, Up
from ringmq_gm.links.incoming import IncomingLinks
from ringmq_gm.links.outgoing import OutgoingLink
from ringmq_gm.nodes import LiveNodes, NodeRecord
from ringmq_gm.options import GroupOptions
from ringmq_gm.registry.base import Registry
from ringmq_gm.registry_views import RegistryViews
from ringmq_gm.rings import Application, Ring
from ringmq_gm.timers import RingTimers

# Rings of which a Hello came before they were opened here.
EARLY_HELLOS_MAX = 10_000


class Group:
    """See the module."""

    def __init__(
        self,
        registry: Registry,
        *,
        node: str,
        incarnation: int,
        address: str,
        options: GroupOptions | None = None,
        extra: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """`address` is where others reach this node's gRPC server (`host:port`);
        `incarnation` comes from `next_incarnation`; `extra` (JSON) is told to the others
        with them, in `nodes()`. `seed` makes the jitter repeatable."""
        self.me = MemberId(node, incarnation)
        self.options = options or GroupOptions()
        self.running = False
        self._seed = random.randrange(2**64) if seed is None else seed
        self._rings: dict[str, Ring] = {}
        self._live_nodes = LiveNodes(
            registry,
            NodeRecord(node, incarnation, address, dict(extra or {})),
            lease_ttl_s=self.options.lease_ttl_s,
            changed=self._live_nodes_changed,
        )
        self._views = RegistryViews(registry, tell=self._tell, fail=self._fail_ring)
        self._incoming = IncomingLinks(self, self.options)
        self._detector = Detector(
            ring_timeout_s=self.options.ring_timeout_s,
            redial_s=self.options.redial_s,
            chance=random.Random(self._seed),
        )
        self._detector_timer = Timer(self._detect)
        self._timers = RingTimers()
        self._tasks: asyncio.TaskGroup | None = None
        self._links: dict[str, tuple[OutgoingLink, asyncio.Task[None]]] = {}
        self._sessions = count(1)
        # When a frame was last meant for a node, on the loop's clock.
        self._asked_at: dict[str, float] = {}
        # With which nodes each ring's view is shared, and how many rings share with each.
        self._peers: dict[str, frozenset[str]] = {}
        self._shared: Counter[str] = Counter()
        self._incarnations: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        self._alive: frozenset[MemberId] = frozenset()
        self._early_hellos: dict[str, Envelope] = {}
        self._failure: RingFailedError | None = None
        self._failed = asyncio.Event()
        self._registered = asyncio.Event()
        # The running loop's, once there is one; asked for at every step.
        self._clock: Callable[[], float] | None = None

    # --- for the node ---

    def add_to(self, server: grpc.aio.Server) -> None:
        """Lets `server` answer `/ringmq.v1.Ring/Link`, and no other method.

        Before the server starts, and before a generated `Ring` servicer is added to it
        (the first handler that knows a method is the one that answers).
        """
        server.add_generic_rpc_handlers((self._incoming.handler(),))

    async def run(self) -> None:
        """Registers the node and works for its rings until cancelled; start the server first.

        Raises `RingFailedError` (a core or an application has raised) and `SupersededError`
        (a later life of this node has registered). Either way, and when cancelled, the
        rings are closed and the node isn't registered any more when it returns.
        """
        assert not self.running
        self.running = True
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._live_nodes.run(), name="live nodes")
                tasks.create_task(self._views.run(), name="views")
                tasks.create_task(self._beat(), name="heartbeats")
                tasks.create_task(self._look_after_links(), name="links")
                tasks.create_task(self._raise_failure(), name="failure of a ring")
                for node in +self._shared:
                    self._want_link(node)
        except BaseExceptionGroup as group:
            error = _only(group)
            raise error from error.__cause__
        finally:
            self.running = False
            self._tasks = None
            self._stop()

    async def wait_ready(self) -> None:
        """Returns once the node is registered and all nodes and rings have been read."""
        await self._registered.wait()
        await self._views.read.wait()

    @property
    def registry_available(self) -> bool:
        """Whether this node holds its lease, and the registry answered the last call."""
        return self._live_nodes.registered and self._views.answered

    def nodes(self) -> dict[str, NodeRecord]:
        """The nodes that hold a lease, by name, this one included; as last heard while the
        registry is away."""
        return dict(self._live_nodes.records)

    def view(self, ring: str) -> View | None:
        """The newest view of a ring that the registry has shown, hosted here or not."""
        return self._views.view(ring)

    def views(self) -> dict[str, View]:
        """`view` of every ring of the cluster, by name."""
        return self._views.views()

    def hold_credit(self, held: bool) -> None:
        """While `held`, other nodes get no credit for what they send here: one more window of
        each comes, then it waits there. Who is waited for longer than their `slow_timeout_s`
        is put out of the rings."""
        self._incoming.hold_credit(held)

    def rings(self) -> dict[str, Ring]:
        """The rings that are open here, by name."""
        return dict(self._rings)

    def linked_nodes(self) -> list[str]:
        """The nodes to which a link is open."""
        return sorted(node for node, (link, _) in self._links.items() if link.is_open)

    def open(
        self, ring: str, application: Application, log: LogEnd, *, log_is_whole: bool = True
    ) -> Ring:
        """Hosts a member of `ring` from now on. `log` is what the application has on disk;
        `log_is_whole` is False if it may have lost some of it.

        The application is called from a later turn of the event loop on, not before this
        has returned. Raises `ValueError` if the ring is open already.
        """
        if ring in self._rings:
            raise ValueError(f"ring {ring!r} is open already")
        member = RingMember(
            self.me,
            ring,
            log,
            log_is_whole=log_is_whole,
            chance=random.Random(f"{self._seed} {ring}"),
            timing=self.options.timing,
            cache_bytes_max=self.options.cache_bytes_max,
        )
        handle = Ring(
            member,
            application,
            self,
            payload_bytes_max=self.options.payload_bytes_max,
            submit_bytes_max=self.options.submit_bytes_max,
        )
        self._rings[ring] = handle
        asyncio.get_running_loop().call_soon(self._introduce, handle)
        return handle

    async def close_ring(self, ring: str) -> None:
        """Hosts it no more; what it has asked of the registry has been answered when this
        returns. The ring itself goes on without this member. No error if it isn't open."""
        handle = self._rings.get(ring)
        if handle is not None:
            handle.close()
            self.ended(handle, None)
        await self._views.wait_settled(ring)

    # --- for the rings ---

    def now(self) -> float:
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        return self._clock()

    def send(self, node: str, frame: Frame) -> None:
        self._asked_at[node] = self.now()
        entry = self._links.get(node)
        link = entry[0] if entry is not None else self._want_link(node)
        if link is not None:
            link.send(frame)

    def waiting_bytes(self, node: str, ring: str) -> int:
        entry = self._links.get(node)
        return entry[0].waiting_bytes(ring) if entry is not None else 0

    def propose(self, ring: str, proposal: Propose) -> None:
        self._views.propose(ring, proposal)

    def refresh(self, ring: str) -> None:
        self._views.refresh(ring)

    def stepped(self, ring: Ring) -> None:
        self._timers.rearm(ring)

    def view_entered(self, ring: Ring) -> None:
        view = ring.view
        if view is None or ring.role is Role.OUTSIDE:
            self._set_peers(ring.name, frozenset())
        else:
            nodes = frozenset(member_id.node for member_id in view.ids)
            self._set_peers(ring.name, nodes - {self.me.node})

    def ended(self, ring: Ring, failure: RingFailedError | None) -> None:
        if self._rings.get(ring.name) is ring:
            del self._rings[ring.name]
            self._set_peers(ring.name, frozenset())
            self._views.forget(ring.name)
            for link, _ in self._links.values():
                link.forget(ring.name)
        if failure is not None and self._failure is None:
            self._failure = failure
            self._failed.set()

    # --- for the links ---

    def address_of(self, node: str) -> str | None:
        # The last that was known: a node whose lease has run out may be there all the same.
        return self._addresses.get(node)

    def known_incarnation(self, node: str) -> int:
        return self._incarnations.get(node, 0)

    def saw(self, member_id: MemberId) -> None:
        if member_id.incarnation > self._incarnations.get(member_id.node, 0):
            self._incarnations[member_id.node] = member_id.incarnation

    def heard(self, node: str) -> None:
        self._detector.heard(node, self.now())

    def link_opened(self, node: str) -> None:
        self._found(self._detector.opened(node, self.now()))

    def link_broke(self, node: str) -> None:
        self._detector.broke(node, self.now())
        self._found([])

    def dial_failed(self, node: str) -> None:
        self._found(self._detector.dial_failed(node))

    def received(self, sender: MemberId, frames: Iterable[Frame]) -> None:
        rings = self._rings
        for frame in frames:
            ring = rings.get(frame.ring)
            if ring is not None:
                ring.step(Received(Envelope(sender, frame)))
            elif isinstance(frame, Hello):
                self._keep_hello(Envelope(sender, frame))

    # --- rings ---

    def _introduce(self, ring: Ring) -> None:
        """Tells a ring that was just opened what the others know already."""
        if self._rings.get(ring.name) is not ring:
            return
        if self._live_nodes.read:
            ring.step(LeasesLearned(self._alive))
        for node in self._detector.down():
            ring.step(LinkDown(node))
        self._views.introduce(ring.name)
        hello = self._early_hellos.pop(ring.name, None)
        if hello is not None:
            ring.step(Received(hello))

    def _keep_hello(self, hello: Envelope) -> None:
        hellos = self._early_hellos
        hellos.pop(hello.frame.ring, None)
        hellos[hello.frame.ring] = hello
        if len(hellos) > EARLY_HELLOS_MAX:
            del hellos[next(iter(hellos))]

    def _tell(self, ring: str, event: Event) -> None:
        handle = self._rings.get(ring)
        if handle is not None:
            handle.step(event)

    def _tell_all(self, event: Event) -> None:
        for handle in list(self._rings.values()):
            handle.step(event)

    def _fail_ring(self, ring: str, error: Exception) -> None:
        handle = self._rings.get(ring)
        if handle is not None:
            handle.fail(error)

    async def _raise_failure(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    # --- links ---

    def _set_peers(self, ring: str, nodes: frozenset[str]) -> None:
        before = self._peers.pop(ring, frozenset())
        if nodes:
            self._peers[ring] = nodes
        self._shared.subtract(before - nodes)
        for node in nodes - before:
            self._shared[node] += 1
            self._want_link(node)

    def _want_link(self, node: str) -> OutgoingLink | None:
        """The link to `node`, begun if there is none; None if the group isn't running."""
        if self._tasks is None or node == self.me.node:
            return None
        entry = self._links.get(node)
        if entry is None:
            link = OutgoingLink(node, self, self.options, lambda: next(self._sessions))
            task = self._tasks.create_task(link.run(), name=f"link to {node}")
            entry = self._links[node] = (link, task)
            self._asked_at[node] = self.now()
            self._detector.wanted(node, self.now())
            self._found([])
        return entry[0]

    def _close_idle_links(self, now: float) -> None:
        for node, (_, task) in list(self._links.items()):
            idle = now >= self._asked_at[node] + self.options.link_idle_s
            if idle and not self._shared[node]:
                del self._links[node]
                self._detector.unwanted(node)
                task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_s)
            self._incoming.beat()
            for link, _ in self._links.values():
                link.beat()

    async def _look_after_links(self) -> None:
        while True:
            await asyncio.sleep(min(self.options.slow_timeout_s, self.options.link_idle_s) / 8)
            now = self.now()
            self._close_idle_links(now)
            for node, (link, _) in list(self._links.items()):
                if link.stalled(now):
                    self._tell_all(PeerStalled(node))

    def _detect(self) -> None:
        self._found(self._detector.tick(self.now()))

    def _found(self, findings: list[Finding]) -> None:
        for finding in findings:
            match finding:
                case Up(node):
                    self._tell_all(LinkUp(node))
                case Down(node):
                    self._tell_all(LinkDown(node))
                case Silent(node):
                    self._links[node][0].break_off()
        deadline = self._detector.next_deadline()
        if deadline is not None:
            self._detector_timer.set_by(deadline)

    # --- the other nodes ---

    def _live_nodes_changed(self) -> None:
        if self._live_nodes.registered and self._live_nodes.read:
            self._registered.set()
        records = self._live_nodes.records
        for record in records.values():
            self.saw(record.member_id)
            if self._addresses.get(record.node) != record.address:
                self._addresses[record.node] = record.address
                self._kick(record.node)
        alive = frozenset(record.member_id for record in records.values())
        if self._live_nodes.read and alive != self._alive:
            for node in sorted({m.node for m in alive - self._alive}):
                self._kick(node)
            self._alive = alive
            self._tell_all(LeasesLearned(alive))

    def _kick(self, node: str) -> None:
        entry = self._links.get(node)
        if entry is not None:
            entry[0].kick()

    # --- the end ---

    def _stop(self) -> None:
        self._timers.cancel()
        self._detector_timer.cancel()
        self._incoming.close()
        self._links.clear()
        for ring in list(self._rings.values()):
            ring.close()
            self.ended(ring, None)


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception that a tree of groups holds; the tree if there are more."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
