"""Carries out faults on real processes, their disks and their network. Each ends by itself.

Faults may overlap. A node is up unless some fault holds it down, and a way between two hosts is
open unless some fault cuts it: so each fault takes back what it did, and no more.

A node whose process ends although no fault holds it down is started again after a moment, as a
supervisor would; `exits` has these. A node may do so: when its registry doesn't answer its start,
for example.
"""

from __future__ import annotations

import asyncio
import random
import re
import resource
import threading
import time
from collections import Counter
from typing import assert_never

from expected_logs import DAMAGE
from faults.rounds import Round
from faults.vocabulary import (
    AcceptLoss,
    BitFlips,
    Block,
    BreakLink,
    BreakStream,
    Crash,
    DiskCutUnseen,
    DiskLost,
    DiskRestored,
    Fault,
    Flap,
    FullDisk,
    Join,
    NoDescriptors,
    Pause,
    PowerCut,
    Promote,
    RegistryCut,
    RegistryFlaky,
    RegistryOutage,
    RegistryPutBack,
    Remove,
    Restart,
    SetMinInsync,
    SlowDisk,
    SlowNetwork,
    Stall,
    TakesNothing,
    nodes_of,
)
from history.records import History, Nemesis
from nemesis.cluster import Cluster
from nemesis.etcd_host import EtcdHost
from nemesis.network import Network
from waiting import until

import ringmq
from chaos.disks import Disks
from chaos.load import BODY, Load, may_be_damaged
from chaos.outages import Outage, Outages

# From one host to another.
Way = tuple[str, str]

REGISTRY_HOST = "etcd"
READY_S_MAX = 60.0
# Between two freezes of a slow disk.
THAWED_S = 0.01
# Standard input and outputs: nothing more can be opened.
DESCRIPTORS = 3
SUPERVISED_EACH_S = 0.3
STOP_S_MAX = 30.0
PROMOTE_DEADLINE_S = 5.0


NOT_TRUSTED = "may lack confirmed messages"
# The end of a damaged log may be set aside, without the bodies that it lacks.
DAMAGE_SET_ASIDE = f"{DAMAGE}|messages had no body here"
# What a node may log at level ERROR once it has met the fault; nothing else at all.
LOGGED: dict[type[Fault], str] = {
    DiskLost: NOT_TRUSTED,
    DiskRestored: NOT_TRUSTED,
    # The part of the log that is left names bodies that were removed since, and their records.
    DiskCutUnseen: DAMAGE_SET_ASIDE,
    FullDisk: "the store has failed, this node leaves its rings: .*No space left on device",
    NoDescriptors: "Too many open files",
    BitFlips: DAMAGE_SET_ASIDE,
}


