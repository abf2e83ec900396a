"""Rounds of faults, drawn from a seed: each begins in a cluster that is whole, and ends in one.

A round is of one *kind*, so that a run can say for each kind how long nobody was served. The kinds
are dealt like cards: each comes once before any comes again, in an order that the seed decides.
So a run of some minutes has met them all, and a long one in many orders.

What is drawn stays within what docs/guarantees.md promises, with `min_insync` 2 of three: then
a lost message is a bug, and not a disk too many. A round begins when all replicas are synchronised;
and then

- of one disk anything may be lost, seen or not. Another replica has all that is confirmed,
  whichever of the nodes was out of the ring;
- of two disks only if they are lost at the same moment as all nodes are killed. A node that was
  put out before would lack what the other two have confirmed since;
- two disks never in a run with bit flips. A damaged body counts on the other replicas until
  somebody has read it.

Pure: the same seed gives the same rounds, whatever becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from faults.vocabulary import (
    CLIENTS,
    BitFlips,
    Block,
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
    RegistryOutage,
    Restart,
    SlowDisk,
    ends_at,
)

T = TypeVar("T")
Nodes = Sequence[str]


class Chance(Protocol):
    """What is used of `random.Random`."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randint(self, a: int, b: int) -> int: ...
    def choice(self, seq: Sequence[T]) -> T: ...
    def sample(self, population: Sequence[T], k: int) -> list[T]: ...


