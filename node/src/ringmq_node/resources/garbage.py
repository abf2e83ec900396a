"""The garbage collector of a node with many queues.

A queue is some 300 objects on each of its nodes, and they live as long as the queue. The collector
would look at all of them each time that they have grown by a quarter: at ten thousand queues it
holds the event loop for a second. So it is kept away from them. Objects that are there when a
number of queues has been opened are frozen (`gc.freeze`): no collection looks at them any more.
The same when a number of rings has got new views, which are some 60 objects each: when a node had
died and come back in ten thousand rings, one collection held the loop for 0.4 s of CPU time, which
was 3 s on a loaded machine, and the links of healthy nodes broke. And the same whenever a
collection of all objects that aren't frozen takes long: there may be more of
them next time, and it would look at these again.

The price: an object that is frozen and later becomes part of a cycle that nobody refers to
stays in memory. So a queue that is closed leaves no cycle behind: its objects go when the last
reference to them does (`node/tests/broker/test_closed_queues.py`), and so do those of messages
(`node/tests/broker/test_garbage_of_traffic.py`), of calls and connections
(`wire/tests/test_no_cycles.py`), links (`gm/tests/links/test_no_cycles.py`), and streams
(`node/tests/doors/test_no_cycles.py`). To thaw and collect everything would be one piece of work,
up to 0.1 s long on a slow processor with few queues, and a second with many.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The generation of a collection that looks at all objects but frozen ones.
OLDEST = 2
# New objects between two collections of the youngest generation; such collections between two of
# the middle one; and those between two of the oldest. So a collection has some 36 000 objects more
# than the one before at most, which take about 10 ms; and a freeze looks at 12 000 at most.
THRESHOLDS = (3_000, 2, 3)
# After a collection that has taken so much CPU time, the objects that are left are frozen.
LONG_S = 0.015
# Queues that are opened between two freezes.
OPENED_MAX = 50
# New views between two freezes.
VIEWS_MAX = 125


class LongCollections:
    """Freezes what a long collection has left. One per process."""

    def __init__(self, *, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._began_s = 0.0

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, in whichever thread it runs."""
        if info["generation"] != OLDEST:
            return
        now_s = time.thread_time()
        if phase == "start":
            self._began_s = now_s
        elif now_s - self._began_s >= self._long_s:
            gc.freeze()


class Garbage:
    """Counts queues that are opened, and views. One per process."""

    def __init__(self, *, opened_max: int = OPENED_MAX, views_max: int = VIEWS_MAX) -> None:
        self._opened_max = opened_max
        self._views_max = views_max
        self._opened = 0
        self._views = 0

    @staticmethod
    @contextmanager
    def of_a_node() -> Iterator[None]:
        """Sets the collector up for a node's process, before it has opened anything, and back."""
        thresholds = gc.get_threshold()
        collected = LongCollections().collected
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(collected)
        try:
            yield
        finally:
            gc.callbacks.remove(collected)
            gc.set_threshold(*thresholds)
            gc.unfreeze()

    def opened(self) -> None:
        """A queue was opened."""
        self._opened += 1
        if self._opened >= self._opened_max:
            self._opened = 0
            self._freeze()

    def view_entered(self) -> None:
        """A ring has a new view. The objects of the one before are in no cycle, and go."""
        self._views += 1
        if self._views >= self._views_max:
            self._views = 0
            self._freeze()

    def _freeze(self) -> None:
        # Else the garbage of this moment would be kept for good.
        gc.collect(1)
        gc.freeze()
