"""Whether this node takes calls: not after its store has failed, and not while it stops."""

from __future__ import annotations

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.storage import StoreError
from ringmq_node.storage.errors import DiskFullError


class NodeGate:
    """Open from the start. It closes for good: a failed store stays closed until a restart."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.failure: StoreError | None = None
        self.draining = False

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
