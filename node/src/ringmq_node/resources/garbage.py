"""The garbage collector of a node with many queues.

A queue is some 300 objects on each of its nodes, and they live as long as the queue. The collector
would look at all of them each time that they have grown by a quarter: at ten thousand queues it
holds the event loop for a second. So it is kept away from them. Objects that are there when a
number of queues has been opened are frozen (`gc.freeze`): no collection looks at them any more.
The same when a number of rings has got new views, which are some 60 objects each: when a node had
died and come back in ten thousand rings, one collection held the loop for 0.4 s of CPU time, which
was 3 s on a loaded machine, and the links of healthy nodes broke.

What that costs: an object that is frozen and later becomes part of a cycle that nobody refers to
stays in memory. Most objects are in no cycle, and go as before. A queue that is closed is cycles,
so once many have been closed, everything is thawed, collected and frozen again. That is one long
piece of work, which the loop's watch tells.
"""

from __future__ import annotations

import gc

# New objects between two collections of the youngest generation; such collections between two of
# the middle one; and those between two of the oldest. So a collection has some 100 000 objects at
# most, which take about 30 ms.
THRESHOLDS = (10_000, 2, 3)
# Queues that are opened between two freezes, and closed before all is collected.
OPENED_MAX = 100
# New views between two freezes.
VIEWS_MAX = 250
CLOSED_MAX = 1000


class Garbage:
    """Counts queues that are opened and closed. One per process."""

    def __init__(
        self,
        *,
        opened_max: int = OPENED_MAX,
        views_max: int = VIEWS_MAX,
        closed_max: int = CLOSED_MAX,
    ) -> None:
        self._opened_max = opened_max
        self._views_max = views_max
        self._closed_max = closed_max
        self._opened = 0
        self._views = 0
        self._closed = 0

    @staticmethod
    def begin() -> None:
        """Sets the collector up for a node's process, before it has opened anything."""
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)

    def opened(self) -> None:
        """A queue was opened."""
        self._opened += 1
        if self._opened >= self._opened_max:
            self._opened = 0
            self._freeze()

    def view_entered(self) -> None:
        """A ring has a new view. What belonged to the one before is in no cycle, and goes."""
        self._views += 1
        if self._views >= self._views_max:
            self._views = 0
            self._freeze()

    def _freeze(self) -> None:
        # Else the garbage of this moment would be kept for good.
        gc.collect(1)
        gc.freeze()

    def closed(self) -> None:
        """A queue was closed."""
        self._closed += 1
        if self._closed >= self._closed_max:
            self._closed = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()
