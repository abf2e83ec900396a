"""Whether this node takes calls: not after its store has failed, and not while it stops."""

from __future__ import annotations

import asyncio
import logging

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.storage import StoreError
from ringmq_node.storage.errors import DiskFullError, DiskHangsError

logger = logging.getLogger(__name__)


class NodeGate:
    """Open from the start. It closes for good: a failed store is opened by another life."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.failure: StoreError | None = None
        self.draining = False
        self._failed = asyncio.Event()

    def fail(self, error: StoreError) -> bool:
        """Returns whether this is the first failure. Of later ones only a disk that hangs counts:
        people are told to make room for a full one, and that doesn't help any more."""
        is_first = self.failure is None
        hangs = isinstance(error, DiskHangsError) and not isinstance(self.failure, DiskHangsError)
        if is_first or hangs:
            self.failure = error
        if hangs and not is_first:
            logger.critical("the store of node %s: %s", self._node, error)
        self._failed.set()
        return is_first

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