class Hands:
    """`async with Hands(...) as hands: await hands.play(round)`"""

    def __init__(
        self,
        cluster: Cluster,
        network: Network,
        disks: Disks,
        etcd: EtcdHost,
        load: Load,
        history: History,
        spare: str,
    ) -> None:
        self._cluster, self._network, self._disks = cluster, network, disks
        self._load, self._history = load, history
        self._outages = Outages(etcd)
        # How many faults hold a node down, and how many cut a way. The spare node is held down by
        # not having joined.
        self._down: Counter[str] = Counter([spare])
        self._cuts: Counter[Way] = Counter()
        # How many faults keep a process from opening anything, and what it may open otherwise.
        self._without_descriptors: Counter[int] = Counter()
        self._limits: dict[int, tuple[int, int]] = {}
        self._network_lock = asyncio.Lock()
        self._supervisor: asyncio.Task[None] | None = None
        # Whether bodies may be damaged that nobody has read yet.
        self.has_flipped = False
        # Nodes whose processes ended by themselves, with the exit codes.
        self.exits: list[tuple[float, str, int]] = []
        self.notes: list[str] = []
        self._begun_at = 0.0

    async def __aenter__(self) -> Hands:
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._supervisor is not None
        self._supervisor.cancel()
        await asyncio.gather(self._supervisor, return_exceptions=True)

    async def play(self, number: int, each: Round) -> None:
        """All faults of a round; returns when the last one is over."""
        self._begun_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as faults:
            for fault in each.faults:
                faults.create_task(self._suffer(number, each.kind, fault))

    async def _suffer(self, number: int, kind: str, fault: Fault) -> None:
        await self._wait_until(fault.at)

        def note(begins: bool) -> None:
            self._history.note(
                Nemesis(time.monotonic(), begins, number, kind, nodes_of(fault), str(fault))
            )

        for kind_of_fault, pattern in LOGGED.items():
            if isinstance(fault, kind_of_fault):
                self._cluster.allow_log(pattern)
        note(True)
        await self._carry_out(fault)
        note(False)

    async def _carry_out(self, fault: Fault) -> None:
        match fault:
            case Crash() | DiskLost() | DiskCutUnseen():
                await self._crash(fault)
            case PowerCut(_, down_s):
                await self._power_cut(down_s)
            case Restart(_, node, down_s):
                await self._restart(node, down_s)
            case Join(_, node):
                await self._bring_up(node, 0.0)
            case DiskRestored():
                await self._restore(fault)
            case BitFlips(_, node, count):
                await self._flip(node, count)
            case FullDisk(_, node, for_s):
                await self._fill(node, for_s)
            case NoDescriptors(_, node, for_s):
                await self._take_descriptors(node, for_s)
            case SlowDisk(_, node, delay_s, for_s):
                await self._slow_down(node, delay_s, for_s)
            case Pause(_, node, for_s):
                await self._pause(node, for_s)
            case Block(_, sources, targets, both_ways, for_s):
                ways = [(s, t) for s in sources for t in targets]
                await self._cut([*ways, *(_turned(ways) if both_ways else ())], for_s)
            case Flap(_, sources, targets, period_s, for_s):
                ways = [(s, t) for s in sources for t in targets]
                for _ in range(max(1, int(for_s / (2 * period_s)))):
                    await self._cut([*ways, *_turned(ways)], period_s)
                    await asyncio.sleep(period_s)
            case RegistryCut(_, node, for_s):
                ways = [(node, REGISTRY_HOST)]
                await self._cut([*ways, *_turned(ways)], for_s)
            case RegistryOutage(_, for_s, leases_lapse):
                outage = Outage.STOPPED if leases_lapse else Outage.KILLED
                await self._outages.take_away(outage, for_s)
            case Promote(_, target):
                await self._promote(target)
            case (
                BreakLink()
                | BreakStream()
                | SlowNetwork()
                | RegistryFlaky()
                | RegistryPutBack()
                | Stall()
                | TakesNothing()
                | AcceptLoss()
                | Remove()
                | SetMinInsync()
            ):
                raise ValueError(f"only a simulated ring has this fault: {fault}")
            case _:
                assert_never(fault)

    # --- processes ---

    async def _crash(self, fault: Crash | DiskLost | DiskCutUnseen) -> None:
        """`down_s` counts from the fault, however long the kill takes."""
        node = fault.node
        up_at = asyncio.get_running_loop().time() + fault.down_s
        await self._take_down(node)
        if isinstance(fault, DiskLost):
            await asyncio.to_thread(self._cluster.lose_disk, node)
        elif isinstance(fault, DiskCutUnseen):
            await asyncio.to_thread(self._disks.cut_journals, node, fault.kept)
        await self._bring_up(node, up_at)

    async def _power_cut(self, down_s: float) -> None:
        nodes = self._cluster.nodes
        for node in nodes:
            self._down[node] += 1
        running = [node for node in nodes if self._cluster.is_running(node)]
        await asyncio.to_thread(self._cluster.kill, *running)
        rng = random.Random(down_s)
        now = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as starts:
            for node in nodes:
                starts.create_task(self._bring_up(node, now + down_s * rng.random()))

    async def _restart(self, node: str, down_s: float) -> None:
        """A process that doesn't end is killed, and noted."""
        self._down[node] += 1
        if self._cluster.is_running(node):
            try:
                await self._cluster.stop(node, within_s=STOP_S_MAX)
            except AssertionError:
                self.notes.append(f"node {node} has not stopped within {STOP_S_MAX:g} s")
                await asyncio.to_thread(self._cluster.kill, node)
        await self._bring_up(node, asyncio.get_running_loop().time() + down_s)

    async def _pause(self, node: str, for_s: float) -> None:
        if not self._cluster.is_running(node):
            return
        pid = self._cluster.pid(node)
        self._cluster.pause(node)
        await asyncio.sleep(for_s)
        if self._cluster.is_running(node) and self._cluster.pid(node) == pid:
            self._cluster.resume(node)

    async def _take_down(self, node: str) -> None:
        self._down[node] += 1
        if self._cluster.is_running(node):
            # In a thread: a process in a write to a frozen disk dies when that is thawed.
            await asyncio.to_thread(self._cluster.kill, node)

    async def _bring_up(self, node: str, at: float) -> None:
        await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
        self._down[node] -= 1
        if not self._down[node] and not self._cluster.is_running(node):
            self._cluster.launch(node)

    async def _supervise(self) -> None:
        while True:
            for node in self._cluster.nodes:
                if not self._down[node] and not self._cluster.is_running(node):
                    code = self._cluster.exit_code(node)
                    self.exits.append((time.monotonic(), node, code))
                    self._cluster.launch(node)
            await asyncio.sleep(SUPERVISED_EACH_S)

    # --- disks ---

    async def _restore(self, fault: DiskRestored) -> None:
        """The copy is of an earlier life, or the node could not know that it is one."""
        node, loop = fault.node, asyncio.get_running_loop()
        dies_at = loop.time() + fault.age_s
        await self._take_down(node)
        copy = await asyncio.to_thread(self._cluster.copy_disk, node)
        lives = self._cluster.ready_lines(node)
        await self._bring_up(node, 0.0)
        await until(
            lambda: self._cluster.ready_lines(node) > lives,
            f"node {node} has another life than its copy",
            within_s=READY_S_MAX,
        )
        await asyncio.sleep(max(0.0, dies_at - loop.time()))
        up_at = loop.time() + fault.down_s
        await self._take_down(node)
        await asyncio.to_thread(self._cluster.restore_disk, node, copy)
        await self._bring_up(node, up_at)

    async def _flip(self, node: str, count: int) -> None:
        def may(number: int) -> bool:
            nodes = self._cluster.nodes
            return may_be_damaged(number, nodes.index(node), len(nodes))

        self.has_flipped = True
        flipped = await asyncio.to_thread(self._disks.flip, node, count, re.compile(BODY), may)
        self.notes.append(f"{flipped} bodies flipped on {node}")

    async def _fill(self, node: str, for_s: float) -> None:
        await asyncio.to_thread(self._disks.fill, node)
        await asyncio.sleep(for_s)
        # With room again it comes back by itself, or is never whole.
        await asyncio.to_thread(self._disks.make_room, node)

    async def _take_descriptors(self, node: str, for_s: float) -> None:
        if not self._cluster.is_running(node):
            return
        pid = self._cluster.pid(node)
        if not self._without_descriptors[pid]:
            self._limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self._without_descriptors[pid] += 1
        # What is open stays open.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, self._limits[pid][1]))
        await asyncio.sleep(for_s)
        self._without_descriptors[pid] -= 1
        lives = self._cluster.is_running(node) and self._cluster.pid(node) == pid
        if lives and not self._without_descriptors[pid]:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, self._limits[pid])

    async def _slow_down(self, node: str, delay_s: float, for_s: float) -> None:
        """In a thread that thaws the disk whatever becomes of this task: nobody can end a process
        that waits for a frozen disk."""
        enough = threading.Event()

        def freeze_again_and_again() -> None:
            end = time.monotonic() + for_s
            while time.monotonic() < end and not enough.is_set():
                self._disks.freeze(node)
                try:
                    enough.wait(min(delay_s, max(0.0, end - time.monotonic())))
                finally:
                    self._disks.thaw(node)
                enough.wait(THAWED_S)

        try:
            await asyncio.to_thread(freeze_again_and_again)
        finally:
            enough.set()

    # --- network and registry ---

    async def _cut(self, ways: list[Way], for_s: float) -> None:
        async with self._network_lock:
            for way in ways:
                self._cuts[way] += 1
                if self._cuts[way] == 1:
                    await asyncio.to_thread(self._network.cut_way, *way)
        await asyncio.sleep(for_s)
        async with self._network_lock:
            for way in ways:
                self._cuts[way] -= 1
                if not self._cuts[way]:
                    await asyncio.to_thread(self._network.heal_way, *way)

    async def _promote(self, target: str) -> None:
        """Of every queue. An operator's command may fail; he reads why, and nothing is lost."""

        async def one(client: ringmq.Client, queue: str) -> None:
            try:
                await client.promote_mirror(queue, target, deadline_s=PROMOTE_DEADLINE_S)
            except ringmq.RingMQError as error:
                self.notes.append(f"promote {target} of {queue}: {error}")

        async with self._cluster.client() as client, asyncio.TaskGroup() as promotions:
            for queue in self._load.queues:
                promotions.create_task(one(client, queue))

    async def _wait_until(self, at: float) -> None:
        delay_s = self._begun_at + at - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, delay_s))


def _turned(ways: list[Way]) -> list[Way]:
    return [(target, source) for source, target in ways]
