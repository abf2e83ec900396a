"""The bytes of publishes that are under way on one node, over all of its queues: one budget.

A batch is under way from its arrival at a door until every member of its ring has it and it is on
this node's disk. It is counted three times, as it takes memory in three places:

* at a door, until the ring takes it: it waits for room in the ring, for its turn, or behind
  another one that does;
* in the ring's copies, of the rings that are mastered here, until every member has received it;
* in the store, until a round has written it. The store's bytes of mirrors count as well: the disk
  that they wait for is the same.

While the budget is used up publishers are held: their batches wait at the door, and as the door
stops reading, so does the client. Every ring has its own bound besides (`ring_bytes_max`); without
this one a node with many queues, or with a disk slower than those of its mirrors, would take more
and more.

Nobody is starved. A ring may have at most `SHARE` times as many copies as there are bytes left
(a threshold that falls while the budget fills, after Choudhury and Hahne). So rings whose mirrors
take nothing never have all of it. Otherwise the batches are admitted in the order in which they
came. What is waited for, receipt and sync, needs no publish to go on, so nothing waits in a circle.
Bytes at the doors keep doors from reading, and no batch that is read from going on. A queue has a
share of them, too, by the same rule: publishers of one that takes nothing, for hours if its dead
letters can't leave, are no longer read while those of the others are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ringmq_node.model.flow import BlockReason

SHARE = 4


class Publishable(Protocol):
    """The ring of a queue that is mastered here."""

    @property
    def cached_bytes(self) -> int:
        """Copies that some member hasn't received yet."""
        ...


def in_no_alarm() -> bool:
    """For publishes that are held by any alarm."""
    return False


@dataclass(slots=True, eq=False)
class _Waiter:
    ring: Publishable
    size_bytes: int
    turn: asyncio.Future[None]
    # Whether an alarm doesn't hold it, at this moment.
    passes_alarms: Callable[[], bool]


class PublishBudget:
    """Of one node. Used on the event loop's thread."""

    def __init__(self, limit_bytes: int, used_bytes: Callable[[], int]) -> None:
        """`used_bytes`: in the rings' copies and in the store."""
        self.limit_bytes = limit_bytes
        # Whether the disk is so far behind that other nodes are held back as well.
        self.is_crowded = False
        # Alarms of any node: while there is one, nothing is admitted but what passes them.
        self.alarms: frozenset[BlockReason] = frozenset()
        # Called when they have changed: routed sessions wait for them, too.
        self.on_alarms: Callable[[], None] = lambda: None
        # At the doors.
        self.held_bytes = 0
        self._used_bytes = used_bytes
        # Of waiters that have had their turn and haven't published yet.
        self._granted_bytes = 0
        self._waiters: deque[_Waiter] = deque()
        # Of `held_bytes`, those of each ring that has any.
        self._held_of: dict[Publishable, int] = {}
        # Doors that wait until they may read: of a ring, or for any.
        self._readable: dict[Publishable | None, asyncio.Future[None]] = {}
        self._is_looking = False

    def set_alarms(self, alarms: frozenset[BlockReason]) -> None:
        """Those of any node."""
        self.alarms = alarms
        self.freed()
        self.on_alarms()

    @property
    def under_way_bytes(self) -> int:
        return self._used_bytes() + self.held_bytes

    @property
    def waiting(self) -> int:
        """How many batches are held."""
        return len(self._waiters)

    def admits(self, ring: Publishable, passes_alarms: Callable[[], bool] = in_no_alarm) -> bool:
        """Whether the ring may take a batch at once. `passes_alarms`: whether an alarm doesn't hold
        it, at this moment."""
        return not self._waiters and self._has_room(ring, passes_alarms)

    def _has_room(self, ring: Publishable, passes_alarms: Callable[[], bool]) -> bool:
        if self.is_crowded or (self.alarms and not passes_alarms()):
            return False
        return self._has_share(ring)

    def _has_share(self, ring: Publishable) -> bool:
        left = self.limit_bytes - self._used_bytes() - self._granted_bytes
        return left > 0 and ring.cached_bytes <= SHARE * left

    def reasons(self, ring: Publishable) -> list[BlockReason]:
        """Why the ring may take nothing at the moment. None: others come before it."""
        found = [*self.alarms]
        if self.is_crowded:
            found.append(BlockReason.UNSYNCED)
        if not self._has_share(ring) or not self.is_readable(ring):
            found.append(BlockReason.PUBLISH_BUDGET)
        return found

    async def wait(
        self,
        ring: Publishable,
        size_bytes: int,
        passes_alarms: Callable[[], bool] = in_no_alarm,
    ) -> None:
        """Returns when the ring may take a batch of that size, which the caller holds; the caller
        gives it to the ring before it awaits anything else. `passes_alarms` as in `admits`: it is
        asked again when copies have become fewer."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(ring, size_bytes, turn, passes_alarms)
        self._waiters.append(waiter)
        self.park(ring, size_bytes)
        self.freed()
        try:
            await waiter.turn
        finally:
            self.park(ring, -size_bytes)
            if waiter.turn.done() and not waiter.turn.cancelled():
                # It had its turn, also if its stream has ended just now.
                self._granted_bytes -= size_bytes
            else:
                self._waiters.remove(waiter)
            # The next one; or the batch wasn't published after all.
            self.freed()

    def park(self, ring: Publishable, size_bytes: int) -> None:
        """So many more bytes are at a door until the ring takes them, or fewer."""
        self.held_bytes += size_bytes
        held_bytes = self._held_of.get(ring, 0) + size_bytes
        if held_bytes:
            self._held_of[ring] = held_bytes
        else:
            # Rings end: nothing is kept of one.
            self._held_of.pop(ring, None)
        if size_bytes < 0:
            self.freed()

    @contextmanager
    def holding(self, ring: Publishable, size_bytes: int) -> Iterator[None]:
        """A batch of that size is at a door, and not in `wait`, for as long as the block lasts."""
        self.park(ring, size_bytes)
        try:
            yield
        finally:
            self.park(ring, -size_bytes)

    def is_readable(self, ring: Publishable | None = None) -> bool:
        """Whether a door may read another batch: for that ring, or for queues not known yet.

        The batches at the doors are counted apart: if they took room from the rings, those that
        wait would keep each other out.
        """
        left = self.limit_bytes - self.held_bytes
        return left > 0 and (ring is None or self._held_of.get(ring, 0) <= SHARE * left)

    async def wait_readable(self, ring: Publishable | None = None) -> None:
        """Returns when `is_readable`."""
        while not self.is_readable(ring):
            readable = self._readable.get(ring)
            if readable is None:
                readable = self._readable[ring] = asyncio.get_running_loop().create_future()
            # Shared: a waiter that is cancelled must not cancel it.
            await asyncio.shield(readable)

    def freed(self) -> None:
        """Bytes have become free. Cheap while nobody waits."""
        if (self._waiters or self._readable) and not self._is_looking:
            # Once in a turn of the loop, however many rings are trimmed in it.
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_looking = False
        for ring in [each for each in self._readable if self.is_readable(each)]:
            self._readable.pop(ring).set_result(None)
        # Rings that are over their own share are passed by, and stay where they are in the line.
        for waiter in [*self._waiters]:
            if not waiter.turn.done() and self._has_room(waiter.ring, waiter.passes_alarms):
                self._waiters.remove(waiter)
                self._granted_bytes += waiter.size_bytes
                waiter.turn.set_result(None)
