"""A queue's state in words: the JSON of `queue show`, and the texts of its tables."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ringmq import QueueInfo, QueueStorage, ReplicaInfo, SyncProgress
from ringmq_node.cli.output import size_text


def queue_json(info: QueueInfo) -> dict[str, Any]:
    return {
        "queue": info.queue,
        "id": info.id,
        "state": info.state.name.lower(),
        "epoch": info.epoch,
        "master": info.master,
        "ring": [
            {
                "node": replica.node,
                "incarnation": replica.incarnation,
                "synchronised": replica.synchronised,
                "received": replica.received,
                "persisted": replica.persisted,
                "sync": None if replica.sync is None else sync_json(replica.sync),
            }
            for replica in info.ring
        ],
        "replicas_wanted": info.replicas_wanted,
        "min_insync": info.min_insync,
        "policy": info.policy,
        "operator_policy": info.operator_policy,
        "wanted": dict(info.wanted),
        "messages_ready": info.messages_ready,
        "messages_unacknowledged": info.messages_unacknowledged,
        "messages_damaged": info.messages_damaged,
        "messages_dead_lettering": info.messages_dead_lettering,
        "dead_lettered_total": info.dead_lettered_total,
        "dead_letters_dropped_total": info.dead_letters_dropped_total,
        "bytes_ready": info.bytes_ready,
        "bytes_unacknowledged": info.bytes_unacknowledged,
        "consumers": info.consumers,
        "publishers": info.publishers,
        "producers": info.producers,
        "next_position": info.next_position,
        "published_total": info.published_total,
        "acknowledged_total": info.acknowledged_total,
        "delivered_total": info.delivered_total,
        "redelivered_total": info.redelivered_total,
        "expired_total": info.expired_total,
        "dropped_total": info.dropped_total,
        "rejected_total": info.rejected_total,
        "mode": info.mode.name.lower(),
        "durable": info.durable,
        "auto_delete": info.auto_delete,
        "owner": info.owner or None,
        "losses": [asdict(loss) for loss in info.losses],
        "stable": info.stable,
        "digest": info.digest,
        "quarantine": info.quarantine or None,
    }


def sync_json(sync: SyncProgress) -> dict[str, Any]:
    return asdict(sync) | {"phase": sync.phase.name.lower()}


def sync_text(replica: ReplicaInfo) -> str:
    """`yes`; or `fetching: 1200 missing, 300 fetched (4.2 MiB)`."""
    sync = replica.sync
    if replica.synchronised or sync is None:
        return "yes" if replica.synchronised else "no"
    text = f"{sync.phase.name.lower()}: {sync.messages_missing} missing"
    if sync.messages_fetched:
        text += f", {sync.messages_fetched} fetched ({size_text(sync.bytes_fetched)})"
    return text


def ring_text(info: QueueInfo) -> str:
    """`a b c?`: in ring order, the master first; `?` is not synchronised. `c?1200`: it lacks so
    many messages."""

    def one(replica: ReplicaInfo) -> str:
        if replica.synchronised:
            return replica.node
        missing = 0 if replica.sync is None else replica.sync.messages_missing
        return f"{replica.node}?{missing or ''}"

    return " ".join(map(one, info.ring))


def losses_text(info: QueueInfo) -> str:
    """The accepted losses: `epoch 7 at 2026-11-22 06:40:00 UTC by ops@host, after op 40`."""
    return "; ".join(
        f"epoch {loss.epoch} at {datetime.fromtimestamp(loss.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
        f" UTC by {loss.operator}: went on with {loss.node} after op {loss.log_number} of epoch "
        f"{loss.log_epoch} (position {loss.position}), without {', '.join(loss.overruled)}"
        for loss in info.losses
    )


def storage_facts(storage: QueueStorage) -> dict[str, object]:
    """Five lines. `messages` goes from the message that is fetched next to the newest."""
    target = storage.messages_target
    return {
        "messages": {
            "pending": storage.messages_pending,
            "q4": storage.messages_q4,
            "q3": storage.messages_q3,
            "delta": storage.messages_delta,
            "q2": storage.messages_q2,
            "q1": storage.messages_q1,
        },
        "in_memory": {
            "messages": storage.messages_in_memory,
            "target": "none" if target is None else round(target),
            "bytes": storage.memory_bytes,
        },
        "messages_per_s": {
            "in": storage.publish_rate,
            "out": storage.deliver_rate,
            "acknowledged": storage.acknowledge_rate,
        },
        "read": {
            "bytes": storage.body_bytes_read,
            "blocks": storage.blocks_read,
            "segments": storage.segments_loaded,
        },
        "bytes_written": {
            "bodies": storage.body_bytes_written,
            "elided": storage.body_bytes_elided,
            "journals": storage.journal_bytes_written,
            "segments": storage.segment_bytes_written,
            "message_store": storage.body_bytes_stored,
        },
    }
