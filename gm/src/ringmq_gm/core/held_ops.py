"""The ops that one member holds: how far it has come, and the copies that it can send again.

Invariants (`check`): the cache holds exactly the ops from `stable` + 1 to `last`, and no more
is confirmed, or known to be safe, than `last`. While its member is in the ring, `last` only rises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ringmq_gm.core.cache import CachedOp, OpCache
from ringmq_gm.core.frames import Mark


@dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """How far a log goes. Ordered: the later epoch wins, then the higher number."""

    epoch: int = 0
    number: int = 0


class HeldOps:
    """Made from the end of the log that the application has on disk."""

    __slots__ = (
        "cache",
        "complete",
        "confirmed",
        "last",
        "last_epoch",
        "on_disk",
        "ring",
        "safe",
        "urgent",
    )

    def __init__(self, ring: str, log: LogEnd) -> None:
        self.ring = ring
        self.last = log.number
        # The epoch in which the op `last` was numbered. A joiner is told it, as logs are compared
        # by it.
        self.last_epoch = log.epoch
        # As the application reports it.
        self.on_disk = log.number
        # Whether nothing from before this member joined is missing.
        self.complete = True
        # The last op whose publisher waits for "received", not for "on disk".
        self.urgent = 0
        # The watermarks that this member has given as master: received, persisted.
        self.confirmed = (0, 0)
        # Up to this op all are known to be confirmed as on disk, by this master or an earlier one.
        # The master is ahead of the mirrors, who hear of it with the next frame.
        self.safe = 0
        self.cache = OpCache(log.number)

    @property
    def end(self) -> LogEnd:
        return LogEnd(self.last_epoch, self.last)

    @property
    def stable(self) -> int:
        return self.cache.stable

    def mark(self) -> Mark:
        return Mark(self.last, min(self.on_disk, self.last), self.complete)

    def is_at(self, mark: Mark) -> bool:
        """Whether `mark` is this member's now."""
        return (
            mark.received == self.last
            and mark.persisted == min(self.on_disk, self.last)
            and mark.complete == self.complete
        )

    def append(self, op: CachedOp) -> None:
        """Takes the next op."""
        assert op.number == self.last + 1, (op.number, self.last)
        self.cache.append(op)
        self.last = op.number
        self.last_epoch = op.epoch
        if op.urgent:
            self.urgent = op.number

    def trim(self, stable: int) -> None:
        """Drops the copies of ops up to `stable`, as far as this member has them itself.

        A frame may say more than that: its sender counts the ops that travel behind it.
        """
        if stable > self.cache.stable:
            self.cache.trim(min(stable, self.last))

    def learn_safe(self, safe: int) -> None:
        """Members before this one, and the master, know that the ops up to `safe` are confirmed."""
        if safe > self.safe:
            # A joiner may hear of ops that it hasn't received.
            self.safe = max(self.safe, min(safe, self.last))

    def after(self, number: int) -> Iterator[CachedOp]:
        return self.cache.after(number)

    def begin_after(self, end: LogEnd) -> None:
        """This member has joined: the ring sends the ops after `end`, the rest is fetched."""
        self.last, self.last_epoch = end.number, end.epoch
        # The log from before joining will be cut; nothing on disk counts until `CaughtUp`.
        self.on_disk, self.complete = 0, False
        self.urgent, self.confirmed, self.safe = 0, (0, 0), 0
        self.cache.reset(end.number)

    def drop_copies(self) -> None:
        """Out of the ring: nobody will ask this member for ops."""
        self.cache.reset(self.last)

    def check(self) -> None:
        self.cache.check()
        assert self.stable + len(self.cache) == self.last
        assert max(*self.confirmed, self.safe) <= self.last
