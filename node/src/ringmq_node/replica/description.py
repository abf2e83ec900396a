"""How one replica describes itself: snapshots for users and operators, as `model.info` types."""

from __future__ import annotations

from typing import Any

from ringmq_gm import Ring, View
from ringmq_node.model.connections import owner_name
from ringmq_node.model.info import LossInfo, MemberInfo, QueueInfo, ReplicaInfo
from ringmq_node.model.records import QueueMode
from ringmq_node.replica.replica import Replica


def queue_info(replica: Replica, *, with_storage: bool = False) -> QueueInfo:
    """The queue as this replica sees it; depths and consumers only if it is the master."""
    state, record = replica.store.state, replica.record
    marks = replica.ring.marks()
    counts: dict[str, Any] = {}
    mastership = replica.mastership
    if mastership is not None:
        queue = mastership.queue
        counts = {
            "messages_ready": len(queue.ready),
            "messages_unacknowledged": queue.unacknowledged,
            "messages_damaged": len(queue.damaged),
            "messages_dead_lettering": queue.departures.letters,
            "dead_lettered_total": queue.departures.letters_arrived_total,
            "dead_letters_dropped_total": queue.departures.letters_dropped_total,
            "bytes_ready": queue.ready_bytes,
            "bytes_unacknowledged": queue.unacknowledged_bytes,
            "consumers": len(queue.consumers),
            "publishers": mastership.publishers,
            "flow_reasons": mastership.room.flow.reasons,
            "published_total": queue.published_total,
            "acknowledged_total": queue.acknowledged_total,
            "delivered_total": queue.consumers.delivered_total,
            "redelivered_total": queue.consumers.redelivered_total,
            "expired_total": queue.keeping.expired_total,
            "dropped_total": queue.keeping.dropped_total,
            "rejected_total": queue.keeping.rejected_total,
        }
    return QueueInfo(
        queue=record.name,
        id=record.id,
        replicas_wanted=replica.wanted.replicas,
        min_insync=replica.view.min_insync,
        policy=replica.wanted.policy,
        operator_policy=replica.wanted.operator_policy,
        wanted=replica.wanted.facts(),
        mode=replica.mode,
        durable=record.durable,
        auto_delete=record.auto_delete,
        owner=owner_name(record.owner),
        arguments=record.opaque,
        condition=replica.condition,
        epoch=replica.view.epoch,
        ring=_members(replica.ring),
        producers=len(state.producers),
        next_position=state.next_position,
        digest=state.digest(),
        stable=min((mark.received for mark in marks.values()), default=0),
        losses=losses_of(replica.view),
        storage=replica.store.statistics() if with_storage else None,
        **counts,
    )


def losses_of(view: View) -> tuple[LossInfo, ...]:
    """The losses that operators have accepted, as the view records them."""
    return tuple(
        LossInfo(
            epoch=loss.epoch,
            node=loss.member.node,
            incarnation=loss.member.incarnation,
            log_epoch=loss.log_epoch,
            log_number=loss.log_number,
            position=loss.position,
            overruled=tuple(map(str, loss.overruled)),
            operator=loss.operator,
            at_ms=loss.at_ms,
        )
        for loss in view.losses
    )


def _members(ring: Ring) -> tuple[MemberInfo, ...]:
    marks, view = ring.marks(), ring.view
    members = []
    for member in () if view is None else view.members:
        mark = marks.get(member.id)
        members.append(
            MemberInfo(
                node=member.id.node,
                incarnation=member.id.incarnation,
                synchronised=member.synced,
                received=mark.received if mark else 0,
                persisted=mark.persisted if mark else 0,
            )
        )
    return tuple(members)


def replica_info(replica: Replica, *, synchronised: bool, master: bool, epoch: int) -> ReplicaInfo:
    """This node's replica. The caller says its place in the ring: it may know a newer view."""
    store, state = replica.store, replica.store.state
    return ReplicaInfo(
        node=replica.ring.me.node,
        incarnation=replica.ring.me.incarnation,
        synchronised=synchronised,
        master=master,
        epoch=epoch,
        last_number=state.last_number,
        next_position=state.next_position,
        messages=len(state.live),
        messages_missing=len(store.missing),
        digest=state.digest(),
        mode=QueueMode.LAZY if store.pager.lazy else QueueMode.DEFAULT,
        storage=store.statistics(),
        sync=replica.syncing.info(len(store.missing)),
        log_epoch=state.epoch,
        log_is_whole=replica.log_is_whole,
        stable=replica.ring.stable_number,
    )
