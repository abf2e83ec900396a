"""The connections of a cluster's clients, as its nodes see them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringmq.model.queues import BlockReason
from ringmq.v1 import admin_pb2 as admin


class ConnectionState(Enum):
    """How a connection's publishers fare."""

    UNKNOWN = admin.CONNECTION_STATE_UNSPECIFIED
    RUNNING = admin.CONNECTION_STATE_RUNNING
    # A batch is held, or was within the last 5 s.
    FLOW = admin.CONNECTION_STATE_FLOW
    # An alarm will hold the next batch.
    BLOCKING = admin.CONNECTION_STATE_BLOCKING
    # An alarm holds one.
    BLOCKED = admin.CONNECTION_STATE_BLOCKED

    @classmethod
    def _missing_(cls, value: object) -> ConnectionState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """A connection that has streams at `node`."""

    node: str
    # The other end's address.
    peer: str
    state: ConnectionState
    # Why its publishers are held, or were.
    flow_reasons: tuple[BlockReason, ...]
    publishers: int
    consumers: int
    # The peer is a node, which passes on to masters at `node` what its clients ask for.
    relayed: bool

    @classmethod
    def from_wire(cls, wire: admin.ConnectionInfo) -> ConnectionInfo:
        return cls(
            node=wire.node,
            peer=wire.peer,
            state=ConnectionState(wire.state),
            flow_reasons=tuple(map(BlockReason, wire.flow_reasons)),
            publishers=wire.publishers,
            consumers=wire.consumers,
            relayed=wire.relayed,
        )


@dataclass(frozen=True, slots=True)
class ConnectionList:
    """In the order of nodes and peers. The connections of silent nodes, which are up and haven't
    answered, are missing."""

    connections: tuple[ConnectionInfo, ...]
    silent_nodes: tuple[str, ...]
