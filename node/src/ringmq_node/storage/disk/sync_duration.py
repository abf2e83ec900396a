"""How long syncs take lately, and whether one may be done on the event loop's own thread.

Handing a sync to a thread and hearing of its end costs two wake-ups of a thread and one of the
loop: about as much as the sync of a small write on a fast disk. On an idle node, where one
publisher waits for one small message, that is pure delay. So a round of one sync and a few KiB is
done in place while syncs have lately been quick on average. A disk that becomes slow holds the loop
up for a few syncs. Then threads do all the work, and the mean goes on with their times, until the
disk is quick again.

Pure: it is told the times, and asked.
"""

from __future__ import annotations

from dataclasses import dataclass

# The weight of the newest sync in the mean.
WEIGHT = 1 / 16


@dataclass(slots=True)
class SyncDuration:
    """A moving mean. One sync of `slow_s / WEIGHT` seconds is enough to move all to the threads."""

    bytes_max: int
    slow_s: float = 0.001
    # Moving mean, in seconds.
    mean_s: float = 0.0

    def may_block(self, size_bytes: int, syncs: int) -> bool:
        """Whether a round of this size may be done in place."""
        return 0 < size_bytes <= self.bytes_max and syncs == 1 and self.mean_s < self.slow_s

    def took(self, seconds: float) -> None:
        """A round has taken so many seconds, in place or in threads."""
        self.mean_s += WEIGHT * (seconds - self.mean_s)
