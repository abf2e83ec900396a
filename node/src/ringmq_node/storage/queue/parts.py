"""What a queue asks of the store that it is in: narrow protocols, one for each role."""

from __future__ import annotations

from typing import Protocol

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages import MessageStore


class SharedParts(Protocol):
    """The parts of a store that all its queues share."""

    disk: Disk
    limits: StoreLimits
    counters: Counters

    def messages(self, *, transient: bool) -> MessageStore:
        """The message store of the node's transient or persistent messages."""
