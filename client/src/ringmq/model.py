"""What the calls return: plain frozen values, and the messages of a delivery.

Times are milliseconds, sizes bytes. A `Batch` keeps the bodies as the wire gave
them and makes a `Message` only when one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import overload

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common


@dataclass(frozen=True, slots=True)
class Properties:
    """What a publisher may say about a message. The broker hands it on unread."""

    message_id: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    content_type: str = ""
    timestamp_ms: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_wire(self) -> common.Properties:
        return common.Properties(
            message_id=self.message_id,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            content_type=self.content_type,
            timestamp_ms=self.timestamp_ms,
            headers=self.headers,
        )

    @classmethod
    def from_wire(cls, wire: common.Properties) -> Properties:
        return cls(
            message_id=wire.message_id,
            correlation_id=wire.correlation_id,
            reply_to=wire.reply_to,
            content_type=wire.content_type,
            timestamp_ms=wire.timestamp_ms,
            headers=dict(wire.headers),
        )


NO_PROPERTIES = Properties()


class QueueState(Enum):
    UNKNOWN = broker.QUEUE_STATE_UNSPECIFIED
    RUNNING = broker.QUEUE_STATE_RUNNING
    FLOW = broker.QUEUE_STATE_FLOW
    MINORITY = broker.QUEUE_STATE_MINORITY
    DOWN = broker.QUEUE_STATE_DOWN

    @classmethod
    def _missing_(cls, value: object) -> QueueState:
        # A state that a newer node knows and we do not.
        return cls.UNKNOWN


class QueueMode(Enum):
    """Where a queue keeps its messages: while there is room in memory, or on disk only."""

    UNKNOWN = common.QUEUE_MODE_UNSPECIFIED
    DEFAULT = common.QUEUE_MODE_DEFAULT
    LAZY = common.QUEUE_MODE_LAZY

    @classmethod
    def _missing_(cls, value: object) -> QueueMode:
        return cls.UNKNOWN


class NodeState(Enum):
    UNKNOWN = admin.NODE_STATE_UNSPECIFIED
    RUNNING = admin.NODE_STATE_RUNNING
    DRAINING = admin.NODE_STATE_DRAINING
    DOWN = admin.NODE_STATE_DOWN

    @classmethod
    def _missing_(cls, value: object) -> NodeState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Replica:
    """One member of a queue's ring. `received` and `persisted` are op numbers."""

    node: str
    incarnation: int
    synchronised: bool
    received: int
    persisted: int


@dataclass(frozen=True, slots=True)
class QueueStorage:
    """Where one replica has a queue's messages. `docs/operations.md` says what each means."""

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
class QueueInfo:
    """A queue, as its master (or the node that was asked, if there is none) sees it."""

    queue: str
    replicas_wanted: int
    min_insync: int
    state: QueueState
    epoch: int
    ring: tuple[Replica, ...]
    messages_ready: int
    messages_unacknowledged: int
    # Not delivered, because every replica's body of them is damaged.
    messages_damaged: int
    bytes_ready: int
    bytes_unacknowledged: int
    consumers: int
    publishers: int
    next_position: int
    digest: str
    stable: int
    published_total: int
    acknowledged_total: int
    mode: QueueMode
    # The master's; None in lists, and in what `declare_queue` returns.
    storage: QueueStorage | None
    # False: a transient queue.
    durable: bool
    # What nodes call it in their data directories; empty, from an older node.
    id: str = ""

    @property
    def master(self) -> str:
        """The node of the master; empty if the ring is."""
        return self.ring[0].node if self.ring else ""

    @classmethod
    def from_wire(cls, wire: broker.QueueInfo) -> QueueInfo:
        return cls(
            queue=wire.queue,
            replicas_wanted=wire.replicas_wanted,
            min_insync=wire.min_insync,
            state=QueueState(wire.state),
            epoch=wire.epoch,
            ring=tuple(
                Replica(r.node, r.incarnation, r.synchronised, r.received, r.persisted)
                for r in wire.ring
            ),
            messages_ready=wire.messages_ready,
            messages_unacknowledged=wire.messages_unacknowledged,
            messages_damaged=wire.messages_damaged,
            bytes_ready=wire.bytes_ready,
            bytes_unacknowledged=wire.bytes_unacknowledged,
            consumers=wire.consumers,
            publishers=wire.publishers,
            next_position=wire.next_position,
            digest=wire.digest,
            stable=wire.stable,
            published_total=wire.published_total,
            acknowledged_total=wire.acknowledged_total,
            mode=QueueMode(wire.mode),
            storage=QueueStorage.from_wire(wire.storage) if wire.HasField("storage") else None,
            durable=wire.durable if wire.HasField("durable") else True,
            id=wire.id,
        )


