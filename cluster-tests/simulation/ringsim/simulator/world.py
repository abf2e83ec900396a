"""A ring of simulated nodes: carries out effects, brings events, breaks things.

Each node is what the real shell is, in virtual time: it gives its member events
one by one, does the effects in order, and arms one timer. A crash may come
between any two effects.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b

from ringmq_gm.core.events import (
    CaughtUp,
    Deliver,
    Effect,
    Event,
    LeasesLearned,
    MembershipWanted,
    Multicast,
    PeerStalled,
    Persisted,
    PromotionAsked,
    PromotionEnded,
    Propose,
    RefreshView,
    RingDeleted,
    Role,
    RoleChanged,
    Send,
    StartCatchUp,
    Tick,
    Watermarks,
)
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId, first_view
from ringsim.simulator.application import Application, BrokenInvariantError, Disk, Entry
from ringsim.simulator.clock import Clock
from ringsim.simulator.faults import (
    Block,
    BreakLink,
    Crash,
    Fault,
    Pause,
    PowerCut,
    Promote,
    Publish,
    RegistryCut,
    RegistryFlaky,
    RegistryOutage,
    Scenario,
    SlowDisk,
    SlowNetwork,
    Stall,
)
from ringsim.simulator.network import RING_TIMEOUT_S, Network
from ringsim.simulator.oracle import Oracle
from ringsim.simulator.registry import VirtualRegistry

RING = "r"
# Once everything is mended, the ring has so long to become whole.
SETTLE_S = 40.0

MakeMember = Callable[..., RingMember]


def _as_text(event: Event) -> str:
    """The same in every process: a set's own text follows the hashes of strings."""
    if isinstance(event, LeasesLearned):
        return f"LeasesLearned({', '.join(map(str, sorted(event.alive)))})"
    return str(event)


