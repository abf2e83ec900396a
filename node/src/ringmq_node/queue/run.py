"""A run: live messages at consecutive positions, as a reader of the queue is given them."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_base.ranges import Range
from ringmq_node.queue.block import Block


@dataclass(frozen=True, slots=True)
class Run:
    """The messages of `block`, from `first_position` on. They differ in their bodies and
    properties only: all of them are transient or none, redelivered or none."""

    first_position: int
    block: Block
    transient: bool
    redelivered: bool

    @property
    def last_position(self) -> int:
        return self.first_position + self.block.count - 1

    @property
    def positions(self) -> Range:
        return self.first_position, self.last_position
