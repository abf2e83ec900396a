"""The numbers of one queue's storage, for the people who watch it."""

from __future__ import annotations

from math import isfinite

from ringmq_node.model.info import QueueStorage
from ringmq_node.storage.limits import Written
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.pager import Pager


def collect(bodies: Bodies, pager: Pager, written: Written) -> QueueStorage:
    """Looks at every entry of the index that is in memory."""
    chain, rates = pager.chain(), pager.rates
    return QueueStorage(
        messages_pending=chain.pending,
        messages_q4=chain.q4,
        messages_q3=chain.q3,
        messages_delta=chain.delta,
        messages_q2=chain.q2,
        messages_q1=chain.q1,
        messages_in_memory=bodies.index.messages_in_memory,
        memory_bytes=bodies.index.memory_bytes,
        messages_target=pager.target if isfinite(pager.target) else None,
        publish_rate=rates.publish,
        deliver_rate=rates.deliver,
        acknowledge_rate=rates.ack,
        blocks_read=bodies.blocks_read,
        journal_bytes_written=written.journal_bytes,
        segment_bytes_written=written.segment_bytes,
        body_bytes_stored=written.stored_bytes,
        body_bytes_read=bodies.body_bytes_read,
        body_bytes_written=written.body_bytes - written.elided_bytes + pager.body_bytes_out,
        body_bytes_elided=written.elided_bytes,
        segments_loaded=bodies.segments_loaded,
    )
