"""How queues, replicas and nodes are described to users and operators.

A description is a snapshot, taken on one node at one moment. Its facts about other members are as
old as the last mark or view that this node has heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ringmq_node.model.fields import FieldValue
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.records import QueueMode


class QueueCondition(Enum):
    """Whether a queue takes publishes; names are those of `ringmq.v1.QueueState`."""

    RUNNING = auto()
    # The master takes nothing at the moment: its ring is full, or a hand-over is under way.
    FLOW = auto()
    # Fewer than `min_insync` members are synchronised: nothing can be confirmed.
    MINORITY = auto()
    # No replica serves as master.
    DOWN = auto()
    # The same, and not before an operator acts: `QueueInfo.quarantine` says why.
    QUARANTINED = auto()


class ConnectionCondition(Enum):
    """How a connection's publishers fare; names are those of `ringmq.v1.ConnectionState`."""

    RUNNING = auto()
    # A batch is held, or was a moment ago.
    FLOW = auto()
    # An alarm will hold the next batch.
    BLOCKING = auto()
    # An alarm holds one.
    BLOCKED = auto()


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """A connection that has streams at `node`. `relayed`: the peer is a node, which passes on to
    masters here what its clients ask for."""

    node: str
    peer: str
    condition: ConnectionCondition
    flow_reasons: tuple[BlockReason, ...]
    publishers: int
    consumers: int
    relayed: bool


class SyncPhase(Enum):
    """The activity of a replica that isn't synchronised; names as in `ringmq.v1.SyncPhase`."""

    # It has joined, and asks for the state: which messages there are.
    STATE = auto()
    FETCHING = auto()
    # Everything has been fetched, and is being written and declared synchronised.
    WRITING = auto()
    # It fetches nothing: the queue's policy wants an operator to ask for it, or one has stopped it.
    MANUAL = auto()
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class SyncInfo:
    """How far a replica has come since it joined. `messages_missing` falls as bodies are fetched,
    and as messages are consumed."""

    phase: SyncPhase
    messages_missing: int
    messages_fetched: int
    bytes_fetched: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of a queue's ring. Marks are op numbers; 0 where this node knows none."""

    node: str
    incarnation: int
    synchronised: bool
    received: int = 0
    persisted: int = 0
    # None: it is synchronised, or its node has not been asked.
    sync: SyncInfo | None = None


@dataclass(frozen=True, slots=True)
class QueueStorage:
    """Where one replica keeps its messages, and how much it has read and written since its opening.

    The counts q1 to q4 and delta are those of the backing queue, see docs/storage.md.
    """

    messages_pending: int
    messages_q4: int
    messages_q3: int
    messages_delta: int
    messages_q2: int
    messages_q1: int
    messages_in_memory: int
    memory_bytes: int
    # None: no target, everything may stay in memory.
    messages_target: float | None
    # Per second.
    publish_rate: float
    deliver_rate: float
    acknowledge_rate: float
    blocks_read: int
    journal_bytes_written: int
    segment_bytes_written: int
    body_bytes_stored: int
    body_bytes_read: int
    body_bytes_written: int
    body_bytes_elided: int
    segments_loaded: int


