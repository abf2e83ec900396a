"""Events that concern all rings of a node: a link went down, leases have run out.

A node may host ten thousand rings, and each takes some 50 us for such an event. So the rings are
told in pieces, and frames, heartbeats and clients get their turns in between.

No ring may notice that it was told late. A link that comes back is announced by `LinkUp`, and the
ring has to hear of it before it gets a frame of the new link, or sends one on it. So a ring that is
about to take any other event takes the broadcasts that it lacks first (`Ring.step`).

Invariant: every ring takes every event that was added since it was opened, once, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from ringmq_base.pieces import Pieces
from ringmq_gm.core.events import Event
from ringmq_gm.rings import Ring


class Broadcasts:
    """Of one group. `rings`: those that are open now."""

    def __init__(self, rings: Mapping[str, Ring]) -> None:
        # How many events have been added so far.
        self.count = 0
        self._rings = rings
        # The last ones of these, as far as some ring may lack them.
        self._events: list[Event] = []
        self._left: Iterator[Ring] | None = None

    def add(self, event: Event) -> None:
        """All rings that are open now are told, from this turn of the loop on."""
        self.count += 1
        self._events.append(event)
        # Rings that have been gone over lack the new event: begin again with a look at all.
        if self._left is None:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._left = iter([*self._rings.values()])

    def catch_up(self, ring: Ring) -> None:
        """Tells the ring what it lacks."""
        while ring.broadcasts_taken < self.count:
            event = self._events[ring.broadcasts_taken - self.count]
            # Before the step, which may come back here.
            ring.broadcasts_taken += 1
            ring.take(event)

    def _go_on(self) -> None:
        """One piece of telling the rings."""
        pieces = Pieces()
        # Not a `for` over the iterator: an event that is added on the way replaces it.
        while self._left is not None:
            ring = next(self._left, None)
            if ring is None:
                self._left = None
                # All rings have all events.
                self._events.clear()
                return
            if not ring.closed:
                self.catch_up(ring)
            if pieces.is_over:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
