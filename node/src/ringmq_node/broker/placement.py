"""On which nodes a new queue's replicas go. Pure: the caller counts, this decides.

The nodes with the fewest masters come first, so the first of them, the new master, evens out the
load; among equals the one with the fewest mirrors, then by name, so that every node would decide
the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringmq_gm.core.views import MemberId
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import REPLICAS_MAX

# Replicas of a queue that is declared without a number of them, if as many nodes are up.
REPLICAS_DEFAULT_MAX = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """The members of a queue's first ring, its master first."""

    members: tuple[MemberId, ...]
    min_insync: int


def place(
    alive: Sequence[MemberId],
    *,
    replicas: int,
    min_insync: int,
    masters: Mapping[str, int],
    mirrors: Mapping[str, int],
) -> Placement:
    """`replicas` and `min_insync` may be 0: the default. `masters` and `mirrors` count by node.

    Raises `BrokerError` if there are too few nodes, or the numbers contradict each other.
    """
    wanted = replicas or min(len(alive), REPLICAS_DEFAULT_MAX)
    if wanted > min(len(alive), REPLICAS_MAX):
        raise BrokerError(
            Reason.LIMIT_EXCEEDED,
            f"{wanted} replicas are wanted; {len(alive)} nodes are up, "
            f"and a ring has at most {REPLICAS_MAX}",
            limit="replicas",
        )
    insync = min_insync or wanted // 2 + 1
    if insync > wanted:
        raise bad_request(f"min_insync {insync} is above the {wanted} replicas", field="min_insync")
    order = sorted(
        alive,
        key=lambda member: (
            masters.get(member.node, 0),
            mirrors.get(member.node, 0),
            member.node,
        ),
    )
    return Placement(tuple(order[:wanted]), insync)
