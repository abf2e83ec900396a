"""The faults, as data: written by hand, or drawn from a seed.

    (Pause(0.0, "a", for_s=4.0), DiskLost(1.0, "b", down_s=2.0))

Times are in seconds since the run or the round began: virtual ones in a simulation, real ones in a
cluster. A fault that lasts ends by itself. Pure: what carries the faults out is elsewhere,
`cluster-tests/simulation/ringsim/simulator/nemesis.py` for simulated rings and
`cluster-tests/support/chaos/hands.py` for real processes. Each knows all faults but those that
`REAL_ONLY` and `SIMULATED_ONLY` name; these say why. A cluster that Compose runs has a few of them
(`cluster-tests/docker/support/containers/hands.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

# The host of all clients, as one of the two sides of a cut. Simulated rings have no clients.
CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies (SIGKILL) and is started again after `down_s`. Simulated, ops that had not
    been synced may be lost or torn; and with `after_effects` it dies in the next step that has
    more effects than that, between two of them."""

    at: float
    node: str
    down_s: float
    after_effects: int | None = None


@dataclass(frozen=True, slots=True)
class PowerCut:
    """All processes die at once and start again, each after a part of `down_s`."""

    at: float
    down_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """An operator stops the node (SIGTERM: it hands its masters over) and starts it again. Real
    only: a simulated ring has no shutdown."""

    at: float
    node: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A node starts for the first time, and stays. Real only: a simulated ring has its joiners
    from the start."""

    at: float
    node: str


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
class BitFlips:
    """One bit in each of `count` bodies that a node has on its disk changes. Real only: simulated
    ops have no bodies."""

    at: float
    node: str
    count: int


@dataclass(frozen=True, slots=True)
class FullDisk:
    """A node's disk has no room. Real only: a simulated disk can't refuse a write."""

    at: float
    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class NoDescriptors:
    """A node's process can open neither a file nor a connection. Real only: a simulated member
    opens nothing."""

    at: float
    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Each sync of a node takes up to `delay_s` more."""

    at: float
    node: str
    delay_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """The process stands still (SIGSTOP, a debugger, a stopped machine), then goes on."""

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
class Flap:
    """A partition that comes and goes: `period_s` without, `period_s` with a way through."""

    at: float
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    period_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class BreakLink:
    """The connection of two nodes breaks, and is opened again. Simulated only: in a real cluster
    a short `Block` does it."""

    at: float
    node: str
    other: str


@dataclass(frozen=True, slots=True)
class BreakStream:
    """The stream that brings `node`'s frames to `other` breaks, and `node` opens it again; before,
    it stands still for so long. What comes the other way goes on. Simulated only: real ones are
    taken apart in the tests of links."""

    at: float
    node: str
    other: str
    stuck_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """Frames between two nodes take `delay_s` more. Simulated only: it needs a module of the
    kernel (netem) that not every machine has."""

    at: float
    node: str
    other: str
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
    """No node can. With `leases_lapse` every lease has run out when the registry is back, if that
    takes longer than a lease lasts."""

    at: float
    for_s: float
    leases_lapse: bool


@dataclass(frozen=True, slots=True)
class RegistryFlaky:
    """Requests or answers get lost, or a request takes effect long after its caller gave up.
    Simulated only: a real registry is asked over TCP, which loses nothing short of a cut."""

    at: float
    for_s: float


@dataclass(frozen=True, slots=True)
class RegistryPutBack:
    """The registry is put back to a copy of itself, made at `at`, `age_s` before; something was
    written between. After `for_s` an operator brings back its newest state, and restarts the nodes
    that take nothing of it, one after the other, as the operations manual says. Simulated only:
    tests of SQLite and of etcd show that a real registry's process refuses it."""

    at: float
    age_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Stall:
    """A node's upstream neighbour finds that it takes its frames too slowly. Simulated only: in a
    real cluster a `SlowDisk` does it."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class TakesNothing:
    """A node takes no bodies: ops wait on their way to it, and the frames of their ring behind
    them. Its upstream neighbours find it too slow, again and again. Simulated only: in a real
    cluster a `SlowDisk` does it."""

    at: float
    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Promote:
    """An operator asks for another master."""

    at: float
    target: str


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """An operator has the ring begun again from the log of a node, whatever else was confirmed.
    Chaos draws nothing that gives up confirmed messages; the simulator does, and knows which."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Remove:
    """The master is asked to put a member out of the ring, as its replica isn't wanted. Like all
    members it wants to be in, and joins again: a real reconciler keeps it out."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class SetMinInsync:
    """The master is asked for another `min_insync`."""

    at: float
    count: int


Fault = (
    Crash
    | PowerCut
    | Restart
    | Join
    | DiskLost
    | DiskRestored
    | DiskCutUnseen
    | BitFlips
    | FullDisk
    | NoDescriptors
    | SlowDisk
    | Pause
    | Block
    | Flap
    | BreakLink
    | BreakStream
    | SlowNetwork
    | RegistryCut
    | RegistryOutage
    | RegistryFlaky
    | RegistryPutBack
    | Stall
    | TakesNothing
    | Promote
    | AcceptLoss
    | Remove
    | SetMinInsync
)

# Faults after which the node's disk may lack confirmed messages.
DiskFault = DiskLost | DiskRestored | DiskCutUnseen

REAL_ONLY: tuple[type[Fault], ...] = (Restart, Join, BitFlips, FullDisk, NoDescriptors)
SIMULATED_ONLY: tuple[type[Fault], ...] = (
    BreakLink,
    BreakStream,
    SlowNetwork,
    RegistryFlaky,
    RegistryPutBack,
    Stall,
    TakesNothing,
    AcceptLoss,
    Remove,
    SetMinInsync,
)


def ends_at(fault: Fault) -> float:
    """When it is over, if nothing mends it before."""
    match fault:
        case BreakLink() | Stall() | Promote() | AcceptLoss() | BitFlips() | Join():
            return fault.at
        case Remove() | SetMinInsync():
            return fault.at
        case Crash() | DiskLost() | DiskCutUnseen() | PowerCut() | Restart():
            return fault.at + fault.down_s
        case DiskRestored():
            return fault.at + fault.age_s + fault.down_s
        case RegistryPutBack():
            return fault.at + fault.age_s + fault.for_s
        case BreakStream():
            return fault.at + fault.stuck_s
        case _:
            return fault.at + fault.for_s


def nodes_of(fault: Fault) -> tuple[str, ...]:
    """The nodes that it names; none, if it concerns all of them or the registry."""
    match fault:
        case PowerCut() | RegistryOutage() | RegistryFlaky() | RegistryPutBack():
            return ()
        case SetMinInsync():
            return ()
        case Block() | Flap():
            return fault.sources
        case Promote():
            return (fault.target,)
        case _:
            return (fault.node,)
