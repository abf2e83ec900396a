"""How one replica describes itself: snapshots for users and operators, as `model.info` types."""

from __future__ import annotations

from math import isfinite

from ringmq_gm import Ring
from ringmq_node.model.info import MemberInfo, QueueInfo, QueueStorage, ReplicaInfo
from ringmq_node.model.records import QueueMode
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import QueueStore


def queue_info(replica: Replica, *, with_storage: bool = False) -> QueueInfo:
    """The queue as this replica sees it; depths and consumers only if it is the master."""
    state, record = replica.store.state, replica.record
    marks = replica.ring.marks()
    counts: dict[str, int] = {}
    mastership = replica.mastership
    if mastership is not None:
        queue = mastership.queue
        counts = {
            "messages_ready": len(queue.ready),
            "messages_unacknowledged": queue.unacknowledged,
            "messages_damaged": len(queue.damaged),
            "bytes_ready": queue.ready_bytes,
            "bytes_unacknowledged": queue.unacknowledged_bytes,
            "consumers": len(queue.consumers),
            "publishers": mastership.publishers,
            "published_total": queue.published_total,
            "acknowledged_total": queue.acknowledged_total,
        }
    return QueueInfo(
        queue=record.name,
        id=record.id,
        replicas_wanted=len(record.nodes),
        min_insync=record.min_insync,
        mode=record.mode,
        durable=record.durable,
        condition=replica.condition,
        epoch=replica.view.epoch,
        ring=_members(replica.ring),
        next_position=state.next_position,
        digest=state.digest(),
        stable=min((mark.received for mark in marks.values()), default=0),
        storage=queue_storage(replica.store) if with_storage else None,
        **counts,
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
    """This node's replica; its place in the ring is the caller's, who may know a newer view."""
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
        mode=QueueMode.LAZY if store.bodies.pager.lazy else QueueMode.DEFAULT,
        storage=queue_storage(store),
    )


def queue_storage(store: QueueStore) -> QueueStorage:
    """Looks at every index entry that is in memory."""
    chain, bodies, written = store.chain(), store.bodies, store.written
    return QueueStorage(
        messages_pending=chain.pending,
        messages_q4=chain.q4,
        messages_q3=chain.q3,
        messages_delta=chain.delta,
        messages_q2=chain.q2,
        messages_q1=chain.q1,
        messages_in_memory=bodies.index.messages_in_memory,
        memory_bytes=bodies.index.memory_bytes,
        messages_target=bodies.pager.target if isfinite(bodies.pager.target) else None,
        publish_rate=bodies.pager.rates.publish,
        deliver_rate=bodies.pager.rates.deliver,
        acknowledge_rate=bodies.pager.rates.ack,
        blocks_read=bodies.blocks_read,
        journal_bytes_written=written.journal_bytes,
        segment_bytes_written=written.segment_bytes,
        body_bytes_stored=written.stored_bytes,
        body_bytes_read=bodies.body_bytes_read,
        body_bytes_written=written.body_bytes - written.elided_bytes + bodies.body_bytes_paged,
        body_bytes_elided=written.elided_bytes,
        segments_loaded=bodies.segments_loaded,
    )
