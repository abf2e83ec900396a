"""A node's part in all of its rings.

One `Group` per process. It hosts a member of each ring that the node is in, and joins the
pieces: frames from a link go to their ring's core; effects of a core go to a link, the registry
or the application. It decides nothing itself.

A frame for a ring that isn't open here is dropped, and its sender sends it again after the next
handshake. Only a Hello isn't sent again, but once for each view and session. So the newest Hello
for each ring is kept, and given to the ring when it is opened.

A member that has failed (its core or its application has raised) is closed, and the group goes on.
The links between the nodes stay up, so the ring's other members can't notice by themselves: they
are told `Gone`, at once and whenever one of them asks, and put this member out as if it had died.
In the same life of the node the member isn't opened again, not even after `close_ring`. It might
have said "received" of ops that it has forgotten, and each member that was told `Gone` puts this
life out of the ring for good.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringmq_base.notifier import Notifier
from ringmq_gm.application import Application
from ringmq_gm.broadcasts import Broadcasts
from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.events import (
    Event,
    LeasesLearned,
    LinkDown,
    NodesKnown,
    Propose,
    Received,
    Role,
)
from ringmq_gm.core.frames import Envelope, Frame, Gone, Hello, Ping, Resume
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.quick import QuickMember
from ringmq_gm.core.views import MemberId, View
from ringmq_gm.errors import RingFailedError
from ringmq_gm.links.keeper import LinkKeeper
from ringmq_gm.nodes import LiveNodes, NodeRecord
from ringmq_gm.options import GroupOptions
from ringmq_gm.registry.base import Registry
from ringmq_gm.registry_views import RegistryViews
from ringmq_gm.rings import Ring
from ringmq_gm.timers import RingTimers
from ringmq_wire import Accept

# Of how many rings a Hello is kept that came before they were opened here.
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
        """`address` is where others reach this node's gRPC server (`host:port`); `incarnation`
        comes from `next_incarnation`; `extra` (JSON) goes into this node's record, which the
        others find in `nodes()`. `seed` makes the jitter repeatable."""
        self.me = MemberId(node, incarnation)
        self.options = options or GroupOptions()
        # `Ring.cached_bytes` of all rings; and called whenever that has become less.
        self.cached_bytes = 0
        self.on_freed: Callable[[], None] = lambda: None
        # By ring: whoever waits for its view to change (`wait_view`).
        self._view_changed: dict[str, Notifier] = {}
        # Called when `notices` may have changed, or a node's record.
        self.on_notices: Callable[[], None] = lambda: None
        self._seed = random.randrange(2**64) if seed is None else seed
        # Of all rings: a state of its own would take each of them 2.5 KB, and 50 us to begin.
        self._chance = random.Random(self._seed)
        self._rings: dict[str, Ring] = {}
        self._broadcasts = Broadcasts(self._rings)
        self._live_nodes = LiveNodes(
            registry,
            NodeRecord(node, incarnation, address, dict(extra or {})),
            lease_ttl_s=self.options.lease_ttl_s,
            changed=self._live_nodes_changed,
        )
        self._views = RegistryViews(registry, tell=self._tell, changed=self._wake_waiting)
        self._links = LinkKeeper(
            self.me,
            self.options,
            random.Random(self._seed),
            tell=self._broadcasts.add,
            received=self._received,
            notices_changed=lambda: self.on_notices(),
        )
        # As `Shell` has them. Several times for each op: not through a method of this class.
        self.now = self._links.now
        self.send = self._links.send
        self._timers = RingTimers()
        # Notified when a node has come or gone, as far as its lease says so.
        self.nodes_changed = Notifier()
        self._known: frozenset[str] | None = None
        self._running = False
        self._leased: frozenset[MemberId] = frozenset()
        self._early_hellos: dict[str, Envelope] = {}
        # The epochs in which rings have failed here, by name.
        self._failed: dict[str, int] = {}
        self._registered = asyncio.Event()

    # --- for the node ---

    def routes(self) -> Mapping[str, Accept]:
        """What the node's `WireServer` answers for the group: `/ringmq.v1.Ring/Link`."""
        return self._links.routes()

    async def run(self) -> None:
        """Registers the node and works for its rings until cancelled; start the server first.

        Raises `SupersededError` (a later life of this node has registered). Then, and when
        cancelled, the rings are closed and the node isn't registered any more when it returns.
        """
        assert not self._running
        self._running = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._live_nodes.run(), name="live nodes")
                tasks.create_task(self._views.run(), name="views")
                self._links.begin(tasks)
        except BaseExceptionGroup as group:
            error = _only(group)
            raise error from error.__cause__
        finally:
            self._running = False
            self._timers.cancel()
            self._links.end()
            for ring in list(self._rings.values()):
                ring.close()
                self.ended(ring, None)

    async def wait_ready(self) -> None:
        """Returns once the node is registered and all nodes and rings have been read."""
        await self._registered.wait()
        await self._views.read.wait()

    @property
    def registry_available(self) -> bool:
        """Whether this node holds its lease, and the registry answered the last call."""
        return self._live_nodes.registered and self._views.answered

    def nodes(self) -> dict[str, NodeRecord]:
        """The nodes that hold a lease, by name, this one included. While the registry is away,
        the last known ones."""
        return dict(self._live_nodes.records)

    def know_nodes(self, nodes: frozenset[str]) -> None:
        """Operators have forgotten every node but these. A ring that can't go on needn't wait for
        the answer of a node that was forgotten: its log counts as lost."""
        if nodes != self._known:
            self._known = nodes
            self._broadcasts.add(NodesKnown(nodes))

    def address_of(self, member: MemberId) -> str | None:
        """The address of this life of a node, if it holds a lease or a link to it is open. None if
        neither: its process may have ended."""
        record = self._live_nodes.records.get(member.node)
        if record is not None and record.incarnation == member.incarnation:
            return record.address
        # It may have lost its lease alone: the registry is away for it, and its rings are healthy.
        if self._links.is_linked(member):
            return self._links.address_of(member.node)
        return None

    def known_incarnation(self, node: str) -> int:
        """The highest incarnation of a node that was seen, by a link or in the registry; or 0."""
        return self._links.known_incarnation(node)

    def view(self, ring: str) -> View | None:
        """The newest view of a ring that is known: as the registry has shown it, hosted here or
        not, or as another member has told it to the member here."""
        shown = self._views.view(ring)
        hosted = self._rings.get(ring)
        if shown is None or hosted is None or hosted.view is None:
            return shown
        return hosted.view if hosted.view.epoch > shown.epoch else shown

    async def wait_view(self, ring: str) -> None:
        """Returns when the next view of the ring is known, hosted here or not, or that there is
        none any more: from the registry, or because a member here was told it."""
        await self._view_changed.setdefault(ring, Notifier()).wait()

    def role_counts(self) -> tuple[Counter[str], Counter[str]]:
        """How many masters and how many mirrors each node has, by `view` of every ring of the
        cluster. The caller's to change."""
        return self._views.masters.copy(), self._views.mirrors.copy()

    def unreadable_views(self) -> Mapping[str, str]:
        """The rings whose key in the registry holds no view, and why not. A member that is open
        goes on in the view that it knows; the view can't change until the key is put right."""
        return self._views.unreadable

    def unreadable_nodes(self) -> Mapping[str, str]:
        """The nodes whose record in the registry can't be read, and why not."""
        return self._live_nodes.unreadable

    def hold_credit(self, held: bool) -> None:
        """While `held`, other nodes get no credit for the frames that they send here: one more
        window of each comes, then the frames wait there. A node that is waited for longer than
        the `slow_timeout_s` of its upstream neighbour is put out of the rings."""
        self._links.hold_credit(held)

    def set_notice(self, notice: int) -> None:
        """One byte that the nodes linked with this one are told, at once and with each heartbeat.
        It needs no registry, and ends with the link."""
        self._links.set_notice(notice)

    def notices(self) -> Mapping[str, int]:
        """The notices of linked nodes that aren't 0."""
        return self._links.notices

    def describe(self, **facts: Any) -> None:
        """Changes `extra` in this node's record; the others read it there once the registry has
        it."""
        self._live_nodes.describe(facts)

    def rings(self) -> dict[str, Ring]:
        """The rings that are open here, by name."""
        return dict(self._rings)

    def linked_nodes(self) -> list[str]:
        """The nodes to which a link is open."""
        return self._links.linked_nodes()

    def has_failed(self, ring: str) -> bool:
        """Whether a member of this ring has failed here: it can't be opened in this life."""
        return ring in self._failed

    def open(
        self, ring: str, application: Application, log: LogEnd, *, log_is_whole: bool = True
    ) -> Ring:
        """Hosts a member of `ring` from now on. `log` is the end of the log that the application
        has on disk; `log_is_whole` is False if it may have lost some of it.

        The application is called from a later turn of the event loop on, not before this
        has returned. Raises `ValueError` if the ring is open already, or has failed in this life
        of the node.
        """
        if ring in self._rings:
            raise ValueError(f"ring {ring!r} is open already")
        if ring in self._failed:
            raise ValueError(f"ring {ring!r} has failed in this life of node {self.me}")
        member = QuickMember(
            self.me,
            ring,
            log,
            log_is_whole=log_is_whole,
            chance=self._chance,
            timing=self.options.timing,
            budgets=Budgets(self.options.cache_bytes_max, self.options.joiner_bytes_max),
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
        """Hosts it no more. When this returns, the registry has answered all that the ring had
        asked it. The ring itself goes on without this member. No error if it isn't open. One that
        has failed (`has_failed`) can't be opened again.

        If it is opened again in the same life of the node, it gets no op before the next view or
        the next link: its upstream neighbour has said Hello, and doesn't repeat it.
        """
        handle = self._rings.get(ring)
        if handle is not None:
            handle.close()
            self.ended(handle, None)
        await self._views.wait_settled(ring)

    # --- for the rings (`Shell`) ---

    @property
    def broadcast_count(self) -> int:
        return self._broadcasts.count

    def catch_up(self, ring: Ring) -> None:
        self._broadcasts.catch_up(ring)

    def waiting_bytes(self, node: str, ring: str) -> int:
        return self._links.waiting_bytes(node, ring)

    def propose(self, ring: str, proposal: Propose) -> None:
        self._views.propose(ring, proposal)

    def refresh(self, ring: str) -> None:
        self._views.refresh(ring)

    def cached(self, change_bytes: int) -> None:
        self.cached_bytes += change_bytes
        if change_bytes < 0:
            self.on_freed()

    def arm(self, ring: Ring, deadline: float) -> None:
        self._timers.arm(ring, deadline)

    def view_entered(self, ring: Ring) -> None:
        self._wake_waiting(ring.name)
        view = ring.view
        if view is None or ring.role is Role.OUTSIDE:
            self._links.set_peers(ring.name, frozenset())
        else:
            nodes = {member_id.node for member_id in view.ids}
            # As long as they may not have heard of it: a link is all that tells them, if they can't
            # reach the registry.
            nodes.update(life.node for life in view.overruled if self._may_go_on(life))
            self._links.set_peers(ring.name, frozenset(nodes - {self.me.node}))

    def _may_go_on(self, life: MemberId) -> bool:
        """Whether a life that was put out of a ring may still be there, for all that is known."""
        is_forgotten = self._known is not None and life.node not in self._known
        return not is_forgotten and self.known_incarnation(life.node) <= life.incarnation

    def ended(self, ring: Ring, failure: RingFailedError | None) -> None:
        # A ring that is closed twice may have been opened again in between.
        if self._rings.get(ring.name) is ring:
            del self._rings[ring.name]
            self._views.forget(ring.name)
            self._links.forget(ring.name)
        if failure is not None:
            view = ring.view
            epoch = self._failed[ring.name] = 0 if view is None else view.epoch
            # After `forget`, which drops all frames of the ring that wait to be sent.
            for member_id in () if view is None else view.ids:
                if member_id != self.me:
                    self._links.send(member_id.node, Gone(ring.name, epoch))

    # --- events for the rings ---

    def _introduce(self, ring: Ring) -> None:
        """Tells a ring that was just opened all that the others know already."""
        if self._rings.get(ring.name) is not ring:
            return
        if self._live_nodes.read:
            ring.step(LeasesLearned(self._leased))
        if self._known is not None:
            ring.step(NodesKnown(self._known))
        for node in self._links.down():
            ring.step(LinkDown(node))
        self._views.introduce(ring.name)
        hello = self._early_hellos.pop(ring.name, None)
        if hello is not None:
            ring.step(Received(hello))

    def _received(self, sender: MemberId, frames: Iterable[Frame]) -> None:
        rings = self._rings
        for frame in frames:
            ring = rings.get(frame.ring)
            if ring is not None:
                ring.step(Received(Envelope(sender, frame)))
            elif frame.ring in self._failed:
                # Not for every op: these may come by the thousand until the sender has heard.
                if isinstance(frame, Hello | Resume | Ping):
                    self._links.send(sender.node, Gone(frame.ring, self._failed[frame.ring]))
            elif isinstance(frame, Hello):
                self._keep_hello(Envelope(sender, frame))

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

    def _wake_waiting(self, ring: str) -> None:
        """The ring's view has changed."""
        if ring in self._view_changed:
            self._view_changed.pop(ring).notify()

    def _live_nodes_changed(self) -> None:
        if self._live_nodes.registered and self._live_nodes.read:
            self._registered.set()
        records = self._live_nodes.records
        for record in records.values():
            self._links.saw(record.member_id)
            self._links.listens_at(record.node, record.address)
        leased = frozenset(record.member_id for record in records.values())
        unreadable = self._live_nodes.unreadable
        if unreadable:
            # Such a node may hold a lease in any of the lives that a ring knows. To take one for
            # lapsed would let a member that can't reach it vote it out.
            leased |= self._views.members_on(unreadable)
        if self._live_nodes.read and leased != self._leased:
            for node in sorted({m.node for m in leased - self._leased}):
                self._links.kick(node)
            self._leased = leased
            self._broadcasts.add(LeasesLearned(leased))
            self.nodes_changed.notify()
        self.on_notices()


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception that a tree of groups holds; the tree if there are more."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
