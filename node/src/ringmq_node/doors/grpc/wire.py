"""How a node and its replicas keep their messages, as the wire says it."""

from __future__ import annotations

from math import isfinite

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq_node.storage import QueueStore, Store


def storage_to_wire(store: QueueStore) -> broker.QueueStorage:
    """Looks at every index entry that is in memory."""
    chain, bodies, written = store.chain(), store.bodies, store.written
    return broker.QueueStorage(
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


def store_to_wire(store: Store) -> admin.StoreNumbers:
    """Looks at every queue and every file of the message stores, not at what is in them."""
    found = store.statistics()
    both = (found.messages, found.messages_transient)
    return admin.StoreNumbers(
        queue_memory_bytes=found.queue_memory_bytes_now,
        journals_sealed=found.journals_sealed_now,
        sealed_bytes=found.sealed_bytes_now,
        rounds=found.rounds,
        journal_bytes_written=found.journal_bytes_written,
        segment_bytes_written=found.segment_bytes_written,
        body_bytes_elided=found.body_bytes_elided,
        message_store_bytes=sum(each.file_bytes_now for each in both),
        message_store_garbage_bytes=sum(each.garbage_bytes_now for each in both),
    )
