"""Descriptions of connections as protobuf messages, and back for the answers of other nodes."""

from __future__ import annotations

from ringmq.v1 import admin_pb2 as admin
from ringmq_node.doors.grpc.wire import block_reasons_from_wire, block_reasons_to_wire
from ringmq_node.model.info import ConnectionCondition, ConnectionInfo

_STATES = {
    condition: admin.ConnectionState.Value(f"CONNECTION_STATE_{condition.name}")
    for condition in ConnectionCondition
}
_STATES_FROM_WIRE = {value: condition for condition, value in _STATES.items()}


def connection_to_wire(info: ConnectionInfo) -> admin.ConnectionInfo:
    return admin.ConnectionInfo(
        node=info.node,
        peer=info.peer,
        state=_STATES[info.condition],
        flow_reasons=block_reasons_to_wire(info.flow_reasons),
        publishers=info.publishers,
        consumers=info.consumers,
        relayed=info.relayed,
    )


def connection_from_wire(info: admin.ConnectionInfo) -> ConnectionInfo:
    return ConnectionInfo(
        node=info.node,
        peer=info.peer,
        condition=_STATES_FROM_WIRE.get(info.state, ConnectionCondition.RUNNING),
        flow_reasons=block_reasons_from_wire(info.flow_reasons),
        publishers=info.publishers,
        consumers=info.consumers,
        relayed=info.relayed,
    )
