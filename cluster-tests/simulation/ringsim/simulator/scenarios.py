"""Scenarios of simulated rings, written by hand or drawn from a seed.

The faults themselves are in `cluster-tests/support/faults/vocabulary.py`. A run ends by mending
every fault that still lasts (`Nemesis.heal`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from faults.vocabulary import (
    AcceptLoss,
    Block,
    BreakLink,
    BreakStream,
    Crash,
    DiskCutUnseen,
    DiskLost,
    DiskRestored,
    Fault,
    Flap,
    Pause,
    PowerCut,
    Promote,
    RegistryCut,
    RegistryFlaky,
    RegistryOutage,
    RegistryPutBack,
    Remove,
    SetMinInsync,
    SlowDisk,
    SlowNetwork,
    Stall,
    TakesNothing,
    ends_at,
)

from ringmq_gm.core.cache import CACHE_BYTES_MAX, JOINER_BYTES_MAX, Budgets
from ringsim.simulator.dangers import danger, given_up, put_back
from ringsim.simulator.network import RING_TIMEOUT_S


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
    budgets: Budgets = field(default_factory=Budgets)
    # The members are replicas of a queue, with producers and consumers (`ringsim.queues`).
    is_queue: bool = False
    # How many rings the nodes have (`rings`), and the budget of each node for their publishes.
    rings: int = 1
    node_bytes_max: int = 1 << 20


NODES = ("a", "b", "c", "d", "e")
FAULTS_END_S = 3.0
# How many of the runs are of whole queues: such a run takes several times as long.
QUEUES = 0.1
# In how many of the runs faults come in one of the shapes of `dangers`.
DANGER = 0.18
# In how many of the runs the registry is put back to a copy.
PUT_BACK = 0.04
# In how many of the runs an operator accepts that what most nodes had is lost.
GIVEN_UP = 0.06
# In how many of the runs the nodes have several rings.
RINGS = 0.08


def scenario_of(rng: random.Random, *, is_queue: bool | None = None) -> Scenario:
    """Draws a scenario, of a queue or not: mostly three nodes, few ops, one to five faults close
    together. In one of three the whole ring is taken apart besides, and some disk is lost."""
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
    if rng.random() < 0.2 and not any(isinstance(fault, DiskCutUnseen) for fault in faults):
        # A log that is cut unseen costs nothing as long as `min_insync` is 2 or more.
        faults += _asked_for(rng, nodes, first_count)
    latencies = Latencies(
        frame_s=rng.choice((0.003, 0.003, 0.05)),
        sync_s=rng.choice((0.006, 0.006, 0.1, 0.5)),
        fetch_s=rng.choice((0.01, 0.05, 0.5)),
        watch_s=rng.choice((0.005, 0.1, 0.4)),
        fetch_from_master=rng.random() < 0.5,
    )
    # A few ops fill the caches of one run in four.
    cache_bytes_max = rng.choice((5, 20)) if rng.random() < 0.25 else CACHE_BYTES_MAX
    joiner_bytes_max = rng.choice((0, 2, 10)) if rng.random() < 0.25 else JOINER_BYTES_MAX
    if rng.random() < 0.1:
        # Whoever is left has to go on while the faults last.
        faults = [*(faults if rng.random() < 0.3 else ()), *_lasting(rng, nodes)]
    if rng.random() < DANGER:
        # Alone: other faults would mostly hide what this is after. Ops come one close on another.
        # In half of these runs there are enough members for two mirrors beside a joiner.
        if count == 3 and rng.random() < 0.5:
            nodes, first_count = NODES[:4], 4
        faults = danger(rng, nodes, min_insync)
        if rng.random() < 0.5:
            # Frames take longer than disks: each member knows less of what the others have.
            latencies = replace(latencies, frame_s=0.05, sync_s=0.006, fetch_s=0.03)
        gap_s = rng.choice((0.02, 0.05, 0.1))
        ends = max(map(ends_at, faults))
        # From the beginning, or around the end of the faults: some take longer than that.
        begins = rng.choice((0.3, max(0.3, ends - 45 * gap_s)))
        times = (begins + gap_s * n for n in range(75))
        publishes = [Publish(when, 1, False) for when in times if when < ends + 0.5]
        joiner_bytes_max = 20
    elif rng.random() < 0.15:
        joiner_bytes_max = rng.choice((0, 2, 10))
        left_behind = _left_behind(rng, nodes)
        faults = [*(faults if rng.random() < 0.3 else ()), *left_behind]
        publishes += [Publish(rng.uniform(0.3, 5.0), 1, False) for _ in range(20)]
    if rng.random() < GIVEN_UP:
        faults = given_up(rng, nodes)
        latencies = replace(latencies, fetch_s=rng.choice((latencies.fetch_s, 2.0, 2.0)))
        publishes = [Publish(rng.uniform(0.1, ends_at(faults[-1])), 1, False) for _ in range(40)]
    if rng.random() < PUT_BACK:
        # Without lost disks: what a node's disk forgets, it can't hold against the registry.
        faults = put_back(rng, nodes)
        ends = max(map(ends_at, faults))
        publishes = [Publish(rng.uniform(0.1, ends), 1, False) for _ in range(40)]
        min_insync = rng.choice((1, min_insync))
    if is_queue is None:
        is_queue = rng.random() < QUEUES
    if is_queue and rng.random() < 0.3:
        faults = [*(faults if rng.random() < 0.3 else ()), *_ends_part(rng, nodes)]
    rings, node_bytes_max = 1, 1 << 20
    has_one_registry = any(isinstance(fault, RegistryPutBack) for fault in faults)
    if rng.random() < RINGS and not is_queue and not has_one_registry:
        rings, node_bytes_max = rng.choice((2, 2, 3)), rng.choice((200, 1 << 20))
        if node_bytes_max == 200 and len(publishes) < 20:
            # Enough to fill it while some member takes nothing, or the disk is slow.
            publishes = [replace(publish, count=10 * publish.count) for publish in publishes]
    return Scenario(
        nodes,
        first_count,
        min_insync,
        tuple(publishes),
        tuple(faults),
        latencies,
        Budgets(cache_bytes_max, joiner_bytes_max),
        is_queue,
        rings,
        node_bytes_max,
    )


def _left_behind(rng: random.Random, nodes: tuple[str, ...]) -> list[Fault]:
    """A node joins again and takes nothing for a while. Meanwhile the view changes for another
    reason, or can't change."""
    name, other = rng.sample(nodes, 2)
    at = rng.uniform(0.3, 1.0)
    faults: list[Fault] = [
        Crash(at, name, rng.uniform(0.05, 0.5)),
        TakesNothing(at, name, rng.uniform(1.0, 4.0)),
    ]
    while rng.random() < 0.6:
        then = at + rng.uniform(0.5, 3.0)
        for_s = rng.uniform(0.2, 2.0)
        faults.append(
            rng.choice(
                (
                    RegistryOutage(then, for_s, False),
                    RegistryCut(then, other, for_s),
                    Crash(then, other, for_s),
                    Promote(then, other),
                    BreakLink(then, name, other),
                    _break_stream(rng, name, other, then),
                )
            )
        )
    return faults


