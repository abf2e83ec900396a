"""Whether this node takes calls: not after its store has failed, and not while it stops."""

from __future__ import annotations

import asyncio

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.storage import StoreError
from ringmq_node.storage.errors import DiskFullError


class NodeGate:
    """Open from the start. It closes for good: a failed store is opened by another life."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.failure: StoreError | None = None
        self.draining = False
        self._failed = asyncio.Event()

    def fail(self, error: StoreError) -> None:
        self.failure = error
        self._failed.set()

    async def wait_failure(self) -> StoreError:
        """Returns when the store has failed."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    @property
    def is_open(self) -> bool:
        return self.failure is None and not self.draining

    @property
    def failure_reason(self) -> Reason:
        """Why clients are refused after the failure."""
        full = isinstance(self.failure, DiskFullError)
        return Reason.DISK_FULL if full else Reason.STORE_FAILED

    def check(self) -> None:
        """Raises `BrokerError` unless the gate is open."""
        if self.failure is not None:
            raise BrokerError(
                self.failure_reason, f"node {self._node}: {self.failure}", node=self._node
            )
        if self.draining:
            raise BrokerError(
                Reason.DRAINING, f"node {self._node} is shutting down", node=self._node
            )
