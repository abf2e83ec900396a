"""One timer of the event loop for the deadlines of many rings.

Deadlines move with nearly every step and are seldom reached. So a ring is looked at again at the
earliest deadline that it ever gave, and re-armed then: a step whose deadline is later costs one
comparison (in `Ring.take`).

A hundred rings with an op every 50 ms have two thousand deadlines in a second. The timer of the
loop is set to whole steps of `STEP_S`, so that rings whose deadlines lie in one step share a call.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from math import ceil

from ringmq_base.pieces import Pieces
from ringmq_base.timer import Timer
from ringmq_gm.core.events import Tick
from ringmq_gm.rings import Ring

# A `Tick` comes by so much later than its deadline. The shortest one is 50 ms.
STEP_S = 0.005


class RingTimers:
    """Sends each ring its `Tick` when it is due."""

    def __init__(self) -> None:
        self._timer = Timer(self._due)
        self._heap: list[tuple[float, int, Ring]] = []
        self._order = count()

    def rearm(self, ring: Ring) -> None:
        """The ring's deadline may have changed."""
        deadline = ring.next_deadline()
        if deadline is not None and (ring.armed_at is None or ring.armed_at > deadline):
            self.arm(ring, deadline)

    def arm(self, ring: Ring, deadline: float) -> None:
        """The ring's deadline is earlier than the moment at which it would be looked at."""
        ring.armed_at = deadline
        heapq.heappush(self._heap, (deadline, next(self._order), ring))
        self._set(deadline)

    def _set(self, deadline: float) -> None:
        self._timer.set_by(ceil(deadline / STEP_S) * STEP_S)

    def cancel(self) -> None:
        self._timer.cancel()
        self._heap.clear()

    def _due(self) -> None:
        now = asyncio.get_running_loop().time()
        # All rings that have lost a member ask for the others at the same moment. Those that are
        # left when this piece is over come in the next turn of the loop.
        pieces = Pieces()
        while self._heap and self._heap[0][0] <= now and not pieces.is_over:
            at, _, ring = heapq.heappop(self._heap)
            # Otherwise the ring was armed for an earlier moment since; this entry is left over.
            if ring.armed_at != at:
                continue
            ring.armed_at = None
            deadline = ring.next_deadline()
            if deadline is not None and deadline <= now:
                ring.step(Tick())
            else:
                self.rearm(ring)
        if self._heap:
            self._set(self._heap[0][0])
