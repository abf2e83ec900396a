"""The model's types as protobuf messages, and back for the answers of other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import ring_pb2 as ring
from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range, RangeSet, SummedRangeSet
from ringmq_node.broker.peers import Promoted
from ringmq_node.doors.grpc.fields import field_to_wire, fields_from_wire
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.info import (
    ClusterStatus,
    Difference,
    LeftoverInfo,
    LossInfo,
    MemberInfo,
    NodeCondition,
    NodeInfo,
    NodeResources,
    QueueCondition,
    QueueInfo,
    QueueStorage,
    ReplicaInfo,
    SetAsideEntry,
    StoreNumbers,
    SyncInfo,
    SyncPhase,
    VerifyInfo,
)
from ringmq_node.model.names import join_name, split_name
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.records import QueueMode
from ringmq_node.model.topology import sorted_arguments
from ringmq_node.queue.block import Block
from ringmq_node.queue.counts import DeliveryCounts
from ringmq_node.queue.doomed import RUN_BYTES, Doomed
from ringmq_node.queue.gaps import SequenceGaps
from ringmq_node.queue.leases import QueueLease
from ringmq_node.queue.marks import MARK_BYTES, Marks
from ringmq_node.queue.priorities import Priorities
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import EpochStart, ReplicatedState
from ringmq_node.replica.comparing import Digests
from ringmq_node.resources.flow import Reasons
from ringmq_node.storage import packed_in_pieces

# Positions, or values of positions.
P = TypeVar("P", RangeSet, SummedRangeSet, Marks, Doomed)
RANGE_BYTES = 16

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
_SYNC_PHASES = {phase: broker.SyncPhase.Value(f"SYNC_PHASE_{phase.name}") for phase in SyncPhase}
_SYNC_PHASES_FROM_WIRE = {value: phase for phase, value in _SYNC_PHASES.items()}
_BLOCK_REASONS = {
    reason: broker.BlockReason.Value(f"BLOCK_REASON_{reason.name}") for reason in BlockReason
}
_BLOCK_REASONS_FROM_WIRE = {value: reason for reason, value in _BLOCK_REASONS.items()}
_QUEUE_PARTS = (
    *("queue", "mode", "condition", "ring", "losses", "storage", "flow_reasons", "arguments"),
)
_NODE_CONDITIONS = {
    condition: admin.NodeState.Value(f"NODE_STATE_{condition.name}") for condition in NodeCondition
}


@cache
def _names(kind: Any, but: tuple[str, ...]) -> tuple[str, ...]:
    """Found once: a list of ten thousand queues has sixty thousand of these objects."""
    return tuple(field.name for field in fields(kind) if field.name not in but)


def _values(source: object, kind: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of the dataclass `kind`, which have the same names in the message.

    Once by name instead of twice by hand: a field that one direction forgot would travel as 0.
    `node/tests/doors/test_wire.py` sends every field both ways.
    """
    return {name: getattr(source, name) for name in _names(kind, but)}


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


def run_from_wire(delivery: broker.Delivery) -> Run:
    """A delivery doesn't say whether its messages are transient: the run says that they aren't."""
    properties = [entry.SerializeToString() for entry in delivery.properties]
    return Run(
        delivery.first_position,
        Block.of(delivery.bodies, properties),
        transient=False,
        redelivered=delivery.redelivered,
        delivery_count=delivery.delivery_count,
    )


# --- queues and replicas ---


def queue_to_wire(info: QueueInfo) -> broker.QueueInfo:
    values = _values(info, QueueInfo, but=_QUEUE_PARTS)
    vhost, queue = split_name(info.queue)
    return broker.QueueInfo(
        **values,
        queue=queue,
        vhost=vhost,
        mode=mode_to_wire(info.mode),
        state=_CONDITIONS[info.condition],
        ring=map(member_to_wire, info.ring),
        losses=map(loss_to_wire, info.losses),
        storage=None if info.storage is None else storage_to_wire(info.storage),
        flow_reasons=block_reasons_to_wire(info.flow_reasons),
        arguments={name: field_to_wire(value) for name, value in info.arguments},
    )


