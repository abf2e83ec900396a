"""Keeps the links of one node: opens, watches and closes them, and tells the rings about them.

A link is kept to every node with which a view is shared, from both sides. To any other node one
is opened when a frame is to be sent there (a joiner's probe, and its answer), and closed when
none was for `link_idle_s`.

It decides nothing about rings: findings of the detector, and a link whose receiver is too slow,
go to all of them as events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from ringmq_base.timer import Timer
from ringmq_gm.core.chance import Chance
from ringmq_gm.core.events import Event, LinkDown, LinkUp, PeerStalled
from ringmq_gm.core.frames import Frame
from ringmq_gm.core.views import MemberId
from ringmq_gm.links.detector import Detector, Down, Finding, Silent, Up
from ringmq_gm.links.incoming import IncomingLinks
from ringmq_gm.links.outgoing import OutgoingLink
from ringmq_gm.options import GroupOptions
from ringmq_wire import Accept


class LinkKeeper:
    """See the module. `tell` gives an event to every ring, `received` gives frames to theirs."""

    def __init__(
        self,
        me: MemberId,
        options: GroupOptions,
        chance: Chance,
        *,
        tell: Callable[[Event], None],
        received: Callable[[MemberId, Iterable[Frame]], None],
        notices_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.me = me
        self.received = received
        self._tell = tell
        # The notices of other nodes that aren't 0; see `noticed`.
        self.notices: dict[str, int] = {}
        self._notices_changed = notices_changed
        self._options = options
        self._incoming = IncomingLinks(self, options)
        self._detector = Detector(
            ring_timeout_s=options.ring_timeout_s, redial_s=options.redial_s, chance=chance
        )
        self._detector_timer = Timer(self._detect)
        # The group's tasks; None while it doesn't run.
        self._tasks: asyncio.TaskGroup | None = None
        self._links: dict[str, tuple[OutgoingLink, asyncio.Task[None]]] = {}
        self._sessions = count(1)
        # When a frame was last meant for a node, on the loop's clock, as of the last look; and the
        # nodes for which one was since then. Each frame would have to ask the clock otherwise.
        self._asked_at: dict[str, float] = {}
        self._asked: dict[str, None] = {}
        # With which nodes each ring's view is shared, and how many rings share with each.
        self._peers: dict[str, frozenset[str]] = {}
        self._shared: Counter[str] = Counter()
        self._incarnations: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        # The running loop's, once there is one; asked for at every step.
        self._clock: Callable[[], float] | None = None

    # --- for the group ---

    def routes(self) -> Mapping[str, Accept]:
        return self._incoming.routes()

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """From now on links are dialled and answered; their tasks belong to `tasks`."""
        self._tasks = tasks
        tasks.create_task(self._beat(), name="heartbeats")
        tasks.create_task(self._look_after_links(), name="links")
        for node in +self._shared:
            self._want_link(node)

    def end(self) -> None:
        """The tasks have ended, and with them all outgoing links."""
        self._tasks = None
        self._detector_timer.cancel()
        self._incoming.close()
        self._links.clear()
        for node in list(self.notices):
            self.noticed(node, 0)

    def now(self) -> float:
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        return self._clock()

    def send(self, node: str, frame: Frame) -> None:
        self._asked[node] = None
        entry = self._links.get(node)
        link = entry[0] if entry is not None else self._want_link(node)
        if link is not None:
            link.send(frame)

    def waiting_bytes(self, node: str, ring: str) -> int:
        entry = self._links.get(node)
        return entry[0].waiting_bytes(ring) if entry is not None else 0

    def linked_nodes(self) -> list[str]:
        """The nodes to which a link is open."""
        return sorted(node for node, (link, _) in self._links.items() if link.is_open)

    def is_linked(self, member: MemberId) -> bool:
        """Whether a link to this life of a node is open."""
        entry = self._links.get(member.node)
        is_open = entry is not None and entry[0].is_open
        return is_open and self.known_incarnation(member.node) == member.incarnation

    def down(self) -> list[str]:
        """The nodes that the rings have been told are down."""
        return self._detector.down()

    def hold_credit(self, held: bool) -> None:
        self._incoming.hold_credit(held)

    def set_notice(self, notice: int) -> None:
        self._incoming.set_notice(notice)

    def set_peers(self, ring: str, nodes: frozenset[str]) -> None:
        """The ring's view is shared with these nodes from now on."""
        before = self._peers.pop(ring, frozenset())
        if nodes:
            self._peers[ring] = nodes
        self._shared.subtract(before - nodes)
        for node in nodes - before:
            self._shared[node] += 1
            self._want_link(node)

    def forget(self, ring: str) -> None:
        """The ring isn't hosted here any more: nothing of it is sent."""
        self.set_peers(ring, frozenset())
        for link, _ in self._links.values():
            link.forget(ring)

    def listens_at(self, node: str, address: str) -> None:
        """The registry says so. A new address means a new life: it is dialled at once."""
        if self._addresses.get(node) != address:
            self._addresses[node] = address
            self.kick(node)

    def kick(self, node: str) -> None:
        """The node may have become reachable: dial now."""
        entry = self._links.get(node)
        if entry is not None:
            entry[0].kick()

    # --- for the links (`LinkOwner`) ---

    @property
    def running(self) -> bool:
        return self._tasks is not None

    def address_of(self, node: str) -> str | None:
        # The last known one: a node whose lease has run out may be there all the same.
        return self._addresses.get(node)

    def known_incarnation(self, node: str) -> int:
        return self._incarnations.get(node, 0)

    def saw(self, member_id: MemberId) -> None:
        if member_id.incarnation > self._incarnations.get(member_id.node, 0):
            self._incarnations[member_id.node] = member_id.incarnation

    def heard(self, node: str) -> None:
        self._detector.heard(node, self.now())

    def noticed(self, node: str, notice: int) -> None:
        """Kept through a quick redial: the node that is down, or not linked any more, has none."""
        if notice != self.notices.get(node, 0):
            if notice:
                self.notices[node] = notice
            else:
                del self.notices[node]
            self._notices_changed()

    def link_opened(self, node: str) -> None:
        self._found(self._detector.opened(node, self.now()))

    def link_broke(self, node: str, *, given_up: bool) -> None:
        self._detector.broke(node, self.now(), given_up=given_up)
        self._found([])

    def dial_failed(self, node: str) -> None:
        self._found(self._detector.dial_failed(node))

    # --- opening and closing ---

    def _want_link(self, node: str) -> OutgoingLink | None:
        """The link to `node`, begun if there is none; None if the group isn't running."""
        if self._tasks is None or node == self.me.node:
            return None
        entry = self._links.get(node)
        if entry is None:
            link = OutgoingLink(node, self, self._options, lambda: next(self._sessions))
            task = self._tasks.create_task(link.run(), name=f"link to {node}")
            entry = self._links[node] = (link, task)
            self._asked_at[node] = self.now()
            self._detector.wanted(node, self.now())
            self._found([])
        return entry[0]

    def _close_idle_links(self, now: float) -> None:
        self._asked_at.update(dict.fromkeys(self._asked, now))
        self._asked.clear()
        for node, (_, task) in list(self._links.items()):
            idle = now >= self._asked_at[node] + self._options.link_idle_s
            if idle and not self._shared[node]:
                del self._links[node]
                self._detector.unwanted(node)
                self.noticed(node, 0)
                task.cancel()

    # --- watching ---

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_s)
            self._incoming.beat()
            for link, _ in self._links.values():
                link.beat()

    async def _look_after_links(self) -> None:
        while True:
            await asyncio.sleep(min(self._options.slow_timeout_s, self._options.link_idle_s) / 8)
            now = self.now()
            self._close_idle_links(now)
            for node, (link, _) in list(self._links.items()):
                if link.stalled(now):
                    self._tell(PeerStalled(node))

    def _detect(self) -> None:
        self._found(self._detector.tick(self.now()))

    def _found(self, findings: list[Finding]) -> None:
        for finding in findings:
            match finding:
                case Up(node):
                    # The link's handshake has told which life answers.
                    self._tell(LinkUp(MemberId(node, self.known_incarnation(node))))
                case Down(node):
                    self.noticed(node, 0)
                    self._tell(LinkDown(node))
                case Silent(node):
                    self._links[node][0].break_off()
        deadline = self._detector.next_deadline()
        if deadline is not None:
            self._detector_timer.set_by(deadline)
