"""RingMQ's client: publish, consume and look after queues, over asyncio.

import ringmq

async with ringmq.connect(["127.0.0.1:7801"]) as client:
    await client.declare_queue("orders")
    async with client.publisher("orders") as publisher:
        await publisher.publish(b"one")              # returns when it is confirmed
        await publisher.publish_batch([b"2", b"3"])  # fast: nothing is per message
    async with client.consumer("orders") as consumer:
        async for batch in consumer:
            print(batch.bodies)
            await consumer.ack(batch)

`ringmq.connect_sync` is the same for scripts. `ringmq.errors` prints the tree of exceptions.
"""

from ringmq.client import Client
from ringmq.connecting import connect
from ringmq.consuming.consumer import Consumer
from ringmq.consuming.shared_prefetch import SharedPrefetch
from ringmq.errors import (
    AccessDeniedError,
    BadRequestError,
    ClosedError,
    ConsumerTimeoutError,
    DiskFullError,
    ExchangeExistsError,
    ExchangeInUseError,
    ExchangeNotFoundError,
    ExclusiveUseError,
    ForbiddenByPolicyError,
    LeaseHeldError,
    LeaseLostError,
    LimitExceededError,
    MessagesMayBeLostError,
    MessageTooLargeError,
    NodeIsUpError,
    NodeNotFoundError,
    NotAMemberError,
    NotRingMQError,
    NotSupportedError,
    NotSynchronisedError,
    OperatorError,
    OutcomeUnknownError,
    PolicyNotFoundError,
    PositionsError,
    PositionsGoneError,
    PositionsHeldError,
    PositionsMovedError,
    ProducerForgottenError,
    ProtocolError,
    QueueExistsError,
    QueueFullError,
    QueueInUseError,
    QueueLockedError,
    QueueNotEmptyError,
    QueueNotFoundError,
    RequestError,
    RetryableError,
    RingMQError,
    StoreFailedError,
    TimedOutError,
    TooFewSynchronisedError,
    UnavailableError,
    UnknownDeliveryError,
    UnroutableError,
    VhostInUseError,
    VhostNotFoundError,
    WindowFullError,
)
from ringmq.model.cluster import ClusterStatus, NodeInfo, NodeState, Resources, StoreNumbers
from ringmq.model.comparison import Difference, DifferenceKind, ReplicaComparison
from ringmq.model.connections import ConnectionInfo, ConnectionList, ConnectionState
from ringmq.model.consumers import ConsumerInfo, ConsumerState
from ringmq.model.fields import HeaderValue, OtherValue
from ringmq.model.messages import Batch, Death, Message, Properties
from ringmq.model.policies import (
    ForcedPromotion,
    MasterLocator,
    MasterMove,
    Mirrors,
    Policy,
    SyncMode,
)
from ringmq.model.positions import (
    AcknowledgedBelow,
    BrowsedBatch,
    BrowsedRows,
    BrowseSource,
    CountedRange,
    Numbering,
    PositionStat,
    QueueLease,
)
from ringmq.model.queues import (
    AcceptedLoss,
    BlockReason,
    Location,
    Promotion,
    QueueInfo,
    QueueMode,
    QueueState,
    QueueStorage,
    ReplicaInfo,
    SyncPhase,
    SyncProgress,
)
from ringmq.model.rules import Overflow, QueueRules
from ringmq.model.topology import Binding, Exchange, ExchangeType, ImportedDefinitions, Vhost
from ringmq.publishing.publisher import Publisher
from ringmq.reading.lease import HeldLease
from ringmq.reading.reader import Reader
from ringmq.sync import connect_sync

__all__ = [
    "AcceptedLoss",
    "AccessDeniedError",
    "AcknowledgedBelow",
    "BadRequestError",
    "Batch",
    "Binding",
    "BlockReason",
    "BrowseSource",
    "BrowsedBatch",
    "BrowsedRows",
    "Client",
    "ClosedError",
    "ClusterStatus",
    "ConnectionInfo",
    "ConnectionList",
    "ConnectionState",
    "Consumer",
    "ConsumerInfo",
    "ConsumerState",
    "ConsumerTimeoutError",
    "CountedRange",
    "Death",
    "Difference",
    "DifferenceKind",
    "DiskFullError",
    "Exchange",
    "ExchangeExistsError",
    "ExchangeInUseError",
    "ExchangeNotFoundError",
    "ExchangeType",
    "ExclusiveUseError",
    "ForbiddenByPolicyError",
    "ForcedPromotion",
    "HeaderValue",
    "HeldLease",
    "ImportedDefinitions",
    "LeaseHeldError",
    "LeaseLostError",
    "LimitExceededError",
    "Location",
    "MasterLocator",
    "MasterMove",
    "Message",
    "MessageTooLargeError",
    "MessagesMayBeLostError",
    "Mirrors",
    "NodeInfo",
    "NodeIsUpError",
    "NodeNotFoundError",
    "NodeState",
    "NotAMemberError",
    "NotRingMQError",
    "NotSupportedError",
    "NotSynchronisedError",
    "Numbering",
    "OperatorError",
    "OtherValue",
    "OutcomeUnknownError",
    "Overflow",
    "Policy",
    "PolicyNotFoundError",
    "PositionStat",
    "PositionsError",
    "PositionsGoneError",
    "PositionsHeldError",
    "PositionsMovedError",
    "ProducerForgottenError",
    "Promotion",
    "Properties",
    "ProtocolError",
    "Publisher",
    "QueueExistsError",
    "QueueFullError",
    "QueueInUseError",
    "QueueInfo",
    "QueueLease",
    "QueueLockedError",
    "QueueMode",
    "QueueNotEmptyError",
    "QueueNotFoundError",
    "QueueRules",
    "QueueState",
    "QueueStorage",
    "Reader",
    "ReplicaComparison",
    "ReplicaInfo",
    "RequestError",
    "Resources",
    "RetryableError",
    "RingMQError",
    "SharedPrefetch",
    "StoreFailedError",
    "StoreNumbers",
    "SyncMode",
    "SyncPhase",
    "SyncProgress",
    "TimedOutError",
    "TooFewSynchronisedError",
    "UnavailableError",
    "UnknownDeliveryError",
    "UnroutableError",
    "Vhost",
    "VhostInUseError",
    "VhostNotFoundError",
    "WindowFullError",
    "connect",
    "connect_sync",
]