@dataclass(frozen=True, slots=True)
class Location:
    """Where the master of a queue is."""

    node: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class StoreNumbers:
    """What a node's store has, and did since its start. `docs/cli.md` says what each means."""

    queue_memory_bytes: int
    journals_sealed: int
    sealed_bytes: int
    rounds: int
    journal_bytes_written: int
    segment_bytes_written: int
    body_bytes_elided: int
    message_store_bytes: int
    message_store_garbage_bytes: int

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
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """What a node uses of its machine, and the limits past which an alarm is on."""

    # Resident; the watermark; what the process may use, at most.
    memory_used_bytes: int
    memory_limit_bytes: int
    memory_total_bytes: int
    memory_alarm: bool
    # Of the data directory's file system.
    disk_free_bytes: int
    disk_limit_bytes: int
    disk_alarm: bool
    # How long a queue may keep a message in memory; None: as long as it likes.
    desired_duration_s: float | None
    # Why the node's store is closed for writes; None: it is open.
    store_failure: str | None
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
    # None: not asked for, or it did not answer in time.
    resources: Resources | None


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
                )
                for n in wire.nodes
            ),
            queues=wire.queues,
            registry_available=wire.registry_available,
        )


@dataclass(frozen=True, slots=True)
class Promotion:
    old_master: str
    new_master: str
    epoch: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class Message:
    """One delivered message. `generation` names the stream that it came on."""

    position: int
    body: bytes
    redelivered: bool
    properties: Properties
    generation: int


@dataclass(frozen=True, slots=True)
class Part:
    """Messages at consecutive positions, all redelivered or none."""

    first: int
    bodies: list[bytes]
    #: None, one for all, or one for each body.
    properties: Sequence[common.Properties]
    redelivered: bool

    def slice(self, start: int, stop: int) -> Part:
        """The messages `start..stop - 1`, counted within this part."""
        one_each = len(self.properties) == len(self.bodies)
        return Part(
            self.first + start,
            self.bodies[start:stop],
            self.properties[start:stop] if one_each else self.properties,
            self.redelivered,
        )

    def message(self, index: int, generation: int) -> Message:
        properties = NO_PROPERTIES
        if self.properties:
            wire = self.properties[index if len(self.properties) > 1 else 0]
            properties = Properties.from_wire(wire)
        return Message(
            self.first + index, self.bodies[index], self.redelivered, properties, generation
        )


class Batch(Sequence[Message]):
    """Messages that came together, in order: a sequence; slices are batches too.

    `bodies` and `positions` cost nothing per message beyond the bodies; `Message`
    objects are made when one indexes or iterates.
    """

    __slots__ = ("_count", "_parts", "generation")

    def __init__(self, parts: Sequence[Part], generation: int = 0) -> None:
        self._parts = tuple(part for part in parts if part.bodies)
        self._count = sum(len(part.bodies) for part in self._parts)
        #: The stream that it came on; 0 for what `get_messages` returns.
        self.generation = generation

    @classmethod
    def from_wire(cls, deliveries: Sequence[broker.Delivery], generation: int = 0) -> Batch:
        return cls(
            [
                Part(d.first_position, list(d.bodies), d.properties, d.redelivered)
                for d in deliveries
            ],
            generation,
        )

    @property
    def bodies(self) -> list[bytes]:
        if len(self._parts) == 1:
            return self._parts[0].bodies
        return [body for part in self._parts for body in part.bodies]

    @property
    def positions(self) -> list[tuple[int, int]]:
        """(first, last), both included; neighbours are not merged."""
        return [(part.first, part.first + len(part.bodies) - 1) for part in self._parts]

    @property
    def redelivered(self) -> list[tuple[int, int]]:
        """The positions that may have been delivered before, as `positions` gives them."""
        return [
            (part.first, part.first + len(part.bodies) - 1)
            for part in self._parts
            if part.redelivered
        ]

    @property
    def parts(self) -> tuple[Part, ...]:
        return self._parts

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        for part in self._parts:
            for index in range(len(part.bodies)):
                yield part.message(index, self.generation)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step != 1:
                raise ValueError("a batch can be sliced only with step 1")
            return self._slice(start, stop)
        wanted = index + self._count if index < 0 else index
        for part in self._parts:
            if 0 <= wanted < len(part.bodies):
                return part.message(wanted, self.generation)
            wanted -= len(part.bodies)
        raise IndexError(f"batch of {self._count} messages has no index {index}")

    def _slice(self, start: int, stop: int) -> Batch:
        parts = []
        for part in self._parts:
            count = len(part.bodies)
            low, high = max(start, 0), min(stop, count)
            if low < high:
                parts.append(part.slice(low, high))
            start, stop = start - count, stop - count
        return Batch(parts, self.generation)

    def __repr__(self) -> str:
        ranges = self.positions
        where = f"{ranges[0][0]}..{ranges[-1][1]} in {len(ranges)} ranges" if ranges else "-"
        return f"<Batch of {self._count} messages, positions {where}>"
