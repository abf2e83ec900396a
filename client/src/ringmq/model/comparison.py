"""A queue's replicas, compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringmq.v1 import admin_pb2 as admin


class DifferenceKind(Enum):
    """What differs at a position. STATE: one replica has the message in the queue, the other
    hasn't. MISSING: one of them lacks the body. PROPERTIES: the message's id is one of them.
    REST: the messages are equal, and not what else the replicas know of them and of producers; the
    position is that of the next message."""

    UNKNOWN = admin.DIFFERENCE_KIND_UNSPECIFIED
    STATE = admin.DIFFERENCE_KIND_STATE
    REDELIVERED = admin.DIFFERENCE_KIND_REDELIVERED
    TRANSIENT = admin.DIFFERENCE_KIND_TRANSIENT
    MISSING = admin.DIFFERENCE_KIND_MISSING
    BODY = admin.DIFFERENCE_KIND_BODY
    PROPERTIES = admin.DIFFERENCE_KIND_PROPERTIES
    REST = admin.DIFFERENCE_KIND_REST

    @classmethod
    def _missing_(cls, value: object) -> DifferenceKind:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Difference:
    """What two replicas have at a position: `node` has `has`, `other` has `other_has`."""

    position: int
    kind: DifferenceKind
    node: str
    has: str
    other: str
    other_has: str


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """How far the replicas have been compared; `done`: to the end. `differences` are the first 20,
    in the order of their positions. The replicas of `left_out` aren't synchronised."""

    positions: int
    positions_total: int
    messages: int
    bytes: int
    done: bool
    nodes: tuple[str, ...]
    left_out: tuple[str, ...]
    differences_total: int
    differences: tuple[Difference, ...]

    @classmethod
    def from_wire(cls, wire: admin.VerifyQueueResponse) -> ReplicaComparison:
        return cls(
            positions=wire.positions,
            positions_total=wire.positions_total,
            messages=wire.messages,
            bytes=wire.bytes,
            done=wire.done,
            nodes=tuple(wire.nodes),
            left_out=tuple(wire.left_out),
            differences_total=wire.differences_total,
            differences=tuple(
                Difference(
                    each.position,
                    DifferenceKind(each.kind),
                    each.node,
                    each.has,
                    each.other,
                    each.other_has,
                )
                for each in wire.differences
            ),
        )