BIT_FLIPS = "bit flips"
JOIN, STAYS_AWAY = "join", "stays away"
# Kinds that want one node more than there are replicas.
WITH_SPARE = (JOIN, STAYS_AWAY)
# After so long its replicas go to another node (`replace_after_s` of the nodes).
REPLACED_AFTER_S = 8.0
TWO_DISKS = "all killed, two disks lost"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that belong together, in seconds since the round began."""

    kind: str
    faults: tuple[Fault, ...]

    @property
    def lasts_s(self) -> float:
        return max(map(ends_at, self.faults))


def rounds(
    rng: Chance, nodes: Nodes, kinds: Sequence[str] = (), spare: str = ""
) -> Iterator[Round]:
    """Rounds without end, of all kinds or of those that are named. Three nodes or more; `spare` is
    one that joins them in the midst of the run, and takes over from nodes that stay away."""
    dealt = {name: KINDS[name] for name in kinds or KINDS}
    # See the module: one run has the ones or the others.
    excluded = rng.choice((BIT_FLIPS, TWO_DISKS))
    if len(dealt) > 1:
        dealt.pop(excluded, None)
    if not spare:
        dealt = {name: draw for name, draw in dealt.items() if name not in WITH_SPARE}
    while dealt:
        for name in rng.sample(list(dealt), len(dealt)):
            if name == JOIN:
                nodes = (*nodes, spare)
                del dealt[JOIN]
                yield Round(JOIN, (Join(0.0, spare),))
            elif name != STAYS_AWAY or spare in nodes:
                yield Round(name, tuple(dealt[name](rng, nodes)))


Draw = Callable[[Chance, Nodes], Sequence[Fault]]
# How long the ring and the registry need to notice, with a node's default settings: 2 s of
# silence, and leases of 6 s. Some faults are over before, some last longer.
LASTS_S = (1.0, 4.0, 8.0)


def _one(rng: Chance, nodes: Nodes) -> str:
    return rng.choice(nodes)


def _for_s(rng: Chance) -> float:
    return rng.choice(LASTS_S) * rng.uniform(0.8, 1.2)


def _down_s(rng: Chance) -> float:
    return rng.choice((0.2, 1.0, 5.0)) * rng.uniform(0.5, 1.5)


def _kill(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [Crash(0.0, _one(rng, nodes), _down_s(rng))]


def _stop(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [Pause(0.0, _one(rng, nodes), _for_s(rng))]


def _ring_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    node = _one(rng, nodes)
    return [Block(0.0, (node,), _others(nodes, node), both_ways=True, for_s=_for_s(rng))]


def _partial_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    node, other = rng.sample(nodes, 2)
    return [Block(0.0, (node,), (other,), both_ways=True, for_s=_for_s(rng))]


def _one_way_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    node, other = rng.sample(nodes, 2)
    targets = rng.choice(((other,), _others(nodes, node)))
    if rng.random() < 0.5:
        return [Block(0.0, targets, (node,), both_ways=False, for_s=_for_s(rng))]
    return [Block(0.0, (node,), targets, both_ways=False, for_s=_for_s(rng))]


def _clients_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """Clients can't reach one node, or it can't reach them; all else is well."""
    node, for_s = _one(rng, nodes), _for_s(rng)
    source, target = rng.choice(((CLIENTS, node), (node, CLIENTS)))
    return [Block(0.0, (source,), (target,), both_ways=rng.random() < 0.5, for_s=for_s)]


def _flapping_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    node = _one(rng, nodes)
    period_s = rng.uniform(0.2, 2.5)
    return [Flap(0.0, (node,), _others(nodes, node), period_s, for_s=8.0)]


def _registry_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [RegistryCut(0.0, _one(rng, nodes), _for_s(rng))]


def _ring_and_registry_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    node, for_s = _one(rng, nodes), _for_s(rng)
    return [
        Block(0.0, (node,), _others(nodes, node), both_ways=True, for_s=for_s),
        RegistryCut(0.0, node, for_s * rng.uniform(0.7, 1.3)),
    ]


def _registry_away(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [RegistryOutage(0.0, _for_s(rng), rng.random() < 0.5)]


def _registry_away_and_kill(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    away = RegistryOutage(0.0, _for_s(rng), rng.random() < 0.5)
    return [away, Crash(0.5, _one(rng, nodes), _down_s(rng))]


def _slow_disk(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [SlowDisk(0.0, _one(rng, nodes), rng.uniform(0.02, 0.4), for_s=6.0)]


def _hanging_disk(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    for_s = rng.uniform(3.0, 12.0)
    return [SlowDisk(0.0, _one(rng, nodes), for_s, for_s)]


def _full_disk(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [FullDisk(0.0, _one(rng, nodes), rng.uniform(2.0, 5.0))]


def _no_descriptors(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [NoDescriptors(0.0, _one(rng, nodes), _for_s(rng))]


def _lost_disk(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [DiskLost(0.0, _one(rng, nodes), _down_s(rng))]


def _restored_disk(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [DiskRestored(0.0, _one(rng, nodes), rng.uniform(1.0, 4.0), _down_s(rng))]


def _cut_log(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [DiskCutUnseen(0.0, _one(rng, nodes), rng.random(), _down_s(rng))]


def _bit_flips(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    node = _one(rng, nodes)
    flips = BitFlips(0.0, node, rng.randint(1, 40))
    if rng.random() < 0.5:
        # A start reads what nobody has asked for.
        return [flips, Restart(0.5, node, 0.2)]
    return [flips, Promote(0.5, node)]


def _restart(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [Restart(0.0, _one(rng, nodes), _down_s(rng))]


def _rolling_restart(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """Without waiting for the node before to be synchronised again."""
    gap_s = rng.uniform(1.0, 5.0)
    order = rng.sample(nodes, len(nodes))
    return [Restart(turn * gap_s, node, 0.2) for turn, node in enumerate(order)]


def _promote(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [Promote(0.3 * turn, _one(rng, nodes)) for turn in range(rng.randint(1, 4))]


def _all_killed(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    return [PowerCut(0.0, rng.choice((0.5, 4.0)))]


def _killed_at_once(rng: Chance, nodes: Nodes) -> dict[str, Crash]:
    """All of them, in any order of the starts, some of which are seconds apart."""
    return {node: Crash(0.0, node, rng.choice((0.1, 1.0, 4.0))) for node in nodes}


# After the kills, and before any start.
GONE_AT_S = 0.05
# Leases of 6 s, and 2 s in which a ring that begins again waits for more members.
LEASES_LAPSED_S = 11.0


def _all_killed_and(rng: Chance, nodes: Nodes, harmed: Nodes) -> dict[str, Crash]:
    """Half of the time those that are not harmed come last, when the leases of their lives before
    have run out and nobody would wait for them any more."""
    killed = _killed_at_once(rng, nodes)
    if rng.random() < 0.5:
        for node in (each for each in nodes if each not in harmed):
            killed[node] = Crash(0.0, node, LEASES_LAPSED_S + rng.uniform(0.0, 3.0))
    return killed


def _all_killed_disk_lost(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    lost = _one(rng, nodes)
    killed = _all_killed_and(rng, nodes, (lost,))
    return [*killed.values(), DiskLost(GONE_AT_S, lost, killed[lost].down_s)]


def _all_killed_two_disks_lost(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    lost = rng.sample(nodes, 2)
    killed = _all_killed_and(rng, nodes, lost)
    gone = [DiskLost(GONE_AT_S, node, killed[node].down_s) for node in lost]
    return [*killed.values(), *gone]


def _all_killed_log_cut(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    cut = _one(rng, nodes)
    killed = _all_killed_and(rng, nodes, (cut,))
    return [*killed.values(), DiskCutUnseen(GONE_AT_S, cut, rng.random(), killed[cut].down_s)]


def _one_by_one_and_a_disk_lost(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """The ring shrinks to one, whose disk is lost. The one before it has everything."""
    order = rng.sample(nodes, len(nodes))
    gap_s = rng.uniform(2.5, 3.5)
    gone_at = gap_s * (len(nodes) - 1)
    killed = [
        Crash(turn * gap_s, node, gone_at - turn * gap_s + 1.0 + rng.random())
        for turn, node in enumerate(order[:-1])
    ]
    return [*killed, DiskLost(gone_at, order[-1], rng.uniform(0.1, 3.0))]


def _last_one_cut_off(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """All but one lose the registry for longer than their leases last; that one is cut off."""
    *others, last = rng.sample(nodes, len(nodes))
    for_s = rng.uniform(7.0, 9.0)
    cuts = [RegistryCut(0.0, node, for_s) for node in others]
    off = Block(0.0, (last,), tuple(others), both_ways=True, for_s=for_s + rng.uniform(0.0, 4.0))
    return [*cuts, off]


def _two_at_once(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """Two faults of different nodes or the registry, the second while the first lasts or heals."""
    first = rng.choice((*HARMLESS_TO_DISKS, *OF_ONE_DISK))(rng, nodes)
    second = rng.choice(HARMLESS_TO_DISKS)(rng, nodes)
    return [*first, *(_later(fault, rng.uniform(0.0, 4.0)) for fault in second)]


def _later(fault: Fault, by_s: float) -> Fault:
    return replace(fault, at=fault.at + by_s)


def _storm(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """Many faults, most of which begin before the ones before have healed. At most one disk."""
    faults: list[Fault] = []
    if rng.random() < 0.3:
        faults += rng.choice(OF_ONE_DISK)(rng, nodes)
    at = 0.0
    for _ in range(rng.randint(5, 9)):
        faults += (_later(fault, at) for fault in rng.choice(HARMLESS_TO_DISKS)(rng, nodes))
        at += rng.uniform(0.0, 3.0)
    return faults


def _killed_again_and_again(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """All of them, and again while they come back."""
    faults: list[Fault] = []
    for turn in range(rng.randint(2, 4)):
        at = turn * rng.uniform(1.0, 3.0)
        faults += [Crash(at, node, rng.uniform(0.05, 1.0)) for node in nodes]
    return faults


def _stays_away(rng: Chance, nodes: Nodes) -> Sequence[Fault]:
    """For longer than it takes to replace it; or it comes back in the midst of that."""
    node = _one(rng, nodes)
    down_s = REPLACED_AFTER_S + rng.choice((0.2, 1.0, 6.0))
    return [Crash(0.0, node, down_s) if rng.random() < 0.5 else DiskLost(0.0, node, down_s)]


def _others(nodes: Nodes, node: str) -> tuple[str, ...]:
    return tuple(each for each in nodes if each != node)


HARMLESS_TO_DISKS: tuple[Draw, ...] = (
    _kill,
    _stop,
    _ring_cut,
    _partial_cut,
    _one_way_cut,
    _clients_cut,
    _flapping_cut,
    _registry_cut,
    _registry_away,
    _slow_disk,
    _no_descriptors,
    _restart,
    _promote,
)
OF_ONE_DISK: tuple[Draw, ...] = (_lost_disk, _restored_disk, _cut_log, _full_disk)

KINDS: dict[str, Draw] = {
    "kill": _kill,
    "stopped process": _stop,
    "ring cut": _ring_cut,
    "partial cut": _partial_cut,
    "one-way cut": _one_way_cut,
    "clients cut from one": _clients_cut,
    "flapping cut": _flapping_cut,
    "registry cut from one": _registry_cut,
    "ring and registry cut": _ring_and_registry_cut,
    "registry away": _registry_away,
    "registry away and a kill": _registry_away_and_kill,
    "slow disk": _slow_disk,
    "hanging disk": _hanging_disk,
    "full disk": _full_disk,
    "no descriptors": _no_descriptors,
    "lost disk": _lost_disk,
    "restored disk": _restored_disk,
    "log cut unseen": _cut_log,
    BIT_FLIPS: _bit_flips,
    "restart": _restart,
    "rolling restart": _rolling_restart,
    "promote": _promote,
    "all killed": _all_killed,
    "all killed, a disk lost": _all_killed_disk_lost,
    TWO_DISKS: _all_killed_two_disks_lost,
    "all killed, a log cut unseen": _all_killed_log_cut,
    "one by one, the last disk lost": _one_by_one_and_a_disk_lost,
    "the last one cut off": _last_one_cut_off,
    "two at once": _two_at_once,
    "storm": _storm,
    "all killed again and again": _killed_again_and_again,
    JOIN: _stays_away,
    STAYS_AWAY: _stays_away,
}
