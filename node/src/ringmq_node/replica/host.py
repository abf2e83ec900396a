"""The node's side of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ringmq_node.replica.fetching import Sources
from ringmq_node.replica.letter_desk import LetterDesk
from ringmq_node.replica.remembering import Clock
from ringmq_node.replica.set_asides import SetAsides
from ringmq_node.replica.turns import CatchUpTurns, TakeOverTurns
from ringmq_node.storage import QueueStore, StoreError

# The replica.
R = TypeVar("R", contravariant=True)


class ReplicaHost(Clock, Protocol[R]):
    """The node's side of a replica."""

    @property
    def sources(self) -> Sources: ...
    @property
    def catch_up_turns(self) -> CatchUpTurns: ...
    @property
    def take_over_turns(self) -> TakeOverTurns: ...
    @property
    def set_asides(self) -> SetAsides: ...
    @property
    def letter_desk(self) -> LetterDesk: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task whose failure is the node's."""
        ...

    def store_failed(self, error: StoreError) -> None:
        """The store can't be trusted any more; the node leaves its rings."""
        ...

    def replica_failed(self, replica: R, reason: str) -> None:
        """This replica can't be trusted any more; the node goes on without it."""
        ...

    def mark_whole(self, store: QueueStore) -> None:
        """The ring counts this replica as synchronised."""
        ...

    async def sync_store(self) -> None:
        """Returns when everything that the store was given before is on disk."""
        ...

    def view_changed(self, replica: R) -> None:
        """The replica has entered a view."""
        ...

    def queue_unused(self, replica: R) -> None:
        """The replica, a master, says that its queue has been unused for as long as it may be."""
        ...
