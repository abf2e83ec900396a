"""The model's types as protobuf messages, and back for the answers of other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import ring_pb2 as ring
from ringmq_base.ranges import Range, RangeSet
from ringmq_node.broker.peers import Promoted
from ringmq_node.model.info import (
    ClusterStatus,
    MemberInfo,
    NodeCondition,
    NodeInfo,
    NodeResources,
    QueueCondition,
    QueueInfo,
    QueueStorage,
    ReplicaInfo,
    StoreNumbers,
)
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.records import QueueMode
from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import EpochStart, ReplicatedState

_MODES = {
    QueueMode.DEFAULT: common.QUEUE_MODE_DEFAULT,
    QueueMode.LAZY: common.QUEUE_MODE_LAZY,
}
_MODES_FROM_WIRE = {value: mode for mode, value in _MODES.items()}
_CONDITIONS = {
    condition: broker.QueueState.Value(f"QUEUE_STATE_{condition.name}")
    for condition in QueueCondition
}
_CONDITIONS_FROM_WIRE = {value: condition for condition, value in _CONDITIONS.items()}
_NODE_CONDITIONS = {
    condition: admin.NodeState.Value(f"NODE_STATE_{condition.name}") for condition in NodeCondition
}

# --- ranges, modes, messages ---


def ranges_to_wire(ranges: Sequence[Range] | RangeSet) -> list[common.Range]:
    return [common.Range(first=first, last=last) for first, last in ranges]


def ranges_from_wire(ranges: Sequence[common.Range]) -> list[Range]:
    return [(pair.first, pair.last) for pair in ranges]


def mode_to_wire(mode: QueueMode) -> common.QueueMode.ValueType:
    return _MODES[mode]


def mode_from_wire(value: common.QueueMode.ValueType) -> QueueMode | None:
    """None if unspecified; raises `BrokerError` for a mode that doesn't exist."""
    mode = _MODES_FROM_WIRE.get(value)
    if mode is None and value != common.QUEUE_MODE_UNSPECIFIED:
        raise bad_request(
            f"there is no queue mode {value}; there are default (1) and lazy (2)", field="mode"
        )
    return mode


def run_to_wire(run: Run) -> broker.Delivery:
    return broker.Delivery(
        first_position=run.first_position,
        bodies=run.block.bodies(),
        properties=[common.Properties.FromString(data) for data in run.block.properties()],
        redelivered=run.redelivered,
    )


def run_from_wire(delivery: broker.Delivery) -> Run:
    """A delivery doesn't say whether its messages are transient: the run says that they aren't."""
    properties = [entry.SerializeToString() for entry in delivery.properties]
    return Run(
        delivery.first_position,
        Block.of(delivery.bodies, properties),
        transient=False,
        redelivered=delivery.redelivered,
    )


# --- queues and replicas ---


def queue_to_wire(info: QueueInfo) -> broker.QueueInfo:
    return broker.QueueInfo(
        queue=info.queue,
        id=info.id,
        replicas_wanted=info.replicas_wanted,
        min_insync=info.min_insync,
        mode=mode_to_wire(info.mode),
        durable=info.durable,
        state=_CONDITIONS[info.condition],
        epoch=info.epoch,
        ring=[
            broker.ReplicaInfo(
                node=member.node,
                incarnation=member.incarnation,
                synchronised=member.synchronised,
                received=member.received,
                persisted=member.persisted,
            )
            for member in info.ring
        ],
        messages_ready=info.messages_ready,
        messages_unacknowledged=info.messages_unacknowledged,
        messages_damaged=info.messages_damaged,
        bytes_ready=info.bytes_ready,
        bytes_unacknowledged=info.bytes_unacknowledged,
        consumers=info.consumers,
        publishers=info.publishers,
        next_position=info.next_position,
        digest=info.digest,
        stable=info.stable,
        published_total=info.published_total,
        acknowledged_total=info.acknowledged_total,
        storage=None if info.storage is None else storage_to_wire(info.storage),
    )


