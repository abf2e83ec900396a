"""Whether a sync may be done on the event loop's own thread.

Handing a sync to a thread and hearing of its end costs about as much as the sync of a
small write on a fast disk (two wake-ups of a thread and one of the loop). On an idle
node, where one publisher waits for one small message, that is pure delay. So a round of
one queue and a few KiB is done in place while syncs have lately been quick on average.
A disk that becomes slow holds the loop up for a few syncs, then threads do all the work
until it is quick again: the average goes on with what they report.

Pure: told what happened, asked what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of the newest sync in the mean.
WEIGHT = 1 / 16


@dataclass(slots=True)
class SyncDuration:
    """Bounds: one sync that takes `slow_s / WEIGHT` moves everything to the threads."""

    bytes_max: int
    slow_s: float = 0.001
    # Of the syncs lately; moving, in seconds.
    mean_s: float = 0.0

    def may_block(self, size_bytes: int, queues: int) -> bool:
        """Whether a round of this size may be done in place."""
        return 0 < size_bytes <= self.bytes_max and queues == 1 and self.mean_s < self.slow_s

    def took(self, seconds: float) -> None:
        """How long a round has taken, in place or in threads."""
        self.mean_s += WEIGHT * (seconds - self.mean_s)