def _asked_for(rng: random.Random, nodes: tuple[str, ...], first_count: int) -> list[Fault]:
    """Operators, or policies, want another shape of the ring; some accept a loss, which is refused
    unless the ring can't go on by itself."""
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 3)):
        at = rng.uniform(0.3, FAULTS_END_S + 1.0)
        match rng.randrange(5):
            case 0 | 1:
                faults.append(Remove(at, rng.choice(nodes)))
            case 2 | 3:
                faults.append(SetMinInsync(at, rng.randint(1, first_count)))
            case _:
                faults.append(AcceptLoss(at + 2.0 * rng.random(), rng.choice(nodes)))
    return faults


def _ends_part(rng: random.Random, nodes: tuple[str, ...]) -> list[Fault]:
    """The master goes on alone for a while, with its clients, so its log gets an end that no other
    has. Then it comes back, alive or not."""
    master, others = nodes[0], nodes[1:]
    at = rng.uniform(0.4, 1.5)
    faults: list[Fault] = [Block(at, (master,), others, True, rng.uniform(0.7, 3.0))]
    if rng.random() < 0.5:
        faults.append(Crash(at + rng.uniform(0.1, 0.6), master, rng.uniform(0.5, 3.0)))
    return faults


def _lasting(rng: random.Random, nodes: tuple[str, ...]) -> list[Fault]:
    """Two faults or three that last long enough for the ring to be expected to go on: some nodes
    don't reach the registry, or each other, and some are down."""
    at = rng.uniform(0.3, 1.5)
    faults: list[Fault] = []
    for kind in rng.choices(("registry", "crash", "pause", "one", "pair"), (4, 3, 1, 1, 2), k=3):
        node, other = rng.sample(nodes, 2)
        for_s = rng.uniform(9.0, 12.0)
        match kind:
            case "registry":
                faults.append(RegistryCut(at, node, for_s))
            case "crash":
                faults.append(Crash(at, node, for_s))
            case "pause":
                faults.append(Pause(at, node, for_s))
            case "one":
                others = tuple(n for n in nodes if n != node)
                faults.append(Block(at, (node,), others, True, for_s))
            case _:
                faults.append(Block(at, (node,), (other,), rng.random() < 0.7, for_s))
        at += rng.choice((0.0, 0.2, 1.5)) * rng.random()
    return faults[: rng.randint(2, 3)]


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
    match rng.randrange(19):
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
        case 10:
            return BreakLink(at, node, other)
        case 11:
            return _break_stream(rng, node, other, at)
        case 12:
            return SlowNetwork(at, node, other, 0.2 * rng.random(), for_s)
        case 13:
            return SlowDisk(at, node, 0.5 * rng.random(), for_s)
        case 14:
            return RegistryCut(at, node, for_s)
        case 15:
            return RegistryOutage(at, for_s, rng.random() < 0.5)
        case 16:
            return rng.choice(
                (RegistryFlaky(at, for_s), Stall(at, node), TakesNothing(at, node, 2 * for_s))
            )
        case 17:
            return _flap(rng, nodes, node, at)
        case _:
            return Promote(at, node)


def _flap(rng: random.Random, nodes: tuple[str, ...], node: str, at: float) -> Flap:
    """Shorter than a silence that is noticed, about as long, or longer; from one of the others, or
    from all. It comes and goes one to six times."""
    others = tuple(n for n in nodes if n != node)
    targets = others if rng.random() < 0.5 else (rng.choice(others),)
    period_s = RING_TIMEOUT_S * rng.choice((0.1, 0.6, 1.0, 2.0)) * (0.5 + rng.random())
    return Flap(at, (node,), targets, period_s, for_s=2 * period_s * (rng.randint(1, 6) + 0.5))


def _break_stream(rng: random.Random, node: str, other: str, at: float) -> BreakStream:
    """In either direction. Its source dials anew when the ring time-out is over, at the latest."""
    source, target = rng.sample((node, other), 2)
    return BreakStream(at, source, target, rng.choice((0.0, 0.02, RING_TIMEOUT_S)) * rng.random())