def queue_from_wire(info: broker.QueueInfo) -> QueueInfo:
    return QueueInfo(
        queue=info.queue,
        id=info.id,
        replicas_wanted=info.replicas_wanted,
        min_insync=info.min_insync,
        mode=mode_from_wire(info.mode) or QueueMode.DEFAULT,
        durable=info.durable,
        condition=_CONDITIONS_FROM_WIRE.get(info.state, QueueCondition.DOWN),
        epoch=info.epoch,
        ring=tuple(
            MemberInfo(
                member.node,
                member.incarnation,
                member.synchronised,
                member.received,
                member.persisted,
            )
            for member in info.ring
        ),
        messages_ready=info.messages_ready,
        messages_unacknowledged=info.messages_unacknowledged,
        messages_damaged=info.messages_damaged,
        bytes_ready=info.bytes_ready,
        bytes_unacknowledged=info.bytes_unacknowledged,
        consumers=info.consumers,
        publishers=info.publishers,
        next_position=info.next_position,
        digest=info.digest,
        stable=info.stable,
        published_total=info.published_total,
        acknowledged_total=info.acknowledged_total,
        storage=storage_from_wire(info.storage) if info.HasField("storage") else None,
    )


def storage_to_wire(storage: QueueStorage) -> broker.QueueStorage:
    return broker.QueueStorage(
        messages_pending=storage.messages_pending,
        messages_q4=storage.messages_q4,
        messages_q3=storage.messages_q3,
        messages_delta=storage.messages_delta,
        messages_q2=storage.messages_q2,
        messages_q1=storage.messages_q1,
        messages_in_memory=storage.messages_in_memory,
        memory_bytes=storage.memory_bytes,
        messages_target=storage.messages_target,
        publish_rate=storage.publish_rate,
        deliver_rate=storage.deliver_rate,
        acknowledge_rate=storage.acknowledge_rate,
        blocks_read=storage.blocks_read,
        journal_bytes_written=storage.journal_bytes_written,
        segment_bytes_written=storage.segment_bytes_written,
        body_bytes_stored=storage.body_bytes_stored,
        body_bytes_read=storage.body_bytes_read,
        body_bytes_written=storage.body_bytes_written,
        body_bytes_elided=storage.body_bytes_elided,
        segments_loaded=storage.segments_loaded,
    )


def storage_from_wire(storage: broker.QueueStorage) -> QueueStorage:
    return QueueStorage(
        messages_pending=storage.messages_pending,
        messages_q4=storage.messages_q4,
        messages_q3=storage.messages_q3,
        messages_delta=storage.messages_delta,
        messages_q2=storage.messages_q2,
        messages_q1=storage.messages_q1,
        messages_in_memory=storage.messages_in_memory,
        memory_bytes=storage.memory_bytes,
        messages_target=(storage.messages_target if storage.HasField("messages_target") else None),
        publish_rate=storage.publish_rate,
        deliver_rate=storage.deliver_rate,
        acknowledge_rate=storage.acknowledge_rate,
        blocks_read=storage.blocks_read,
        journal_bytes_written=storage.journal_bytes_written,
        segment_bytes_written=storage.segment_bytes_written,
        body_bytes_stored=storage.body_bytes_stored,
        body_bytes_read=storage.body_bytes_read,
        body_bytes_written=storage.body_bytes_written,
        body_bytes_elided=storage.body_bytes_elided,
        segments_loaded=storage.segments_loaded,
    )


def replica_to_wire(info: ReplicaInfo) -> admin.Replica:
    return admin.Replica(
        node=info.node,
        incarnation=info.incarnation,
        synchronised=info.synchronised,
        master=info.master,
        epoch=info.epoch,
        last_number=info.last_number,
        next_position=info.next_position,
        messages=info.messages,
        messages_missing=info.messages_missing,
        digest=info.digest,
        mode=mode_to_wire(info.mode),
        storage=storage_to_wire(info.storage),
    )


def promoted_to_wire(promoted: Promoted) -> admin.PromoteMirrorResponse:
    return admin.PromoteMirrorResponse(
        old_master=promoted.old_master,
        new_master=promoted.new_master,
        epoch=promoted.epoch,
        took_ms=promoted.took_ms,
    )


# --- nodes ---


def status_to_wire(status: ClusterStatus) -> admin.GetClusterStatusResponse:
    return admin.GetClusterStatusResponse(
        cluster_id=status.cluster_id,
        node=status.node,
        nodes=[node_to_wire(node) for node in status.nodes],
        queues=status.queues,
        registry_available=status.registry_available,
    )