def queue_from_wire(info: broker.QueueInfo) -> QueueInfo:
    values = _values(info, QueueInfo, but=(*_QUEUE_PARTS, "wanted"))
    return QueueInfo(
        **values,
        queue=join_name(info.vhost, info.queue),
        mode=mode_from_wire(info.mode) or QueueMode.DEFAULT,
        condition=_CONDITIONS_FROM_WIRE.get(info.state, QueueCondition.DOWN),
        ring=tuple(map(member_from_wire, info.ring)),
        losses=tuple(map(loss_from_wire, info.losses)),
        wanted=dict(info.wanted),
        storage=storage_from_wire(info.storage) if info.HasField("storage") else None,
        flow_reasons=block_reasons_from_wire(info.flow_reasons),
        arguments=sorted_arguments(fields_from_wire(info.arguments)),
    )


def block_reasons_to_wire(reasons: Iterable[BlockReason]) -> list[broker.BlockReason.ValueType]:
    return [_BLOCK_REASONS[reason] for reason in reasons]


def block_reasons_from_wire(values: Iterable[broker.BlockReason.ValueType]) -> Reasons:
    """Without those that a newer node may tell."""
    return tuple(
        _BLOCK_REASONS_FROM_WIRE[value] for value in values if value in _BLOCK_REASONS_FROM_WIRE
    )


def member_to_wire(member: MemberInfo) -> broker.ReplicaInfo:
    return broker.ReplicaInfo(
        **_values(member, MemberInfo, but=("sync",)), sync=sync_to_wire(member.sync)
    )


def member_from_wire(member: broker.ReplicaInfo) -> MemberInfo:
    sync = sync_from_wire(member.sync) if member.HasField("sync") else None
    return MemberInfo(**_values(member, MemberInfo, but=("sync",)), sync=sync)


def sync_to_wire(sync: SyncInfo | None) -> broker.SyncProgress | None:
    if sync is None:
        return None
    return broker.SyncProgress(
        **_values(sync, SyncInfo, but=("phase",)), phase=_SYNC_PHASES[sync.phase]
    )


def sync_from_wire(sync: broker.SyncProgress) -> SyncInfo:
    return SyncInfo(
        **_values(sync, SyncInfo, but=("phase",)),
        phase=_SYNC_PHASES_FROM_WIRE.get(sync.phase, SyncPhase.STATE),
    )


def loss_to_wire(loss: LossInfo) -> broker.AcceptedLoss:
    return broker.AcceptedLoss(**_values(loss, LossInfo))


def loss_from_wire(loss: broker.AcceptedLoss) -> LossInfo:
    return LossInfo(**_values(loss, LossInfo, but=("overruled",)), overruled=tuple(loss.overruled))


def storage_to_wire(storage: QueueStorage) -> broker.QueueStorage:
    return broker.QueueStorage(**_values(storage, QueueStorage))


def storage_from_wire(storage: broker.QueueStorage) -> QueueStorage:
    target = storage.messages_target if storage.HasField("messages_target") else None
    values = _values(storage, QueueStorage, but=("messages_target",))
    return QueueStorage(**values, messages_target=target)


def replica_to_wire(info: ReplicaInfo) -> admin.Replica:
    return admin.Replica(
        **_values(info, ReplicaInfo, but=("mode", "sync", "storage")),
        mode=mode_to_wire(info.mode),
        sync=sync_to_wire(info.sync),
        storage=storage_to_wire(info.storage),
    )


def replica_from_wire(replica: admin.Replica) -> ReplicaInfo:
    return ReplicaInfo(
        **_values(replica, ReplicaInfo, but=("mode", "sync", "storage")),
        mode=mode_from_wire(replica.mode) or QueueMode.DEFAULT,
        sync=sync_from_wire(replica.sync) if replica.HasField("sync") else None,
        storage=storage_from_wire(replica.storage),
    )


