"""A queue: its state, its ring, its counts, and where its messages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ringmq.errors import BadRequestError
from ringmq.model.fields import HeaderValue, fields_from_wire
from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common


class QueueState(Enum):
    UNKNOWN = broker.QUEUE_STATE_UNSPECIFIED
    RUNNING = broker.QUEUE_STATE_RUNNING
    FLOW = broker.QUEUE_STATE_FLOW
    MINORITY = broker.QUEUE_STATE_MINORITY
    DOWN = broker.QUEUE_STATE_DOWN
    QUARANTINED = broker.QUEUE_STATE_QUARANTINED

    @classmethod
    def _missing_(cls, value: object) -> QueueState:
        # A newer node may send a state that this client doesn't know.
        return cls.UNKNOWN


class BlockReason(Enum):
    """Why publishers are held. `MEMORY` and `DISK` are alarms, of any node and for all publishers;
    the others are of the queue's master node, `RING_FULL` and `DEAD_LETTERS` of the queue alone."""

    UNKNOWN = broker.BLOCK_REASON_UNSPECIFIED
    MEMORY = broker.BLOCK_REASON_MEMORY
    DISK = broker.BLOCK_REASON_DISK
    PUBLISH_BUDGET = broker.BLOCK_REASON_PUBLISH_BUDGET
    UNSYNCED = broker.BLOCK_REASON_UNSYNCED
    RING_FULL = broker.BLOCK_REASON_RING_FULL
    DEAD_LETTERS = broker.BLOCK_REASON_DEAD_LETTERS

    @classmethod
    def _missing_(cls, value: object) -> BlockReason:
        return cls.UNKNOWN

    @property
    def text(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


#: The reasons that are the cluster's, whichever node has a publisher's stream.
ALARMS = frozenset((BlockReason.MEMORY, BlockReason.DISK))


class QueueMode(Enum):
    """Where a queue keeps its messages: while there is room in memory, or on disk only."""

    UNKNOWN = common.QUEUE_MODE_UNSPECIFIED
    DEFAULT = common.QUEUE_MODE_DEFAULT
    LAZY = common.QUEUE_MODE_LAZY

    @classmethod
    def _missing_(cls, value: object) -> QueueMode:
        return cls.UNKNOWN


class SyncPhase(Enum):
    """What a replica does that isn't synchronised. MANUAL and CANCELLED: it fetches nothing until
    `Client.sync_queue`, and is synchronised once all that it lacks has been consumed."""

    UNKNOWN = broker.SYNC_PHASE_UNSPECIFIED
    STATE = broker.SYNC_PHASE_STATE
    FETCHING = broker.SYNC_PHASE_FETCHING
    WRITING = broker.SYNC_PHASE_WRITING
    MANUAL = broker.SYNC_PHASE_MANUAL
    CANCELLED = broker.SYNC_PHASE_CANCELLED

    @classmethod
    def _missing_(cls, value: object) -> SyncPhase:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """How far a replica has come since it joined. `messages_missing` falls as messages are fetched
    and as they are consumed."""

    phase: SyncPhase
    messages_missing: int
    messages_fetched: int
    bytes_fetched: int

    @classmethod
    def from_wire(cls, wire: broker.SyncProgress) -> SyncProgress:
        return cls(
            phase=SyncPhase(wire.phase),
            messages_missing=wire.messages_missing,
            messages_fetched=wire.messages_fetched,
            bytes_fetched=wire.bytes_fetched,
        )


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One member of a queue's ring. `received` and `persisted` are op numbers."""

    node: str
    incarnation: int
    synchronised: bool
    received: int
    persisted: int
    # None: it is synchronised, or its node has not said.
    sync: SyncProgress | None = None

    @classmethod
    def from_wire(cls, wire: broker.ReplicaInfo) -> ReplicaInfo:
        return cls(
            node=wire.node,
            incarnation=wire.incarnation,
            synchronised=wire.synchronised,
            received=wire.received,
            persisted=wire.persisted,
            sync=SyncProgress.from_wire(wire.sync) if wire.HasField("sync") else None,
        )


@dataclass(frozen=True, slots=True)
class QueueStorage:
    """The places in which one replica keeps a queue's messages, with its rates, reads and writes.
    `docs/operations.md` explains each field."""

    messages_pending: int
    messages_q4: int
    messages_q3: int
    messages_delta: int
    messages_q2: int
    messages_q1: int
    messages_in_memory: int
    memory_bytes: int
    # How many messages may be in memory; None: as many as there is room for.
    messages_target: float | None
    # Messages per second.
    publish_rate: float
    deliver_rate: float
    acknowledge_rate: float
    # Since the node was started.
    blocks_read: int
    journal_bytes_written: int
    segment_bytes_written: int
    body_bytes_stored: int
    body_bytes_read: int
    body_bytes_written: int
    body_bytes_elided: int
    segments_loaded: int

    @classmethod
    def from_wire(cls, wire: broker.QueueStorage) -> QueueStorage:
        limited = wire.HasField("messages_target")
        return cls(
            messages_pending=wire.messages_pending,
            messages_q4=wire.messages_q4,
            messages_q3=wire.messages_q3,
            messages_delta=wire.messages_delta,
            messages_q2=wire.messages_q2,
            messages_q1=wire.messages_q1,
            messages_in_memory=wire.messages_in_memory,
            memory_bytes=wire.memory_bytes,
            messages_target=wire.messages_target if limited else None,
            publish_rate=wire.publish_rate,
            deliver_rate=wire.deliver_rate,
            acknowledge_rate=wire.acknowledge_rate,
            blocks_read=wire.blocks_read,
            journal_bytes_written=wire.journal_bytes_written,
            segment_bytes_written=wire.segment_bytes_written,
            body_bytes_stored=wire.body_bytes_stored,
            body_bytes_read=wire.body_bytes_read,
            body_bytes_written=wire.body_bytes_written,
            body_bytes_elided=wire.body_bytes_elided,
            segments_loaded=wire.segments_loaded,
        )


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """An operator had the queue go on with a replica that may have lacked confirmed messages.

    The replica of `node` became master in `epoch`. Its log ended with op `log_number` of epoch
    `log_epoch`, before `position`; what was confirmed beyond that is lost. `overruled` are the
    lives of nodes that had everything.
    """

    epoch: int
    node: str
    incarnation: int
    log_epoch: int
    log_number: int
    position: int
    overruled: tuple[str, ...]
    operator: str
    at_ms: int

    @classmethod
    def from_wire(cls, wire: broker.AcceptedLoss) -> AcceptedLoss:
        return cls(
            epoch=wire.epoch,
            node=wire.node,
            incarnation=wire.incarnation,
            log_epoch=wire.log_epoch,
            log_number=wire.log_number,
            position=wire.position,
            overruled=tuple(wire.overruled),
            operator=wire.operator,
            at_ms=wire.at_ms,
        )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as its master sees it, or, without a master, the node that was asked."""

    queue: str
    replicas_wanted: int
    min_insync: int
    state: QueueState
    epoch: int
    ring: tuple[ReplicaInfo, ...]
    messages_ready: int
    messages_unacknowledged: int
    # Not delivered, because their bodies are damaged on every replica.
    messages_damaged: int
    bytes_ready: int
    bytes_unacknowledged: int
    consumers: int
    publishers: int
    # Whose last sequences the queue remembers.
    producers: int
    next_position: int
    digest: str
    stable: int
    published_total: int
    acknowledged_total: int
    expired_total: int
    dropped_total: int
    rejected_total: int
    mode: QueueMode
    # The master's; None in lists, and from `declare_queue`.
    storage: QueueStorage | None
    # False: a transient queue.
    durable: bool
    # The queue's name in nodes' data directories; an older node leaves it empty.
    id: str = ""
    # Oldest first.
    losses: tuple[AcceptedLoss, ...] = ()
    # What an operator has to put right; empty: nothing. The queue may be served all the same.
    quarantine: str = ""
    # The policies that apply, by name; and what is wanted by them and the declaration, in words.
    policy: str = ""
    operator_policy: str = ""
    wanted: Mapping[str, str] = field(default_factory=dict)
    # Why publishers are held, or were within the last second; `state` is FLOW then.
    flow_reasons: tuple[BlockReason, ...] = ()
    vhost: str = "/"
    auto_delete: bool = False
    # Of an exclusive queue: its connection, as node.incarnation.number.
    owner: str = ""
    # On their way to the dead-letter exchange: neither ready nor unacknowledged. And how many have
    # arrived, or had no target, since this node is the master.
    messages_dead_lettering: int = 0
    dead_lettered_total: int = 0
    dead_letters_dropped_total: int = 0
    # Deliveries, and those of them that were marked as redelivered; since then, too.
    delivered_total: int = 0
    redelivered_total: int = 0
    # Another broker's, such as RabbitMQ's x-queue-type: kept without effect.
    arguments: Mapping[str, HeaderValue] = field(default_factory=dict)

    @property
    def master(self) -> str:
        """The node of the master; empty if the ring is."""
        return self.ring[0].node if self.ring else ""

    @classmethod
    def from_wire(cls, wire: broker.QueueInfo) -> QueueInfo:
        return cls(
            queue=wire.queue,
            vhost=wire.vhost or "/",
            replicas_wanted=wire.replicas_wanted,
            min_insync=wire.min_insync,
            state=QueueState(wire.state),
            epoch=wire.epoch,
            ring=tuple(map(ReplicaInfo.from_wire, wire.ring)),
            messages_ready=wire.messages_ready,
            messages_unacknowledged=wire.messages_unacknowledged,
            messages_damaged=wire.messages_damaged,
            messages_dead_lettering=wire.messages_dead_lettering,
            dead_lettered_total=wire.dead_lettered_total,
            dead_letters_dropped_total=wire.dead_letters_dropped_total,
            delivered_total=wire.delivered_total,
            redelivered_total=wire.redelivered_total,
            bytes_ready=wire.bytes_ready,
            bytes_unacknowledged=wire.bytes_unacknowledged,
            consumers=wire.consumers,
            publishers=wire.publishers,
            producers=wire.producers,
            next_position=wire.next_position,
            digest=wire.digest,
            stable=wire.stable,
            published_total=wire.published_total,
            acknowledged_total=wire.acknowledged_total,
            expired_total=wire.expired_total,
            dropped_total=wire.dropped_total,
            rejected_total=wire.rejected_total,
            mode=QueueMode(wire.mode),
            storage=QueueStorage.from_wire(wire.storage) if wire.HasField("storage") else None,
            durable=wire.durable if wire.HasField("durable") else True,
            id=wire.id,
            losses=tuple(map(AcceptedLoss.from_wire, wire.losses)),
            quarantine=wire.quarantine,
            policy=wire.policy,
            operator_policy=wire.operator_policy,
            wanted=dict(wire.wanted),
            flow_reasons=tuple(map(BlockReason, wire.flow_reasons)),
            auto_delete=wire.auto_delete,
            owner=wire.owner,
            arguments=fields_from_wire(wire.arguments),
        )


@dataclass(frozen=True, slots=True)
class Location:
    """Where the master of a queue is."""

    node: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Promotion:
    old_master: str
    new_master: str
    epoch: int
    took_ms: int
    # None: nothing was lost.
    loss: AcceptedLoss | None = None

    @classmethod
    def from_wire(cls, wire: admin.PromoteMirrorResponse) -> Promotion:
        return cls(
            old_master=wire.old_master,
            new_master=wire.new_master,
            epoch=wire.epoch,
            took_ms=wire.took_ms,
            loss=AcceptedLoss.from_wire(wire.loss) if wire.HasField("loss") else None,
        )


def mode_to_wire(mode: QueueMode) -> common.QueueMode.ValueType:
    if mode is QueueMode.DEFAULT:
        return common.QUEUE_MODE_DEFAULT
    if mode is QueueMode.LAZY:
        return common.QUEUE_MODE_LAZY
    raise BadRequestError(f"a queue can't be given the mode {mode}", metadata={"field": "mode"})
