"""The cluster: its nodes, and the memory and disk that each of them uses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from ringmq.v1 import admin_pb2 as admin


class NodeState(Enum):
    UNKNOWN = admin.NODE_STATE_UNSPECIFIED
    RUNNING = admin.NODE_STATE_RUNNING
    DRAINING = admin.NODE_STATE_DRAINING
    DOWN = admin.NODE_STATE_DOWN
    QUARANTINED = admin.NODE_STATE_QUARANTINED

    @classmethod
    def _missing_(cls, value: object) -> NodeState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class StoreNumbers:
    """Counts of a node's store, and its writes since its start. `docs/cli.md` explains each."""

    queue_memory_bytes: int
    journals_sealed: int
    sealed_bytes: int
    rounds: int
    journal_bytes_written: int
    segment_bytes_written: int
    body_bytes_elided: int
    message_store_bytes: int
    message_store_garbage_bytes: int
    commit_log_bytes_written: int
    message_store_bytes_written: int
    scrub_passes: int
    scrub_bytes: int
    scrub_faults: int
    scrub_messages: int

    @classmethod
    def from_wire(cls, wire: admin.StoreNumbers) -> StoreNumbers:
        return cls(
            queue_memory_bytes=wire.queue_memory_bytes,
            journals_sealed=wire.journals_sealed,
            sealed_bytes=wire.sealed_bytes,
            rounds=wire.rounds,
            journal_bytes_written=wire.journal_bytes_written,
            segment_bytes_written=wire.segment_bytes_written,
            body_bytes_elided=wire.body_bytes_elided,
            message_store_bytes=wire.message_store_bytes,
            message_store_garbage_bytes=wire.message_store_garbage_bytes,
            commit_log_bytes_written=wire.commit_log_bytes_written,
            message_store_bytes_written=wire.message_store_bytes_written,
            scrub_passes=wire.scrub_passes,
            scrub_bytes=wire.scrub_bytes,
            scrub_faults=wire.scrub_faults,
            scrub_messages=wire.scrub_messages,
        )


@dataclass(frozen=True, slots=True)
class Leftover:
    """A replica on a node's disk that no queue's record names any more."""

    id: str
    queue: str
    messages: int
    # Seconds since 1970.
    removed_at_s: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Messages of a log that a replica had to cut; its node keeps them for a while."""

    name: str
    # The queue's name and id.
    queue: str
    id: str
    messages: int
    # Live messages of the log's end that had no body.
    messages_missing: int
    file_bytes: int
    # The positions that they had, from the first up to the next (not included).
    first_position: int
    next_position: int
    # The op with which the log ended.
    log_epoch: int
    log_number: int
    # Some are known to have been confirmed. Else they may have been.
    confirmed: bool
    # Seconds since 1970.
    at_s: int
    removed_at_s: int


@dataclass(frozen=True, slots=True)
class Resources:
    """A node's use of memory and disk, and the limits past which an alarm is on."""

    # Resident; the watermark; the most that the process may use.
    memory_used_bytes: int
    memory_limit_bytes: int
    memory_total_bytes: int
    memory_alarm: bool
    # Of the data directory's file system.
    disk_free_bytes: int
    disk_limit_bytes: int
    disk_alarm: bool
    # How long a queue may keep a message in memory; None: without a limit.
    desired_duration_s: float | None
    # Why the node's store is closed for writes; None: the store is open.
    store_failure: str | None
    # Of publishes that are under way; the budget above which publishers wait; batches that wait.
    publish_bytes: int
    publish_bytes_max: int
    publishes_held: int
    # Held for clients: unread requests, unsent deliveries, answers of gets; the budget of each.
    unread_bytes: int
    unsent_bytes: int
    get_bytes: int
    buffer_bytes_max: int
    # Alarms of any node that hold the publishers of this one: "memory", "disk".
    publishers_blocked_by: tuple[str, ...]
    leftovers: tuple[Leftover, ...]
    set_aside: tuple[SetAside, ...]
    store: StoreNumbers

    @classmethod
    def from_wire(cls, wire: admin.Resources) -> Resources:
        bounded = wire.HasField("desired_duration_s")
        return cls(
            memory_used_bytes=wire.memory_used_bytes,
            memory_limit_bytes=wire.memory_limit_bytes,
            memory_total_bytes=wire.memory_total_bytes,
            memory_alarm=wire.memory_alarm,
            disk_free_bytes=wire.disk_free_bytes,
            disk_limit_bytes=wire.disk_limit_bytes,
            disk_alarm=wire.disk_alarm,
            desired_duration_s=wire.desired_duration_s if bounded else None,
            store_failure=wire.store_failure or None,
            publish_bytes=wire.publish_bytes,
            publish_bytes_max=wire.publish_bytes_max,
            publishes_held=wire.publishes_held,
            unread_bytes=wire.unread_bytes,
            unsent_bytes=wire.unsent_bytes,
            get_bytes=wire.get_bytes,
            buffer_bytes_max=wire.buffer_bytes_max,
            publishers_blocked_by=tuple(wire.publishers_blocked_by),
            leftovers=tuple(
                Leftover(each.id, each.queue, each.messages, each.removed_at_s)
                for each in wire.leftovers
            ),
            set_aside=tuple(
                SetAside(**{field.name: getattr(each, field.name) for field in fields(SetAside)})
                for each in wire.set_aside
            ),
            store=StoreNumbers.from_wire(wire.store),
        )


@dataclass(frozen=True, slots=True)
class NodeInfo:
    node: str
    address: str
    incarnation: int
    state: NodeState
    version: str
    masters: int
    mirrors: int
    # None: not asked for, or the node did not answer in time.
    resources: Resources | None
    # Why its record in the registry can't be read; empty if it can.
    quarantine: str = ""
    # An operator has drained it; its replicas go to other nodes as well.
    drained: bool = False
    evacuated: bool = False
    # Queues that can't do without it: they would be below min_insync, or without a replica that
    # has everything. 0 unless it was asked for.
    queues_needing: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster, as the node `node` sees it."""

    cluster_id: str
    node: str
    nodes: tuple[NodeInfo, ...]
    queues: int
    registry_available: bool

    @classmethod
    def from_wire(cls, wire: admin.GetClusterStatusResponse) -> ClusterStatus:
        return cls(
            cluster_id=wire.cluster_id,
            node=wire.node,
            nodes=tuple(
                NodeInfo(
                    node=n.node,
                    address=n.address,
                    incarnation=n.incarnation,
                    state=NodeState(n.state),
                    version=n.version,
                    masters=n.masters,
                    mirrors=n.mirrors,
                    resources=Resources.from_wire(n.resources) if n.HasField("resources") else None,
                    quarantine=n.quarantine,
                    drained=n.drained,
                    evacuated=n.evacuated,
                    queues_needing=n.queues_needing,
                )
                for n in wire.nodes
            ),
            queues=wire.queues,
            registry_available=wire.registry_available,
        )
