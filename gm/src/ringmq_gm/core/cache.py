"""Copies of the ops that aren't stable yet: a member sends them again when a link or a member
fails, because no other member may have them.

The master also says up to where every synchronised member has the ops (`hold`). The ops up to
`held` that are still here are kept for joiners alone.

Invariants (`check`): numbers follow each other without a gap, all above `stable`; `size_bytes`
is the sum of the payloads, and `held_bytes` the sum of those up to `held`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from ringmq_base.values import value

CACHE_BYTES_MAX = 64 * 1024 * 1024
JOINER_BYTES_MAX = 64 * 1024 * 1024


@value
class Budgets:
    """How many bytes of ops a master keeps for its synchronised members, above which it takes no
    more; and how many for joiners alone."""

    cache_bytes_max: int = CACHE_BYTES_MAX
    joiner_bytes_max: int = JOINER_BYTES_MAX


@value
class CachedOp:
    epoch: int
    number: int
    urgent: bool
    payload: bytes


class OpCache:
    """Consecutive ops, the oldest first."""

    __slots__ = ("_ops", "held", "held_bytes", "size_bytes", "stable")

    def __init__(self, stable: int) -> None:
        self._ops: deque[CachedOp] = deque()
        self.size_bytes = 0
        self.stable = stable
        self.held = stable
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._ops)

    def append(self, op: CachedOp) -> None:
        assert op.number == self.stable + len(self._ops) + 1, (op.number, self.stable)
        self._ops.append(op)
        self.size_bytes += len(op.payload)

    def hold(self, number: int) -> None:
        """The ops up to `number`, which is not above the newest one here, are kept for joiners
        alone from now on."""
        ops, first = self._ops, self.stable + 1
        while self.held < number:
            self.held += 1
            self.held_bytes += len(ops[self.held - first].payload)

    def trim(self, stable: int) -> None:
        """Drops the ops up to `stable`. If that is ahead of the newest op here, the next op to come
        is `stable` + 1."""
        while self._ops and self._ops[0].number <= stable:
            size = len(self._ops.popleft().payload)
            self.size_bytes -= size
            self.stable += 1
            if self.stable <= self.held:
                self.held_bytes -= size
        if not self._ops and stable > self.stable:
            self.stable = stable
        if self.held < self.stable:
            self.held = self.stable

    def after(self, number: int) -> Iterator[CachedOp]:
        """The ops above `number`. Those up to `stable` are gone, so it can't be below that."""
        assert number >= self.stable, (number, self.stable)
        return islice(self._ops, number - self.stable, None)

    def reset(self, stable: int) -> None:
        """Empties it; the next op to come is `stable` + 1."""
        self._ops.clear()
        self.size_bytes = self.held_bytes = 0
        self.stable = self.held = stable

    def check(self) -> None:
        for index, op in enumerate(self._ops):
            assert op.number == self.stable + 1 + index
        assert self.size_bytes == sum(len(op.payload) for op in self._ops)
        assert self.stable <= self.held <= self.stable + len(self._ops)
        held = islice(self._ops, self.held - self.stable)
        assert self.held_bytes == sum(len(op.payload) for op in held)
