"""Why publishers are held, in words that every door can translate."""

from __future__ import annotations

from enum import Enum, auto


class BlockReason(Enum):
    """Names are those of `ringmq.v1.BlockReason`, without its prefix."""

    # Alarms: of any node, for the publishers of all nodes.
    MEMORY = auto()
    DISK = auto()
    # Of the master's node, for all of its queues: publishes that are under way, and bytes that its
    # disk hasn't taken.
    PUBLISH_BUDGET = auto()
    UNSYNCED = auto()
    # Of one queue: some member of its ring hasn't received what the others have.
    RING_FULL = auto()
    # Of one queue: its dead letters wait for a target that takes none.
    DEAD_LETTERS = auto()

    @property
    def text(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


ALARMS = frozenset({BlockReason.MEMORY, BlockReason.DISK})
