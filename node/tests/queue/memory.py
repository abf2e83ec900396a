"""A queue's state and bodies in memory, without blocks, paging or disk: `Messages` for tests."""

from __future__ import annotations

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState


class MemoryQueue:
    """The state, and every body that was ever published, by position."""

    def __init__(self) -> None:
        self.state = ReplicatedState()
        self.bodies: dict[int, bytes] = {}
        # Of those that have any.
        self.properties: dict[int, bytes] = {}
        self.missing = RangeSet()
        # No `read` gives more messages than this.
        self.read_messages_max = 1000

    def append(self, op: Op) -> int:
        """Applies the next op; returns its number."""
        number = self.state.last_number + 1
        self.missing.subtract(self.state.apply(number, op))
        if isinstance(op, Publish):
            self.bodies.update(enumerate(op.block.bodies(), op.first_position))
        return number

    def _live(self, first: int, last: int) -> list[int]:
        parts = self.state.live.intersection(first, last)
        return [position for low, high in parts for position in range(low, high + 1)]

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        return self.read(first, last, bytes_max=bytes_max, messages_max=messages_max)

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        runs: list[Run] = []
        for position in self._live(first, last)[: min(messages_max, self.read_messages_max)]:
            if position in self.missing:
                break
            body = self.bodies[position]
            if runs and len(body) > bytes_max:
                break
            bytes_max -= len(body)
            transient = position in self.state.transient
            redelivered = position in self.state.redelivered
            count = self.state.counts.count_of(position)
            properties = [self.properties[position]] if position in self.properties else []
            block = Block.of([body], properties)
            runs.append(Run(position, block, transient, redelivered, count))
        return runs

    def bytes_in(self, first: int, last: int) -> int:
        there = (at for at in self._live(first, last) if at not in self.missing)
        return sum(len(self.bodies[position]) for position in there)
