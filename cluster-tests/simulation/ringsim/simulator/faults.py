"""The faults of a run, as data: written by hand, or drawn from a seed.

Times are in seconds of virtual time. A fault that lasts ends by itself; a run ends by mending
every fault that still lasts (`Nemesis.heal`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies; ops that had not been synced may be lost or torn. With `after_effects`
    it dies in the next step that has more effects than that, between two of them."""

    at: float
    node: str
    down_s: float
    after_effects: int | None = None


@dataclass(frozen=True, slots=True)
class DiskLost:
    """A crash, or one that has happened already; the process comes back with an empty disk. The
    application notices, and says that its log isn't whole."""

    at: float
    node: str
    down_s: float


@dataclass(frozen=True, slots=True)
class DiskRestored:
    """The same, with a copy of the disk that was made at `at`, `age_s` before the crash."""

    at: float
    node: str
    age_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class DiskCutUnseen:
    """The same, and of the log only the first part is left, `kept` of 1. Nobody notices: the
    application says that its log is whole. One node in a run may have this."""

    at: float
    node: str
    kept: float
    down_s: float


@dataclass(frozen=True, slots=True)
class PowerCut:
    """All processes die at once and start again, each after a part of `down_s`."""

    at: float
    down_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """The process stands still (a debugger, a stopped machine), then goes on."""

    at: float
    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """Nothing gets from any of `sources` to any of `targets`. In both directions it is a
    partition, complete or partial; in one, a one-way loss."""

    at: float
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    both_ways: bool
    for_s: float


@dataclass(frozen=True, slots=True)
class BreakLink:
    """The connection of two nodes breaks, and is opened again."""

    at: float
    node: str
    other: str


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """Frames between two nodes take `delay_s` more."""

    at: float
    node: str
    other: str
    delay_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Each sync of a node takes `delay_s` more."""

    at: float
    node: str
    delay_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class RegistryCut:
    """A node can't reach the registry; the others can."""

    at: float
    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class RegistryOutage:
    """No node can. With `leases_lapse` every lease has run out when the registry is back."""

    at: float
    for_s: float
    leases_lapse: bool


