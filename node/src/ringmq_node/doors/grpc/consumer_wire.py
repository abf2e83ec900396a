"""Descriptions of consumers as protobuf messages, and back for the answers of other nodes."""

from __future__ import annotations

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq_node.doors.grpc.node_key import node_of
from ringmq_node.doors.grpc.service import RELAYED_PEER_KEY, Context
from ringmq_node.model.consumers import (
    ConsumerInfo,
    ConsumerLabel,
    ConsumerPage,
    ConsumerStanding,
)

_STATES = {
    standing: admin.ConsumerState.Value(f"CONSUMER_STATE_{standing.name}")
    for standing in ConsumerStanding
}
_STATES_FROM_WIRE = {value: standing for standing, value in _STATES.items()}


def label_of(context: Context, tag: str) -> ConsumerLabel:
    """Of the consumer whose stream this is: a client's, here or at the node that relays it; or one
    that a node opens for itself, which has no address."""
    node = node_of(context.call)
    if not node:
        return ConsumerLabel(tag, peer=context.call.peer)
    peers = [value for key, value in context.call.metadata if key == RELAYED_PEER_KEY]
    return ConsumerLabel(tag, node, "".join(map(str, peers[:1])))


def consumers_to_wire(page: ConsumerPage) -> admin.ListConsumersResponse:
    return admin.ListConsumersResponse(
        consumers=map(_to_wire, page.consumers),
        next=page.next,
        node=page.master,
        epoch=page.epoch,
    )


def consumers_from_wire(response: admin.ListConsumersResponse) -> ConsumerPage:
    return ConsumerPage(
        response.node, response.epoch, tuple(map(_from_wire, response.consumers)), response.next
    )


def _to_wire(info: ConsumerInfo) -> admin.ConsumerInfo:
    share = None
    if info.share is not None:
        share = broker.WindowShare(messages=info.share[0], bytes=info.share[1])
    return admin.ConsumerInfo(
        number=info.number,
        consumer_tag=info.label.tag,
        node=info.label.node,
        peer=info.label.peer,
        state=_STATES[info.standing],
        ack_required=not info.label.auto_ack,
        prefetch_messages=info.prefetch_messages,
        prefetch_bytes=info.prefetch_bytes,
        priority=info.priority,
        exclusive=info.exclusive,
        pulls=info.pulls,
        held=info.is_held,
        share=share,
        messages_unacknowledged=info.messages_unacknowledged,
        bytes_unacknowledged=info.bytes_unacknowledged,
    )


def _from_wire(info: admin.ConsumerInfo) -> ConsumerInfo:
    share = info.share
    return ConsumerInfo(
        number=info.number,
        label=ConsumerLabel(info.consumer_tag, info.node, info.peer, not info.ack_required),
        standing=_STATES_FROM_WIRE.get(info.state, ConsumerStanding.UP),
        prefetch_messages=info.prefetch_messages,
        prefetch_bytes=info.prefetch_bytes,
        priority=info.priority,
        exclusive=info.exclusive,
        pulls=info.pulls,
        is_held=info.held,
        share=(share.messages, share.bytes) if info.HasField("share") else None,
        messages_unacknowledged=info.messages_unacknowledged,
        bytes_unacknowledged=info.bytes_unacknowledged,
    )
