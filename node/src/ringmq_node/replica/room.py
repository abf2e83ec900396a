"""Whether a queue's ring takes publishes, as its master sees it, and whether some were held."""

from __future__ import annotations

import asyncio

from ringmq_gm import Refusal, Ring
from ringmq_node.model.info import QueueCondition
from ringmq_node.resources.flow import FlowGauge


class RingRoom:
    """Of one mastership. `cached_bytes` makes it a `Publishable` of the node's budget."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # Of publish streams whose batches are held.
        self.flow = FlowGauge(asyncio.get_running_loop().time)

    @property
    def cached_bytes(self) -> int:
        return self._ring.cached_bytes

    @property
    def is_full(self) -> bool:
        """Whether the ring has as many copies as it may have."""
        return self._ring.refusal() is Refusal.FULL

    async def wait(self) -> None:
        """Returns when the ring isn't full, if it takes ops at all. Raises `RingClosedError`."""
        while self.is_full:
            await self._ring.wait_writable()

    @property
    def condition(self) -> QueueCondition:
        if not self._ring.has_quorum:
            return QueueCondition.MINORITY
        if self._ring.refusal() is not None or self.flow.is_shown:
            return QueueCondition.FLOW
        return QueueCondition.RUNNING