@dataclass(frozen=True, slots=True)
class RegistryFlaky:
    """Requests or answers get lost, or a request takes effect long after its caller gave up."""

    at: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Stall:
    """A node's upstream neighbour finds that it takes its frames too slowly."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Promote:
    """An operator asks for another master."""

    at: float
    target: str


Fault = (
    Crash
    | DiskLost
    | DiskRestored
    | DiskCutUnseen
    | PowerCut
    | Pause
    | Block
    | BreakLink
    | SlowNetwork
    | SlowDisk
    | RegistryCut
    | RegistryOutage
    | RegistryFlaky
    | Stall
    | Promote
)


def ends_at(fault: Fault) -> float:
    """When it is over, if nothing mends it before."""
    match fault:
        case BreakLink() | Stall() | Promote():
            return fault.at
        case Crash() | DiskLost() | DiskCutUnseen() | PowerCut():
            return fault.at + fault.down_s
        case DiskRestored():
            return fault.at + fault.age_s + fault.down_s
        case _:
            return fault.at + fault.for_s


@dataclass(frozen=True, slots=True)
class Publish:
    """`count` ops, given to every member that would take them."""

    at: float
    count: int
    urgent: bool


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long the parts take at most, in seconds, when nothing is wrong. Each run draws its own:
    a bug that one choice hides shows with another."""

    frame_s: float = 0.003
    sync_s: float = 0.006
    fetch_s: float = 0.05
    watch_s: float = 0.1
    # A joiner fetches its state from the master, else from the member upstream.
    fetch_from_master: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run: the nodes, the publishes, and the faults."""

    nodes: tuple[str, ...]
    # How many of `nodes` are in the first view; the others join.
    first_count: int
    min_insync: int
    publishes: tuple[Publish, ...]
    faults: tuple[Fault, ...]
    latencies: Latencies = Latencies()


NODES = ("a", "b", "c", "d", "e")
FAULTS_END_S = 3.0


def scenario_of(rng: random.Random) -> Scenario:
    """Draws a scenario: mostly three nodes, few ops, one to five faults close together. In one of
    three the whole ring is taken apart besides, and some disk is lost."""
    count = rng.choice((2, 3, 3, 3, 3, 3, 4, 5))
    nodes = NODES[:count]
    first_count = count if rng.random() < 0.7 else rng.randint(1, count)
    majority = count // 2 + 1
    min_insync = min(majority if rng.random() < 0.8 else 1, first_count)
    publishes = [
        Publish(rng.uniform(0.02, FAULTS_END_S), rng.randint(1, 3), rng.random() < 0.3)
        for _ in range(rng.randint(4, 12))
    ]
    faults: list[Fault] = []
    at = rng.uniform(0.05, 1.5)
    for _ in range(rng.randint(1, 5)):
        faults.append(_fault(rng, nodes, at))
        # Half of the faults meet the ring while it still mends the one before.
        at += rng.choice((0.001, 0.02, 0.3, 0.7)) * rng.random() * 2
    if rng.random() < 0.35:
        # Often without other faults: these would mend what was taken apart, or hide it.
        taken_apart = _taken_apart(rng, nodes, min_insync)
        faults = [*(faults if rng.random() < 0.3 else ()), *taken_apart]
        publishes += [
            Publish(rng.uniform(0.3, ends_at(fault)), rng.randint(1, 2), False)
            for fault in taken_apart
        ]
    latencies = Latencies(
        frame_s=rng.choice((0.003, 0.003, 0.05)),
        sync_s=rng.choice((0.006, 0.006, 0.1, 0.5)),
        fetch_s=rng.choice((0.01, 0.05, 0.5)),
        watch_s=rng.choice((0.005, 0.1, 0.4)),
        fetch_from_master=rng.random() < 0.5,
    )
    return Scenario(nodes, first_count, min_insync, tuple(publishes), tuple(faults), latencies)


# A lease has run out by then.
LAPSED_S = 1.4


def _taken_apart(rng: random.Random, nodes: tuple[str, ...], min_insync: int) -> list[Fault]:
    """No synchronised member is left, or too few are. The nodes come back in any order, most of
    the times with some disk lost."""
    order = rng.sample(nodes, len(nodes))
    at = rng.uniform(0.3, 1.5)
    gap_s = rng.choice((0.0, 0.3, LAPSED_S, 2 * LAPSED_S))
    if rng.random() < 0.25:
        # Nobody but the last one keeps its lease, which is cut from the others for longer.
        *others, last = order
        for_s = rng.uniform(LAPSED_S, 4.0)
        cuts: list[Fault] = [RegistryCut(at, name, for_s) for name in others]
        return [*cuts, Block(at, (last,), tuple(others), True, for_s + rng.uniform(0.0, 7.0))]
    crashed_at = {name: at + index * gap_s for index, name in enumerate(order)}
    all_down_at = max(crashed_at.values())
    down_s = {
        name: all_down_at - when + rng.choice((0.1, 1.0, LAPSED_S, 5.0)) * (0.5 + rng.random())
        for name, when in crashed_at.items()
    }
    if rng.random() < 0.2:
        # Some come back before the last is gone, and join those that are left.
        name = rng.choice(order)
        down_s[name] = rng.uniform(0.1, 2.0)
    faults: list[Fault] = [Crash(crashed_at[name], name, down_s[name]) for name in order]
    for name in rng.sample(nodes, rng.choice((0, 1, 1, 1, 2, 2))):
        gone_at = crashed_at[name] + 0.05
        if rng.random() < 0.5:
            faults.append(DiskLost(gone_at, name, down_s[name]))
        else:
            faults.append(DiskRestored(at * rng.random(), name, gone_at - at * 0.5, down_s[name]))
    if min_insync > 1 and rng.random() < 0.5:
        name = rng.choice(nodes)
        faults.append(DiskCutUnseen(crashed_at[name] + 0.06, name, rng.random(), down_s[name]))
    return faults


def _fault(rng: random.Random, nodes: tuple[str, ...], at: float) -> Fault:
    node, other = rng.sample(nodes, 2)
    for_s = rng.choice((0.05, 0.5, 1.0, 2.5)) * (0.5 + rng.random())
    match rng.randrange(18):
        case 0 | 1:
            return Crash(at, node, for_s)
        case 2 | 3 | 4:
            return Crash(at, node, for_s, after_effects=rng.randrange(4))
        case 5:
            return PowerCut(at, for_s)
        case 6:
            return Pause(at, node, for_s)
        case 7:
            side = tuple(n for n in nodes if n != node)
            return Block(at, (node,), side, True, for_s)
        case 8:
            return Block(at, (node,), (other,), True, for_s)
        case 9:
            return Block(at, (node,), (other,), False, for_s)
        case 10 | 11:
            return BreakLink(at, node, other)
        case 12:
            return SlowNetwork(at, node, other, 0.2 * rng.random(), for_s)
        case 13:
            return SlowDisk(at, node, 0.5 * rng.random(), for_s)
        case 14:
            return RegistryCut(at, node, for_s)
        case 15:
            return RegistryOutage(at, for_s, rng.random() < 0.5)
        case 16:
            return rng.choice((RegistryFlaky(at, for_s), Stall(at, node)))
        case _:
            return Promote(at, node)
