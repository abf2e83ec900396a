"""The brokers of the other nodes, as this one calls them; the gRPC door implements it.

A forwarded call is never forwarded again. If the master has moved meanwhile, the peer refuses with
NOT_MASTER and the client hears of it: a call that chased a moving master could come back to where
it began.

Errors. Each method raises the peer's `BrokerError` as the peer raised it. If there is no answer,
the reason says whether the call can have had an effect: NO_MASTER means that it surely had none,
and clients repeat any such call. So a call that changes something is sent only on a
connection that stands, and if its answer doesn't come the reason is OUTCOME_UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringmq_node.model.consumers import ConsumerPage
from ringmq_node.model.info import (
    ConnectionInfo,
    LossInfo,
    NodeResources,
    QueueInfo,
    ReplicaInfo,
    SyncInfo,
)
from ringmq_node.model.records import QueueMode
from ringmq_node.queue.run import Run


@dataclass(frozen=True, slots=True)
class Got:
    """The answer to a get: messages, and how many were ready at the master after it."""

    runs: Sequence[Run]
    messages_ready: int


@dataclass(frozen=True, slots=True)
class QueuesAt:
    """What only one node knows of queues: those whose master is there and its quarantined replicas
    (DOWN), and its joining replicas by queue id."""

    queues: list[QueueInfo]
    joining: Mapping[str, SyncInfo]


@dataclass(frozen=True, slots=True)
class DeleteConditions:
    """A delete with a condition is carried out by the master, which alone can check it."""

    if_empty: bool = False
    if_unused: bool = False

    def __bool__(self) -> bool:
        return self.if_empty or self.if_unused


@dataclass(frozen=True, slots=True)
class Promoted:
    """A hand-over that has come about: node names, the new view's epoch, and its duration."""

    old_master: str
    new_master: str
    epoch: int
    took_ms: int
    # The loss that was accepted with it, if one was.
    loss: LossInfo | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Whether an operator accepts that confirmed messages may be lost, and who it is."""

    is_given: bool = False
    operator: str = ""


NOT_ACCEPTED = Acceptance()


class Peers(Protocol):
    """Every method takes the node's address and the time that the call may take, in seconds."""

    async def queue_info(self, address: str, queue: str, *, deadline_s: float) -> QueueInfo: ...
    async def set_mode(
        self, address: str, queue: str, mode: QueueMode, *, deadline_s: float
    ) -> QueueMode: ...
    async def delete(
        self, address: str, queue: str, conditions: DeleteConditions, *, deadline_s: float
    ) -> int: ...
    async def purge(self, address: str, queue: str, *, deadline_s: float) -> int: ...
    async def get(
        self,
        address: str,
        queue: str,
        messages_max: int,
        bytes_max: int,
        *,
        remove: bool,
        deadline_s: float,
    ) -> Got: ...
    async def discard_damaged(self, address: str, queue: str, *, deadline_s: float) -> int: ...
    async def promote(
        self, address: str, queue: str, node: str, acceptance: Acceptance, *, deadline_s: float
    ) -> Promoted:
        """With an acceptance, `address` may be that of `node` instead of the master's."""
        ...

    async def replica_info(self, address: str, queue: str, *, deadline_s: float) -> ReplicaInfo:
        """The replica on that very node."""
        ...

    async def sync_replica(
        self, address: str, queue: str, node: str, *, cancel: bool, deadline_s: float
    ) -> list[str]:
        """Has the replica on that very node fetch what it lacks, or stop fetching."""
        ...

    async def own_queues(
        self, address: str, queues: Sequence[str], *, deadline_s: float
    ) -> QueuesAt:
        """What only that node knows of these queues. At most `LIST_MAX` are asked for."""
        ...

    async def own_connections(
        self, address: str, after: str, connections_max: int, *, deadline_s: float
    ) -> list[ConnectionInfo]:
        """Those of that very node."""
        ...

    async def consumers(
        self, address: str, queue: str, after: int, consumers_max: int, *, deadline_s: float
    ) -> ConsumerPage:
        """Of a queue that is mastered there. At most `LIST_MAX` are asked for."""
        ...

    async def resources(self, address: str, *, deadline_s: float) -> NodeResources: ...