def promoted_to_wire(promoted: Promoted) -> admin.PromoteMirrorResponse:
    return admin.PromoteMirrorResponse(
        **_values(promoted, Promoted, but=("loss",)),
        loss=None if promoted.loss is None else loss_to_wire(promoted.loss),
    )


def promoted_from_wire(promoted: admin.PromoteMirrorResponse) -> Promoted:
    return Promoted(
        **_values(promoted, Promoted, but=("loss",)),
        loss=loss_from_wire(promoted.loss) if promoted.HasField("loss") else None,
    )


# --- comparing replicas ---


def digests_to_wire(digests: Digests) -> ring.DigestMessagesResponse:
    return ring.DigestMessagesResponse(
        epoch=digests.epoch,
        number=digests.number,
        next_position=digests.next_position,
        last_position=digests.last,
        live=ranges_to_wire(digests.live),
        redelivered=ranges_to_wire(digests.redelivered),
        transient=ranges_to_wire(digests.transient),
        missing=ranges_to_wire(digests.missing),
        digests=digests.digests,
        bytes=digests.bytes_read,
        state_digest=digests.state_digest,
    )


def digests_from_wire(node: str, first: int, response: ring.DigestMessagesResponse) -> Digests:
    return Digests(
        node=node,
        epoch=response.epoch,
        number=response.number,
        next_position=response.next_position,
        first=first,
        last=response.last_position,
        live=RangeSet(ranges_from_wire(response.live)),
        redelivered=RangeSet(ranges_from_wire(response.redelivered)),
        transient=RangeSet(ranges_from_wire(response.transient)),
        missing=RangeSet(ranges_from_wire(response.missing)),
        digests=response.digests,
        bytes_read=response.bytes,
        state_digest=response.state_digest,
    )


def verify_to_wire(info: VerifyInfo) -> admin.VerifyQueueResponse:
    return admin.VerifyQueueResponse(
        **_values(info, VerifyInfo, but=("differences",)),
        differences=[
            admin.Difference(
                **_values(each, Difference, but=("kind",)),
                kind=admin.DifferenceKind.Value(f"DIFFERENCE_KIND_{each.kind.name}"),
            )
            for each in info.differences
        ],
    )


# --- nodes ---


def status_to_wire(status: ClusterStatus) -> admin.GetClusterStatusResponse:
    return admin.GetClusterStatusResponse(
        **_values(status, ClusterStatus, but=("nodes",)),
        nodes=[node_to_wire(node) for node in status.nodes],
    )


def node_to_wire(info: NodeInfo) -> admin.NodeInfo:
    return admin.NodeInfo(
        **_values(info, NodeInfo, but=("condition", "resources")),
        state=_NODE_CONDITIONS[info.condition],
        resources=None if info.resources is None else resources_to_wire(info.resources),
    )


def resources_to_wire(resources: NodeResources) -> admin.Resources:
    return admin.Resources(
        **_values(resources, NodeResources, but=("leftovers", "set_aside", "store")),
        leftovers=[admin.Leftover(**_values(each, LeftoverInfo)) for each in resources.leftovers],
        set_aside=[admin.SetAside(**_values(each, SetAsideEntry)) for each in resources.set_aside],
        store=admin.StoreNumbers(**_values(resources.store, StoreNumbers)),
    )


def resources_from_wire(resources: admin.Resources) -> NodeResources:
    duration_s = resources.desired_duration_s if resources.HasField("desired_duration_s") else None
    return NodeResources(
        **_values(
            resources,
            NodeResources,
            but=(
                "desired_duration_s",
                "leftovers",
                "set_aside",
                "store",
                "publishers_blocked_by",
            ),
        ),
        desired_duration_s=duration_s,
        publishers_blocked_by=tuple(resources.publishers_blocked_by),
        leftovers=tuple(
            LeftoverInfo(**_values(each, LeftoverInfo)) for each in resources.leftovers
        ),
        set_aside=tuple(
            SetAsideEntry(**_values(each, SetAsideEntry)) for each in resources.set_aside
        ),
        store=StoreNumbers(**_values(resources.store, StoreNumbers)),
    )


# --- the replicated state, for a joiner ---