@dataclass(frozen=True, slots=True)
class LossInfo:
    """An operator's decision to go on with a replica that may have lacked confirmed messages.

    The ring was begun again in `epoch` with the replica of `node`, whose log ended with op
    `log_number` of `log_epoch`, before `position`. `overruled` are the lives that had everything.
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


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as one of its replicas sees it.

    Depths, consumers, publishers and totals are known to the master alone, and 0 elsewhere.
    """

    queue: str
    id: str
    replicas_wanted: int
    min_insync: int
    mode: QueueMode
    durable: bool
    condition: QueueCondition
    epoch: int = 0
    ring: tuple[MemberInfo, ...] = ()
    messages_ready: int = 0
    messages_unacknowledged: int = 0
    messages_damaged: int = 0
    # On their way to a dead-letter exchange.
    messages_dead_lettering: int = 0
    bytes_ready: int = 0
    bytes_unacknowledged: int = 0
    consumers: int = 0
    publishers: int = 0
    # Whose last sequences are remembered.
    producers: int = 0
    next_position: int = 0
    # Of the replicated state; equal on replicas that have applied the same ops.
    digest: str = ""
    # Up to this op every member has received everything.
    stable: int = 0
    published_total: int = 0
    acknowledged_total: int = 0
    expired_total: int = 0
    dropped_total: int = 0
    rejected_total: int = 0
    dead_lettered_total: int = 0
    dead_letters_dropped_total: int = 0
    # Deliveries, and those of them that were marked as redelivered.
    delivered_total: int = 0
    redelivered_total: int = 0
    # Oldest first.
    losses: tuple[LossInfo, ...] = ()
    # The names of the policies that apply; and their merge with the declaration.
    policy: str = ""
    operator_policy: str = ""
    wanted: Mapping[str, str] = field(default_factory=dict)
    auto_delete: bool = False
    # Of an exclusive queue: `Owner.name` of its connection.
    owner: str = ""
    # Another broker's, as they were declared.
    arguments: tuple[tuple[str, FieldValue], ...] = ()
    # Looked at only when asked for: it costs a look at every index entry in memory.
    storage: QueueStorage | None = None
    # Faults that an operator has to put right: a record in the registry that can't be read,
    # replicas that have failed. The queue may be served all the same. Empty: nothing.
    quarantine: str = ""
    # Why publishers are held, or were a moment ago.
    flow_reasons: tuple[BlockReason, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One node's replica of a queue."""

    node: str
    incarnation: int
    synchronised: bool
    master: bool
    epoch: int
    last_number: int
    next_position: int
    messages: int
    # Live messages whose bodies this replica doesn't have.
    messages_missing: int
    digest: str
    mode: QueueMode
    storage: QueueStorage
    # None: it isn't joining.
    sync: SyncInfo | None = None
    # The epoch of op `last_number`.
    log_epoch: int = 0
    # Whether no op before it is missing.
    log_is_whole: bool = True
    stable: int = 0


class DifferenceKind(Enum):
    """The kind of a difference at a position; names are those of `ringmq.v1.DifferenceKind`."""

    STATE = auto()
    REDELIVERED = auto()
    TRANSIENT = auto()
    MISSING = auto()
    BODY = auto()
    PROPERTIES = auto()
    REST = auto()


@dataclass(frozen=True, slots=True)
class Difference:
    """Two replicas differ at a position: the message of `node`, and that of `other`."""

    position: int
    kind: DifferenceKind
    node: str
    has: str
    other: str
    other_has: str


@dataclass(frozen=True, slots=True)
class VerifyInfo:
    """How far the replicas of a queue have been compared. `differences` are the first ones found,
    in the order of their positions."""

    positions: int
    positions_total: int
    messages: int
    bytes: int
    done: bool
    # The master's first; and those that aren't synchronised.
    nodes: tuple[str, ...]
    left_out: tuple[str, ...]
    differences_total: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class StoreNumbers:
    """Counts of a node's store since it was opened, and the sizes of its message stores."""

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


@dataclass(frozen=True, slots=True)
class SetAsideEntry:
    """Messages of a log that a replica had to cut, kept on this node for an operator."""

    name: str
    # The queue's name and id.
    queue: str
    id: str
    messages: int
    # Live messages of the log's end that had no body.
    messages_missing: int
    file_bytes: int
    first_position: int
    next_position: int
    # The op with which the log ended.
    log_epoch: int
    log_number: int
    # Whether some are known to have been confirmed. Else they may have been.
    confirmed: bool
    # Seconds since 1970.
    at_s: int
    removed_at_s: int


@dataclass(frozen=True, slots=True)
class LeftoverInfo:
    """A replica that no queue's record names any more."""

    id: str
    queue: str
    messages: int
    # Seconds since 1970.
    removed_at_s: int


@dataclass(frozen=True, slots=True)
class NodeResources:
    """Memory, disk and store of one node."""

    memory_used_bytes: int
    memory_limit_bytes: int
    memory_total_bytes: int
    memory_alarm: bool
    disk_free_bytes: int
    disk_limit_bytes: int
    disk_alarm: bool
    # Seconds of traffic that queues may keep in memory; None: unlimited.
    desired_duration_s: float | None
    # Why the store has failed; empty while it works.
    store_failure: str
    # Of publishes that are under way, the budget above which publishers wait, and how many batches
    # wait for it.
    publish_bytes: int
    publish_bytes_max: int
    publishes_held: int
    # Held for clients: requests that weren't read, deliveries that weren't sent, answers of gets;
    # and the budget of each kind.
    unread_bytes: int
    unsent_bytes: int
    get_bytes: int
    buffer_bytes_max: int
    # Alarms of any node, as this one knows them: while there is one, it admits no client's publish.
    publishers_blocked_by: tuple[str, ...]
    leftovers: tuple[LeftoverInfo, ...]
    set_aside: tuple[SetAsideEntry, ...]
    store: StoreNumbers


class NodeCondition(Enum):
    """Names are those of `ringmq.v1.NodeState`."""

    RUNNING = auto()
    # Up, and drained by an operator.
    DRAINING = auto()
    DOWN = auto()
    # Its record in the registry can't be read, so nobody knows whether it is up.
    QUARANTINED = auto()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node that belongs to the cluster, up or down."""

    node: str
    condition: NodeCondition
    address: str = ""
    incarnation: int = 0
    version: str = ""
    masters: int = 0
    mirrors: int = 0
    # None: not asked for, or the node did not answer in time.
    resources: NodeResources | None = None
    # Why its record in the registry can't be read; empty if it can.
    quarantine: str = ""
    drained: bool = False
    evacuated: bool = False
    # Queues that can't do without it; 0 unless it was asked for.
    queues_needing: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as `node` sees it."""

    cluster_id: str
    node: str
    nodes: tuple[NodeInfo, ...]
    queues: int
    registry_available: bool
