"""A run: live messages at consecutive positions, and the reader that gives them to the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_base.ranges import Range, RangeSet
from ringmq_base.values import value
from ringmq_node.queue.block import Block


@value
class Run:
    """The messages of `block`, from `first_position` on. They differ in their bodies and
    properties only: all of them are transient or none, redelivered or none, and have come back
    equally often."""

    first_position: int
    block: Block
    transient: bool
    redelivered: bool
    # How often they have come back: see `counts`.
    delivery_count: int = 0

    @property
    def last_position(self) -> int:
        return self.first_position + self.block.count - 1

    @property
    def positions(self) -> Range:
        return self.first_position, self.first_position + self.block.count - 1


class Messages(Protocol):
    """The bodies of a queue, in memory or on disk, as the master's core reads them.

    `bytes_max` limits bodies and properties together; `bytes_in` counts bodies only.
    """

    @property
    def missing(self) -> RangeSet:
        """Live positions whose bodies this replica doesn't have."""
        ...

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> Sequence[Run]:
        """As `read`. The caller will come back for the messages behind these, so they may be
        read ahead."""
        ...

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> Sequence[Run]:
        """Live messages from `first` on, none after `last`. At least one, of any size.

        Ends before the first missing message; empty if that is the first live one."""
        ...

    def bytes_in(self, first: int, last: int) -> int:
        """Bytes of the bodies of the live messages of `first..last` that are not missing."""
        ...