# Ranges, or marks, that are unpacked in one piece: some 5 ms.
STATE_PIECE = 20_000
# Doomed runs that are unpacked in one piece: some 10 ms.
DOOMED_PIECE = 4000


async def state_to_wire(state: ReplicatedState) -> ring.FetchStateResponse:
    """Packs a state in pieces. It must not change meanwhile: give a copy of one in use."""
    packed = await packed_in_pieces(state)
    response = ring.FetchStateResponse(
        number=state.last_number,
        next_position=state.next_position,
        live=packed.of(state.live),
        redelivered=packed.of(state.redelivered),
        transient=packed.of(state.transient),
        time_ms=state.time_ms,
        counts=[packed.of(plane) for plane in state.counts.planes],
        expiries=packed.of(state.expiries),
        priorities=state.priorities.pack(packed.of),
        acked_end=state.acked_end,
        purged_end=state.purged_end,
        leases=[lease_to_wire(lease) for lease in state.leases.values()],
        sequence_gaps=state.gaps.pack() if state.gaps else b"",
        doomed=b"" if state.doomed is None else packed.of(state.doomed),
        next_letter=0 if state.doomed is None else state.doomed.next_letter,
        used=state.used,
        epochs=[
            ring.EpochStart(
                epoch=start.epoch,
                first_number=start.first_number,
                first_position=start.first_position,
            )
            for start in state.epochs
        ],
    )
    pieces = Pieces()
    for producer_id, sequence in state.producers.items():
        response.producers.add(
            producer_id=producer_id,
            last_sequence=sequence,
            used_ms=state.producer_times[producer_id],
        )
        await pieces.step()
    return response


def lease_to_wire(lease: QueueLease) -> common.Lease:
    return common.Lease(**_values(lease, QueueLease))


def lease_from_wire(lease: common.Lease) -> QueueLease:
    return QueueLease(**_values(lease, QueueLease))


async def state_from_wire(response: ring.FetchStateResponse) -> ReplicatedState:
    """Raises `ValueError` if positions or doomed messages are none."""
    return ReplicatedState(
        last_number=response.number,
        next_position=response.next_position,
        epochs=[
            EpochStart(start.epoch, start.first_number, start.first_position)
            for start in response.epochs
        ],
        live=await _positions(response.live),
        redelivered=await _positions(response.redelivered),
        transient=await _positions(response.transient),
        producers={entry.producer_id: entry.last_sequence for entry in response.producers},
        producer_times={entry.producer_id: entry.used_ms for entry in response.producers},
        time_ms=response.time_ms,
        counts=DeliveryCounts(
            [await _unpacked(plane, SummedRangeSet(), RANGE_BYTES) for plane in response.counts]
        ),
        expiries=await _unpacked(response.expiries, Marks(), MARK_BYTES),
        priorities=await _priorities(response.priorities),
        acked_end=response.acked_end,
        purged_end=response.purged_end,
        leases={each.name: lease_from_wire(each) for each in response.leases},
        gaps=SequenceGaps.unpack(response.sequence_gaps)
        if response.sequence_gaps
        else SequenceGaps(),
        doomed=(
            await _unpacked(response.doomed, Doomed(response.next_letter), RUN_BYTES, DOOMED_PIECE)
            if response.next_letter
            else None
        ),
        used=response.used,
    )


async def _positions(data: bytes) -> SummedRangeSet:
    return await _unpacked(data, SummedRangeSet(), RANGE_BYTES)


async def _priorities(data: bytes) -> Priorities:
    found = Priorities()
    for priority, ranges in Priorities.packed_levels(memoryview(data)):
        await _unpacked(ranges, found.of(priority), RANGE_BYTES)
    return found


async def _unpacked(
    data: bytes | memoryview, into: P, each_bytes: int, piece: int = STATE_PIECE
) -> P:
    whole = memoryview(data)
    pieces = Pieces()
    for start in range(0, len(whole), piece * each_bytes):
        into.extend_packed(whole[start : start + piece * each_bytes])
        await pieces.step()
    return into
