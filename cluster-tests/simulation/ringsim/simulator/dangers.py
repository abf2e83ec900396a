"""Faults that belong together, in a random measure: each shape comes near one rule of the core,
which faults drawn one by one seldom do. A planted bug breaks each of these rules (`mutations`)."""

from __future__ import annotations

import random
from collections.abc import Callable

from faults.vocabulary import (
    AcceptLoss,
    Block,
    BreakLink,
    Crash,
    DiskCutUnseen,
    DiskLost,
    Fault,
    Promote,
    RegistryCut,
    RegistryFlaky,
    RegistryOutage,
    RegistryPutBack,
    SlowDisk,
    SlowNetwork,
    TakesNothing,
)

Nodes = tuple[str, ...]


def _epoch_unheard_of(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """A member is cut from the registry, and the links around it break and come back: the others go
    on to the next epoch without it."""
    node, other = rng.sample(nodes, 2)
    at = rng.uniform(0.3, 0.6)
    breaks = (BreakLink(at + rng.uniform(0.05, 0.6), node, other) for _ in range(rng.randint(2, 4)))
    return [RegistryCut(at, node, rng.uniform(2.0, 4.0)), *breaks]


def _late_handover(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """A proposal to hand over may yet take effect when the ring has not drained in time."""
    at = rng.uniform(0.3, 1.0)
    outage = RegistryOutage(at, rng.uniform(5.1, 5.8), leases_lapse=False)
    return [outage, Promote(at + rng.uniform(0.0, 0.3), rng.choice(nodes[1:]))]


def _cut_log_first(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """All die, and one whose log was cut unseen is back long before the others."""
    first, *others = rng.sample(nodes, len(nodes))
    at = rng.uniform(0.8, 2.0)
    crashes = (Crash(at + rng.uniform(0.0, 0.05), name, rng.uniform(5.0, 8.0)) for name in others)
    return [*crashes, DiskCutUnseen(at + 0.05, first, rng.random(), 0.1)]


def _behind_and_master_dies(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """A joiner is left behind while the registry is away; then the master dies."""
    joiner = rng.choice(nodes[1:])
    at = rng.uniform(0.3, 0.8)
    out_at = at + rng.uniform(0.8, 1.5)
    return [
        Crash(at, joiner, 0.2),
        TakesNothing(at, joiner, rng.uniform(2.3, 3.3)),
        RegistryOutage(out_at, 1.5, leases_lapse=False),
        Crash(out_at + rng.uniform(0.6, 1.2), nodes[0], 10.0),
    ]


def _counted_unheard(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """A member joins again while answers of the registry get lost; then the master dies."""
    at = rng.uniform(0.3, 1.0)
    return [
        Crash(at, rng.choice(nodes[1:]), 0.1),
        RegistryFlaky(at, 3.0),
        Crash(at + rng.uniform(0.4, 1.2), nodes[0], 3.0),
    ]


def _held_up_and_master_dies(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """A mirror takes nothing, so that it lacks ops which the one before it has; the master dies."""
    at = rng.uniform(0.5, 1.5)
    held = TakesNothing(at, rng.choice(nodes[1:]), rng.uniform(0.6, 1.8))
    return [held, Crash(at + rng.uniform(0.05, 0.5), nodes[0], rng.uniform(1.0, 3.0))]


def _joiner_is_next(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """All but the master are away, and one comes back to join; then the master dies."""
    joiner = rng.choice(nodes[1:])
    at = rng.uniform(0.5, 1.0)
    down_s = rng.uniform(1.6, 2.5)
    others = (Crash(at, name, 8.0) for name in nodes[1:] if name != joiner)
    dies_at = at + down_s + rng.uniform(0.1, 0.8)
    return [*others, Crash(at, joiner, down_s), Crash(dies_at, nodes[0], 6.0)]


def _joiner_lags_and_master_dies(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """A joiner that is complete writes late; the master dies, and the next one has not yet heard
    what the one before it has confirmed."""
    joiner = nodes[-1]
    at = rng.uniform(0.3, 0.6)
    dies_at = at + rng.uniform(0.7, 3.0)
    faults: list[Fault] = [
        Crash(at, joiner, 0.1),
        SlowDisk(at, joiner, rng.uniform(0.3, 1.0), 4.0),
        Crash(dies_at, nodes[0], 3.0),
    ]
    if len(nodes) > 3:
        # The marks of all mirrors come to the next master later than the joiner's.
        faults.append(SlowNetwork(dies_at, nodes[1], nodes[-2], rng.uniform(0.05, 0.2), 2.0))
    return faults


_SHAPES: tuple[Callable[[random.Random, Nodes], list[Fault]], ...] = (
    _epoch_unheard_of,
    *(_late_handover,) * 2,
    _cut_log_first,
    _behind_and_master_dies,
    _counted_unheard,
    _held_up_and_master_dies,
    _joiner_is_next,
    *(_joiner_lags_and_master_dies,) * 4,
)


def danger(rng: random.Random, nodes: Nodes, min_insync: int) -> list[Fault]:
    """One of the shapes. A log that is cut unseen costs nothing only if `min_insync` is above 1."""
    shapes = [shape for shape in _SHAPES if shape is not _cut_log_first or min_insync > 1]
    return rng.choice(shapes)(rng, nodes)


def given_up(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """What one node has is all that is left, and an operator lets the ring go on with it."""
    shapes = (_left_behind, *(_named_while_it_fetches,) * 2, *(_overruled_alive,) * 2)
    return rng.choice(shapes)(rng, nodes)


def _named_while_it_fetches(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """The others lose their disks while they give a joiner their state, and an operator names that
    one before it comes. They are away, so the ring waits for their answers."""
    left, *others = rng.sample(nodes, len(nodes))
    at = rng.uniform(0.3, 1.0)
    back_at = at + rng.uniform(0.3, 1.0)
    lost_at = back_at + rng.uniform(0.8, 2.0)
    lost = (DiskLost(lost_at, name, 10.0) for name in others)
    # All leases have lapsed when it is back.
    outage = RegistryOutage(lost_at - 0.05, 0.1, leases_lapse=True)
    decided_at = lost_at + rng.uniform(0.1, 0.5)
    return [Crash(at, left, back_at - at), outage, *lost, AcceptLoss(decided_at, left)]


def _left_behind(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """One node is away. The others confirm on, and lose their disks."""
    left, *others = rng.sample(nodes, len(nodes))
    at = rng.uniform(0.3, 1.2)
    lost_at = at + rng.uniform(0.5, 3.0)
    decided_at = lost_at + rng.uniform(2.0, 8.0)
    lost = (DiskLost(lost_at, name, rng.choice((0.5, 15.0)) * rng.random()) for name in others)
    away = Crash(at, left, rng.uniform(1.0, decided_at - at))
    return [away, *lost, AcceptLoss(decided_at, left)]


def _overruled_alive(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """One node is cut from the others. These confirm on, lose the registry past their leases, and
    an operator names the first one. The cuts end in any order, and one of the overruled may die."""
    named, *others = rng.sample(nodes, len(nodes))
    at = rng.uniform(0.3, 1.0)
    lapses_at = at + rng.uniform(1.0, 1.5)
    decided_at = lapses_at + rng.uniform(1.5, 2.5)
    # The probes of the named one wait for two seconds.
    ends_at = decided_at + 2.5
    for_s = ends_at - lapses_at + rng.uniform(0.0, 8.0)
    cuts = (RegistryCut(lapses_at, name, for_s * rng.uniform(0.9, 1.0)) for name in others)
    faults: list[Fault] = [*cuts, AcceptLoss(decided_at, named)]
    if rng.random() < 0.3:
        faults.append(Crash(ends_at + rng.uniform(0.0, 3.0), rng.choice(others), rng.random()))
    seen_again_at = ends_at + rng.uniform(0.0, 4.0)
    return [*faults, Block(at, (named,), tuple(others), True, seen_again_at - at)]


def put_back(rng: random.Random, nodes: Nodes) -> list[Fault]:
    """The registry is put back. Some node has missed views since the copy; others have begun lives
    that the copy doesn't know, and begin more, or all do."""
    at = rng.uniform(0.3, 0.8)
    age_s = rng.uniform(1.2, 3.0)
    for_s = rng.uniform(1.5, 5.0)
    back_at = at + age_s
    faults: list[Fault] = [RegistryPutBack(at, age_s, for_s)]
    if rng.random() < 0.6:
        # It has seen by then that something was written after the copy.
        missed_at = at + rng.uniform(0.42, 0.8)
        missing = rng.choice(nodes)
        others = tuple(name for name in nodes if name != missing)
        faults += [
            RegistryCut(missed_at, missing, back_at - missed_at + rng.uniform(0.0, 0.5)),
            Block(missed_at, (missing,), others, True, back_at - missed_at + for_s * rng.random()),
        ]
    for name in rng.sample(nodes, rng.choice((0, 1, 2, len(nodes)))):
        if rng.random() < 0.9:
            faults.append(Crash(at + rng.uniform(0.05, 0.8), name, 0.3 * rng.random()))
        if rng.random() < 0.8:
            faults.append(Crash(back_at + rng.uniform(-0.4, 1.0), name, rng.random()))
    return faults
