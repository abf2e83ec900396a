"""A replica, as its mastership uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from ringmq_gm import Ring, View
from ringmq_node.model.records import QueueRecord
from ringmq_node.queue.ops import Op
from ringmq_node.replica.deletion_holds import DeletionHolds
from ringmq_node.replica.letter_desk import LetterDesk
from ringmq_node.storage import QueueStore, StoreError


class MasterReplica(Protocol):
    """See the module."""

    @property
    def record(self) -> QueueRecord: ...
    @property
    def store(self) -> QueueStore: ...
    @property
    def ring(self) -> Ring: ...
    @property
    def view(self) -> View: ...
    @property
    def letter_desk(self) -> LetterDesk:
        """What dead letters are sent with."""
        ...

    @property
    def deletion_holds(self) -> DeletionHolds: ...
    def multicast(self, op: Op) -> int:
        """Sends the op around the ring, and applies it here; returns its number."""
        ...

    async def wait_taking(self) -> bool:
        """Returns True when the ring takes ops; False if this replica isn't master any more."""
        ...

    def now_ms(self) -> int:
        """The node's clock: milliseconds since 1970."""
        ...

    def unused(self) -> None:
        """The queue has been unused for as long as it may be."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def store_failed(self, error: StoreError) -> None: ...
