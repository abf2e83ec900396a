"""Which masters to move so that they are spread evenly. Pure.

A queue moves only to a mirror that is synchronised, so nothing is copied. Each move makes the
counts of two nodes more even, and no queue moves twice. Queues with few messages go first: among
those that could move, the largest stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ringmq_node.broker.placement import Fleet
from ringmq_node.model.info import QueueCondition, QueueInfo
from ringmq_node.model.policies import Wanted


@dataclass(frozen=True, slots=True)
class Mastered:
    """A queue that has a master; `targets` are the nodes that could take it over."""

    queue: str
    master: str
    targets: tuple[str, ...]
    messages: int


@dataclass(frozen=True, slots=True)
class MasterMove:
    """A master that should move. `error` says why it didn't, once that has been tried."""

    queue: str
    old_master: str
    new_master: str
    error: str = ""


def mastered(info: QueueInfo, wanted: Wanted, fleet: Fleet) -> Mastered | None:
    """None if the queue has no master now."""
    if info.condition in (QueueCondition.DOWN, QueueCondition.QUARANTINED) or not info.ring:
        return None
    allowed = wanted.mirrors.pool([member.node for member in info.ring[1:] if member.synchronised])
    return Mastered(
        info.queue,
        info.ring[0].node,
        tuple(node for node in allowed if fleet.takes_replicas(node)),
        info.messages_ready + info.messages_unacknowledged,
    )


def plan(queues: Sequence[Mastered], nodes: Collection[str]) -> list[MasterMove]:
    """The moves after which no other one would make the nodes more even."""
    counts = Counter(dict.fromkeys(nodes, 0))
    counts.update(each.master for each in queues)
    left = sorted(queues, key=lambda each: (each.messages, each.queue))
    moves: list[MasterMove] = []
    while True:
        stay: list[Mastered] = []
        for each in left:
            target = min(each.targets, key=lambda node: (counts[node], node), default=None)
            # With a difference of one the two nodes would only change places.
            if target is None or counts[target] > counts[each.master] - 2:
                stay.append(each)
                continue
            counts[each.master] -= 1
            counts[target] += 1
            moves.append(MasterMove(each.queue, each.master, target))
        if len(stay) == len(left):
            return moves
        left = stay
