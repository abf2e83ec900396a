"""Whether a queue takes publishes, as its master sees it, and whether some were held.

Its ring has a bound for copies. Its dead letters have one as well (`queue.backlog`), for publishers
alone. Acks pass it, and so do letters of other queues: two queues that dead-letter to each other
would wait for each other.
"""

from __future__ import annotations

import asyncio

from ringmq_gm import Refusal, Ring, RingClosedError
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.info import QueueCondition
from ringmq_node.queue.backlog import LetterBacklog
from ringmq_node.resources.flow import FlowGauge


class QueueRoom:
    """Of one mastership. `cached_bytes` makes it a `Publishable` of the node's budget."""

    def __init__(self, ring: Ring, backlog: LetterBacklog) -> None:
        self._ring = ring
        self._backlog = backlog
        # A queue that refuses holds nobody.
        self.holds_for_letters = True
        # For those that wait until letters have left; None: nobody does.
        self._fewer_letters: asyncio.Future[None] | None = None
        self._is_over = False
        # Of publish streams whose batches are held.
        self.flow = FlowGauge(asyncio.get_running_loop().time)

    @property
    def cached_bytes(self) -> int:
        return self._ring.cached_bytes

    def is_full(self, *, minds_letters: bool = False) -> bool:
        """Whether ops have to wait. `minds_letters`: those of publishers."""
        return self._ring.refusal() is Refusal.FULL or (minds_letters and not self._letters_fit)

    @property
    def _letters_fit(self) -> bool:
        return not self.holds_for_letters or self._backlog.has_room

    async def wait(self, *, minds_letters: bool = False) -> None:
        """Returns when it isn't full, if the ring takes ops at all. Raises `RingClosedError`."""
        while self.is_full(minds_letters=minds_letters):
            if self._ring.refusal() is Refusal.FULL:
                await self._ring.wait_writable()
                continue
            if self._is_over:
                raise RingClosedError("the queue has moved")
            if self._fewer_letters is None:
                self._fewer_letters = asyncio.get_running_loop().create_future()
            # Shared: a waiter that is cancelled must not cancel it.
            await asyncio.shield(self._fewer_letters)

    def look(self) -> None:
        """Letters may have left, or the rules may have changed. Cheap while nobody waits."""
        if self._fewer_letters is not None and (self._is_over or self._letters_fit):
            self._fewer_letters.set_result(None)
            self._fewer_letters = None

    def end(self) -> None:
        self._is_over = True
        self.look()

    def reasons(self, *, minds_letters: bool) -> list[BlockReason]:
        """Why it is full."""
        found = [BlockReason.RING_FULL] if self._ring.refusal() is Refusal.FULL else []
        if minds_letters and not self._letters_fit:
            found.append(BlockReason.DEAD_LETTERS)
        return found

    @property
    def condition(self) -> QueueCondition:
        if not self._ring.has_quorum:
            return QueueCondition.MINORITY
        if self._ring.refusal() is not None or self.flow.is_shown:
            return QueueCondition.FLOW
        return QueueCondition.RUNNING
