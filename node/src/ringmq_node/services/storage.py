"""How a replica keeps its messages, as the wire says it."""

from __future__ import annotations

from math import isfinite

from ringmq.v1 import broker_pb2 as broker
from ringmq_node.storage import QueueStore


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
