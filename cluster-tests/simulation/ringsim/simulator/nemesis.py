"""Carries out faults on a world. Each ends by itself; `heal` ends those that haven't."""

from __future__ import annotations

from collections.abc import Sequence

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
)

from ringmq_gm.core.events import (
    MinInsyncAsked,
    PeerStalled,
    PromotionAsked,
    RemovalAsked,
    Role,
)
from ringmq_gm.core.member import RingMember
from ringsim.simulator.machines import Machine
from ringsim.simulator.network import RING_TIMEOUT_S, SLOW_TIMEOUT_S
from ringsim.simulator.restarts import RollingRestart
from ringsim.simulator.world import World


class Nemesis:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._restart = RollingRestart(world)

    def begin(self, fault: Fault) -> None:
        world = self._world
        clock, machines, network = world.clock, world.machines, world.network
        registries = [ring.registry for ring in world.rings]
        world.note(str(fault))
        match fault:
            case Crash(_, name, down_s, after_effects):
                machine = machines[name]
                if after_effects is None:
                    world.crash(machine, down_s)
                else:
                    machine.crash_after, machine.down_s = after_effects, down_s
            case DiskLost(_, name, down_s):
                self._put_back(name, down_s, [[] for _ in world.rings])
            case DiskRestored(_, name, age_s, down_s):
                copies = [ring.machines[name].disk.copy() for ring in world.rings]
                clock.after(age_s, self._put_back, name, down_s, copies)
            case DiskCutUnseen(_, name, kept, down_s):
                world.crash(machines[name], down_s)
                disk = machines[name].disk
                disk.cut_unseen(int(kept * len(disk.log)))
            case PowerCut(_, down_s):
                for machine in machines.values():
                    world.crash(machine, down_s * world.rng.random())
            case Pause(_, name, for_s):
                self._pause(machines[name], for_s)
            case Block():
                self._block(fault)
            case Flap(_, sources, targets, period_s, for_s):
                for turn in range(int(for_s / (2 * period_s))):
                    cut = Block(0.0, sources, targets, both_ways=True, for_s=period_s)
                    clock.after(2 * period_s * turn, self._block, cut)
            case BreakLink(_, one, two):
                network.break_between(one, two)
            case BreakStream(_, source, target, stuck_s):
                network.break_stream(source, target, stuck_s)
            case SlowNetwork(_, one, two, delay_s, for_s):
                network.slow(one, two, delay_s)
                clock.after(for_s, network.slow, one, two, 0.0)
            case SlowDisk(_, name, delay_s, for_s):
                machines[name].sync_delay_s = delay_s
                clock.after(for_s, setattr, machines[name], "sync_delay_s", 0.0)
            case RegistryCut(_, name, for_s):
                for registry in registries:
                    registry.cut_off(name)
                    clock.after(for_s, registry.mend, name)
            case RegistryOutage(_, for_s, leases_lapse):
                for registry in registries:
                    registry.go_out()
                    clock.after(for_s, registry.come_back, leases_lapse)
            case RegistryFlaky(_, for_s):
                for registry in registries:
                    registry.flaky = 1
                    clock.after(for_s, setattr, registry, "flaky", 0)
            case RegistryPutBack(_, age_s, for_s):
                (registry,) = registries
                clock.after(age_s, registry.put_back, registry.copy())
                clock.after(age_s + for_s, self._bring_back)
            case Stall(_, name):
                self._stall(name)
            case TakesNothing(_, name, for_s):
                network.take_nothing(name)
                clock.after(for_s, network.take_again, name)
                clock.after(SLOW_TIMEOUT_S, self._stall_if_waiting, name)
            case Promote(_, name):
                self._ask_master(PromotionAsked(machines[name].me))
            case Remove(_, name):
                self._ask_master(RemovalAsked(machines[name].me))
            case SetMinInsync(_, count):
                self._ask_master(MinInsyncAsked(count))
            case BitFlips() | FullDisk() | NoDescriptors() | Restart() | Join():
                raise ValueError(f"only a real cluster has this fault: {fault}")
            case AcceptLoss(_, name):
                world.accept_loss(machines[name])

    def heal(self) -> None:
        """Mends all that is still broken, and starts every process that is down."""
        world = self._world
        world.note("heal")
        world.network.heal()
        world.registry.bring_back()
        for machine in world.machines.values():
            machine.sync_delay_s = 0.0
            machine.crash_after = None
            if machine.paused:
                machine.paused = 1
                world.resume(machine)
            if machine.member is None:
                world.start(machine)
        for ring in world.rings:
            ring.registry.heal()
        self._restart.begin()

    def _bring_back(self) -> None:
        self._world.registry.bring_back()
        self._restart.begin()

    def _put_back(self, name: str, down_s: float, copies: Sequence[Sequence[object]]) -> None:
        """The copies are those of the rings."""
        self._world.crash(self._world.machines[name], down_s)
        for ring, copy in zip(self._world.rings, copies, strict=True):
            ring.machines[name].disk.put_back(copy)

    def _pause(self, machine: Machine, for_s: float) -> None:
        if machine.member is None:
            return
        world, member = self._world, machine.member
        machine.paused += 1
        for ring in world.rings:
            ring.registry.out_of_touch(machine.name)
        for link in world.network.links_of(machine.name):
            world.clock.after(RING_TIMEOUT_S, world.network.give_up_silent, link)
        world.clock.after(for_s, self._resume_if, machine, member)

    def _resume_if(self, machine: Machine, member: RingMember) -> None:
        if machine.member is member:
            self._world.resume(machine)

    def _block(self, fault: Block) -> None:
        network = self._world.network
        pairs = [(s, t) for s in fault.sources for t in fault.targets]
        if fault.both_ways:
            pairs += [(t, s) for s, t in pairs]
        for source, target in pairs:
            network.block(source, target)
            self._world.clock.after(fault.for_s, network.unblock, source, target)

    def _stall(self, name: str) -> None:
        """Tells the upstream neighbour of this machine that it is too slow."""
        for ring in self._world.rings:
            for machine in ring.machines.values():
                member = machine.member
                if member is None or member.view is None:
                    continue
                ids, index = member.view.ids, member.view.index_of(member.me)
                if index is not None and [m.node for m in ids[index + 1 : index + 2]] == [name]:
                    ring.give(machine.name, PeerStalled(name))

    def _stall_if_waiting(self, name: str) -> None:
        if self._world.network.takes_nothing(name):
            if self._world.network.has_waiting_ops(name):
                self._stall(name)
            self._world.clock.after(SLOW_TIMEOUT_S, self._stall_if_waiting, name)

    def _ask_master(self, asked: PromotionAsked | RemovalAsked | MinInsyncAsked) -> None:
        for machine in self._world.machines.values():
            if machine.member is not None and machine.member.role is Role.MASTER:
                self._world.give(machine.name, asked)