class Node:
    """A machine: its disk, and the process that runs on it or doesn't."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.app = Application(self.disk)
        self.member: RingMember | None = None
        self.paused = 0
        self.backlog: list[Event] = []
        self.tick_at: float | None = None
        self.crash_after: int | None = None
        self.down_s = 0.0
        self.sync_delay_s = 0.0

    @property
    def incarnation(self) -> int:
        return self.disk.incarnation

    @property
    def me(self) -> MemberId:
        return MemberId(self.name, self.disk.incarnation)

    @property
    def is_running(self) -> bool:
        return self.member is not None and not self.paused


class World:
    """See the module. `trace` is kept only where asked for: it is most of the time."""

    def __init__(
        self,
        scenario: Scenario,
        rng: random.Random,
        *,
        make_member: MakeMember = RingMember,
        tracing: bool = False,
    ) -> None:
        self.scenario = scenario
        self.rng = rng
        self.trace: list[str] | None = [] if tracing else None
        self.steps = 0
        self.clock = Clock()
        self._make_member = make_member
        self.nodes = {name: Node(name) for name in scenario.nodes}
        self.network = Network(self, scenario.nodes)
        self.oracle = Oracle(self)
        for node in self.nodes.values():
            node.disk.incarnation = 1
        first = [node.me for node in self.nodes.values()][: scenario.first_count]
        self.registry = VirtualRegistry(self, first_view(first, scenario.min_insync))
        self.payloads = 0
        self.confirmed_last = 0

    # --- running ---

    def run(self) -> None:
        """The whole scenario; raises `BrokenInvariantError` if something is wrong."""
        for node in self.nodes.values():
            self.start(node)
        ends = 0.0
        for publish in self.scenario.publishes:
            self.clock.at(publish.at, self._publish, publish)
            ends = max(ends, publish.at)
        for fault in self.scenario.faults:
            self.clock.at(fault.at, self._begin, fault)
            ends = max(ends, fault.at + getattr(fault, "for_s", getattr(fault, "down_s", 0.0)))
        self.run_until(ends + 0.1)
        self.heal()
        self._settle("after the faults")
        self._publish(Publish(self.clock.now, 1, False))
        self._settle("after one more op")

    def run_until(self, when: float) -> None:
        clock = self.clock
        reached = False

        def stop() -> None:
            nonlocal reached
            reached = True

        clock.at(when, stop)
        while not reached:
            clock.run_next()

    def _settle(self, when: str) -> None:
        limit = self.clock.now + SETTLE_S
        while (reason := self.unsettled()) is not None:
            if self.clock.now > limit:
                raise BrokenInvariantError(f"not settled {when}: {reason}")
            self.run_until(self.clock.now + 0.25)

    def unsettled(self) -> str | None:
        """Why the ring is not whole and quiet; None if it is."""
        view = self.registry.view
        if len(view.synced) != len(self.nodes):
            return f"the view is {view}"
        logs: list[list[Entry]] = []
        for node in self.nodes.values():
            member = node.member
            if member is None or member.view != view:
                return f"{node.name} is not in the newest view"
            if len(member.ops.cache):
                return f"{node.name} keeps {len(member.ops.cache)} ops that should be stable"
            if node.disk.log != node.app.log or not node.disk.whole:
                return f"{node.name} has not written everything"
            logs.append(node.app.log)
        if any(log != logs[0] for log in logs):
            return "the logs differ"
        if self.confirmed_last != len(logs[0]):
            return f"{len(logs[0])} ops, confirmed up to {self.confirmed_last}"
        return None

    def heal(self) -> None:
        """Mends all that is still broken, and starts all that is down."""
        self.note("heal")
        self.network.heal()
        for node in self.nodes.values():
            node.sync_delay_s = 0.0
            node.crash_after = None
            if node.paused:
                node.paused = 1
                self.resume(node)
            if node.member is None:
                self.start(node)
        self.registry.heal()

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.clock.now:9.4f} {text}")

    def trace_hash(self) -> str:
        assert self.trace is not None
        return blake2b("\n".join(self.trace).encode(), digest_size=8).hexdigest()

    # --- nodes ---

    def start(self, node: Node) -> None:
        if node.member is not None:
            return
        node.app = Application(node.disk)
        node.member = self._make_member(
            node.me,
            RING,
            node.disk.end(),
            log_is_whole=node.disk.whole,
            chance=self.rng,
        )
        node.tick_at = None
        self.note(f"{node.me} starts with {len(node.disk.log)} ops")
        self.network.started(node.name)
        self.registry.started(node)
        self.give(node.name, MembershipWanted(True))

    def crash(self, node: Node, down_s: float) -> None:
        if node.member is None:
            return
        self.note(f"{node.me} crashes")
        unsynced = len(node.app.log) - len(node.disk.log)
        node.app.crash(self.rng.randint(0, unsynced) if unsynced > 0 else 0)
        node.member = None
        node.disk.incarnation += 1
        node.backlog.clear()
        node.paused = 0
        node.crash_after = None
        self.network.stopped(node.name)
        self.registry.out_of_touch(node.name)
        self.clock.after(down_s, self.start, node)

    def resume(self, node: Node) -> None:
        node.paused = max(0, node.paused - 1)
        if node.paused or node.member is None:
            return
        backlog, node.backlog = node.backlog, []
        for event in backlog:
            self.give(node.name, event)
        self.registry.in_touch(node.name)

    def give(self, name: str, event: Event) -> None:
        """Brings an event to a node's member, which may be gone, or standing still."""
        node = self.nodes[name]
        if node.member is None:
            return
        if node.paused:
            node.backlog.append(event)
            return
        self.step(node, event)

    def step(self, node: Node, event: Event) -> None:
        member = node.member
        assert member is not None
        self.steps += 1
        effects = member.step(event, now=self.clock.now)
        if self.trace is not None:
            self.note(f"{member.me} {_as_text(event)} -> {effects}")
        self.oracle.stepped(node)
        limit = node.crash_after
        if limit is not None and len(effects) > limit:
            effects = effects[:limit]
        else:
            limit = None
        for effect in effects:
            self._perform(node, member, effect)
        if limit is not None:
            self.crash(node, node.down_s)
            return
        deadline = member.next_deadline()
        if deadline is not None and deadline != node.tick_at:
            node.tick_at = deadline
            self.clock.at(deadline, self._tick, node, member, deadline)

    def _tick(self, node: Node, member: RingMember, deadline: float) -> None:
        if node.member is member and node.tick_at == deadline:
            node.tick_at = None
            self.give(node.name, Tick())

    # --- effects ---

    def _perform(self, node: Node, member: RingMember, effect: Effect) -> None:
        match effect:
            case Send(target, frame):
                self.network.send(node.name, member.me, target, frame)
            case Deliver(number, epoch, payload):
                node.app.deliver(number, epoch, payload)
                self.oracle.delivered(node, number, epoch, payload)
                self._write(node)
            case Watermarks():
                self.oracle.confirmed(node, effect)
                self.confirmed_last = max(self.confirmed_last, effect.persisted)
            case RoleChanged(role, view):
                if role is Role.MASTER:
                    self.oracle.became_master(node, view)
                elif role is Role.OUTSIDE:
                    node.app.abandon_catch_up()
            case StartCatchUp(number):
                self.oracle.catch_up_started(node)
                count = node.app.start_catch_up(number)
                self.clock.after(
                    self.scenario.pace.fetch_s * self.rng.random(), self._fetch, node, member, count
                )
            case Propose(current_epoch, view):
                self.registry.propose(node, current_epoch, view)
            case RefreshView():
                self.registry.tell_view(node.name, quickly=True)
            case PromotionEnded() | RingDeleted():
                pass

    # --- the application's slow work ---

    def _write(self, node: Node) -> None:
        """Group commit: one sync at a time, of all that is there when it begins."""
        app = node.app
        if app.writing or app.catching_up:
            return
        app.writing = True
        delay = self.scenario.pace.sync_s * self.rng.random() + node.sync_delay_s
        self.clock.after(delay, self._written, node, app, app.log_count, len(app.log))

    def _written(self, node: Node, app: Application, log_count: int, count: int) -> None:
        if node.app is not app or node.member is None or app.log_count != log_count:
            return
        app.writing = False
        app.sync(count)
        self.give(node.name, Persisted(count))
        if node.app is app and count < len(app.log):
            self._write(node)

    def _fetch(self, node: Node, member: RingMember, catch_up_count: int) -> None:
        """Asks the master, or the member upstream, for its state. It answers only in the same
        epoch, and if it has a state itself."""
        app = node.app
        if node.member is not member or app.catch_up_count != catch_up_count:
            return
        state = None if node.paused else self._state_of_source(node, member)
        if state is None:
            self._again(self._fetch, node, member, catch_up_count)
            return
        assert member.view is not None
        epoch = member.view.epoch
        delay = self.scenario.pace.fetch_s * self.rng.random() + node.sync_delay_s
        self.clock.after(delay, self._fetched, node, member, catch_up_count, state, epoch)

    def _again(self, call: Callable[..., None], *args: object) -> None:
        self.clock.after(self.scenario.pace.fetch_s, call, *args)

    def _state_of_source(self, node: Node, member: RingMember) -> list[Entry] | None:
        assert member.view is not None
        index = member.view.index_of(member.me)
        if not index:
            return None
        source_id = member.view.ids[0 if self.scenario.pace.fetch_from_master else index - 1]
        source = self.nodes[source_id.node]
        if source.member is None or not source.is_running or source.app.catching_up:
            return None
        if source.me != source_id:
            return None  # Another life of that node: not a member of this view.
        if source.member.view != member.view or not self.network.can_reach(node.name, source.name):
            return None
        return list(source.app.log)

    def _fetched(
        self,
        node: Node,
        member: RingMember,
        catch_up_count: int,
        state: list[Entry],
        epoch: int,
    ) -> None:
        app = node.app
        if node.member is not member or app.catch_up_count != catch_up_count:
            return
        if node.paused:
            self._again(self._fetched, node, member, catch_up_count, state, epoch)
            return
        if self.scenario.pace.fetch_from_master and not app.has_delivered(state):
            # The master may be ahead of the members between us, who would take over from
            # it: its state is of use once its last op has come this far too. In another
            # view it may never come.
            assert member.view is not None
            if member.view.epoch == epoch:
                self._again(self._fetched, node, member, catch_up_count, state, epoch)
            else:
                self._fetch(node, member, catch_up_count)
            return
        app.take_state(state)
        app.sync(len(app.log))
        self.give(node.name, CaughtUp(len(app.log)))

    # --- what is asked of the ring, and what goes wrong ---

    def _publish(self, publish: Publish) -> None:
        for _ in range(publish.count):
            for node in self.nodes.values():
                member = node.member
                if member is None or node.paused:
                    continue
                if member.refusal() is None and member.has_quorum:
                    self.payloads += 1
                    payload = b"%d" % self.payloads
                    self.step(node, Multicast(payload, publish.urgent))

    def _begin(self, fault: Fault) -> None:
        self.note(str(fault))
        match fault:
            case Crash(_, name, down_s, after_effects):
                node = self.nodes[name]
                if after_effects is None:
                    self.crash(node, down_s)
                else:
                    node.crash_after, node.down_s = after_effects, down_s
            case PowerCut(_, down_s):
                for node in self.nodes.values():
                    self.crash(node, down_s * self.rng.random())
            case Pause(_, name, for_s):
                self._pause(self.nodes[name], for_s)
            case Block():
                self._block(fault)
            case BreakLink(_, one, two):
                self.network.break_between(one, two)
            case SlowNetwork(_, one, two, delay_s, for_s):
                self.network.slow(one, two, delay_s)
                self.clock.after(for_s, self.network.slow, one, two, 0.0)
            case SlowDisk(_, name, delay_s, for_s):
                self.nodes[name].sync_delay_s = delay_s
                self.clock.after(for_s, setattr, self.nodes[name], "sync_delay_s", 0.0)
            case RegistryCut(_, name, for_s):
                self.registry.cut_off(name)
                self.clock.after(for_s, self.registry.mend, name)
            case RegistryOutage(_, for_s, leases_lapse):
                self.registry.go_out()
                self.clock.after(for_s, self.registry.come_back, leases_lapse)
            case RegistryFlaky(_, for_s):
                self.registry.flaky = 1
                self.clock.after(for_s, setattr, self.registry, "flaky", 0)
            case Stall(_, name):
                self._stall(name)
            case Promote(_, name):
                for node in self.nodes.values():
                    if node.member is not None and node.member.role is Role.MASTER:
                        self.give(node.name, PromotionAsked(self.nodes[name].me))

    def _pause(self, node: Node, for_s: float) -> None:
        if node.member is None:
            return
        member = node.member
        node.paused += 1
        self.registry.out_of_touch(node.name)
        for link in self.network.links_of(node.name):
            self.clock.after(RING_TIMEOUT_S, self.network.give_up_silent, link)
        self.clock.after(for_s, self._resume_if, node, member)

    def _resume_if(self, node: Node, member: RingMember) -> None:
        if node.member is member:
            self.resume(node)

    def _block(self, fault: Block) -> None:
        pairs = [(s, t) for s in fault.sources for t in fault.targets]
        if fault.both_ways:
            pairs += [(t, s) for s, t in pairs]
        for source, target in pairs:
            self.network.block(source, target)
            self.clock.after(fault.for_s, self.network.unblock, source, target)

    def _stall(self, name: str) -> None:
        for node in self.nodes.values():
            member = node.member
            if member is None or member.view is None:
                continue
            ids = member.view.ids
            for index, member_id in enumerate(ids):
                if member_id == member.me and index + 1 < len(ids) and ids[index + 1].node == name:
                    self.give(node.name, PeerStalled(name))
