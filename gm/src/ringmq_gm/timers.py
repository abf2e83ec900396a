"""One timer of the event loop for the deadlines of many rings.

Deadlines move with nearly every step and are seldom reached. So a ring is looked at again at the
earliest deadline that it ever gave, and re-armed then: a step whose deadline is later costs one
comparison.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from ringmq_base.pieces import Pieces
from ringmq_base.timer import Timer
from ringmq_gm.core.events import Tick
from ringmq_gm.rings import Ring


class RingTimers:
    """Sends each ring its `Tick` when it is due."""

    def __init__(self) -> None:
        self._timer = Timer(self._due)
        self._heap: list[tuple[float, int, Ring]] = []
        self._order = count()

    def rearm(self, ring: Ring) -> None:
        """The ring's deadline may have changed."""
        deadline = ring.next_deadline()
        if deadline is None or (ring.armed_at is not None and ring.armed_at <= deadline):
            return
        ring.armed_at = deadline
        heapq.heappush(self._heap, (deadline, next(self._order), ring))
        self._timer.set_by(deadline)

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
            self._timer.set_by(self._heap[0][0])