def node_to_wire(info: NodeInfo) -> admin.NodeInfo:
    return admin.NodeInfo(
        node=info.node,
        address=info.address,
        incarnation=info.incarnation,
        state=_NODE_CONDITIONS[info.condition],
        version=info.version,
        masters=info.masters,
        mirrors=info.mirrors,
        resources=None if info.resources is None else resources_to_wire(info.resources),
    )


def resources_to_wire(resources: NodeResources) -> admin.Resources:
    numbers = resources.store
    return admin.Resources(
        memory_used_bytes=resources.memory_used_bytes,
        memory_limit_bytes=resources.memory_limit_bytes,
        memory_total_bytes=resources.memory_total_bytes,
        memory_alarm=resources.memory_alarm,
        disk_free_bytes=resources.disk_free_bytes,
        disk_limit_bytes=resources.disk_limit_bytes,
        disk_alarm=resources.disk_alarm,
        desired_duration_s=resources.desired_duration_s,
        store_failure=resources.store_failure,
        store=admin.StoreNumbers(
            queue_memory_bytes=numbers.queue_memory_bytes,
            journals_sealed=numbers.journals_sealed,
            sealed_bytes=numbers.sealed_bytes,
            rounds=numbers.rounds,
            journal_bytes_written=numbers.journal_bytes_written,
            segment_bytes_written=numbers.segment_bytes_written,
            body_bytes_elided=numbers.body_bytes_elided,
            message_store_bytes=numbers.message_store_bytes,
            message_store_garbage_bytes=numbers.message_store_garbage_bytes,
        ),
    )


def resources_from_wire(resources: admin.Resources) -> NodeResources:
    numbers = resources.store
    return NodeResources(
        memory_used_bytes=resources.memory_used_bytes,
        memory_limit_bytes=resources.memory_limit_bytes,
        memory_total_bytes=resources.memory_total_bytes,
        memory_alarm=resources.memory_alarm,
        disk_free_bytes=resources.disk_free_bytes,
        disk_limit_bytes=resources.disk_limit_bytes,
        disk_alarm=resources.disk_alarm,
        desired_duration_s=(
            resources.desired_duration_s if resources.HasField("desired_duration_s") else None
        ),
        store_failure=resources.store_failure,
        store=StoreNumbers(
            queue_memory_bytes=numbers.queue_memory_bytes,
            journals_sealed=numbers.journals_sealed,
            sealed_bytes=numbers.sealed_bytes,
            rounds=numbers.rounds,
            journal_bytes_written=numbers.journal_bytes_written,
            segment_bytes_written=numbers.segment_bytes_written,
            body_bytes_elided=numbers.body_bytes_elided,
            message_store_bytes=numbers.message_store_bytes,
            message_store_garbage_bytes=numbers.message_store_garbage_bytes,
        ),
    )


# --- the replicated state, for a joiner ---


def state_to_wire(state: ReplicatedState) -> ring.FetchStateResponse:
    return ring.FetchStateResponse(
        number=state.last_number,
        next_position=state.next_position,
        live=ranges_to_wire(state.live),
        redelivered=ranges_to_wire(state.redelivered),
        transient=ranges_to_wire(state.transient),
        producers=[
            ring.ProducerState(producer_id=producer_id, last_sequence=sequence)
            for producer_id, sequence in state.producers.items()
        ],
        epochs=[
            ring.EpochStart(
                epoch=start.epoch,
                first_number=start.first_number,
                first_position=start.first_position,
            )
            for start in state.epochs
        ],
    )


def state_from_wire(response: ring.FetchStateResponse) -> ReplicatedState:
    return ReplicatedState(
        last_number=response.number,
        next_position=response.next_position,
        epochs=[
            EpochStart(start.epoch, start.first_number, start.first_position)
            for start in response.epochs
        ],
        live=RangeSet(ranges_from_wire(response.live)),
        redelivered=RangeSet(ranges_from_wire(response.redelivered)),
        transient=RangeSet(ranges_from_wire(response.transient)),
        producers={entry.producer_id: entry.last_sequence for entry in response.producers},
    )
