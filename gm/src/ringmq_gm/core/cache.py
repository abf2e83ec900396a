"""Copies of the ops that aren't stable yet: a member sends them again when a link or a member
fails, because no other member may have them.

Invariants (`check`): numbers follow each other without a gap, all above `stable`; `size_bytes`
is the sum of the payloads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class CachedOp:
    epoch: int
    number: int
    urgent: bool
    payload: bytes


class OpCache:
    """Consecutive ops, the oldest first."""

    __slots__ = ("_ops", "size_bytes", "stable")

    def __init__(self, stable: int) -> None:
        self._ops: deque[CachedOp] = deque()
        self.size_bytes = 0
        self.stable = stable

    def __len__(self) -> int:
        return len(self._ops)

    def append(self, op: CachedOp) -> None:
        assert op.number == self.stable + len(self._ops) + 1, (op.number, self.stable)
        self._ops.append(op)
        self.size_bytes += len(op.payload)

    def trim(self, stable: int) -> None:
        """Drops the ops up to `stable`, which every member has. If that is ahead of the newest op
        here, the next op to come is `stable` + 1."""
        while self._ops and self._ops[0].number <= stable:
            self.size_bytes -= len(self._ops.popleft().payload)
            self.stable += 1
        if not self._ops and stable > self.stable:
            self.stable = stable

    def after(self, number: int) -> Iterator[CachedOp]:
        """The ops above `number`. Those up to `stable` are gone, so it can't be below that."""
        assert number >= self.stable, (number, self.stable)
        return islice(self._ops, number - self.stable, None)

    def reset(self, stable: int) -> None:
        """Empties it; the next op to come is `stable` + 1."""
        self._ops.clear()
        self.size_bytes = 0
        self.stable = stable

    def check(self) -> None:
        for index, op in enumerate(self._ops):
            assert op.number == self.stable + 1 + index
        assert self.size_bytes == sum(len(op.payload) for op in self._ops)
