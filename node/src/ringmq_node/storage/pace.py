"""Whether a sync may be done on the event loop's own thread.

Handing a sync to a thread and hearing of its end costs about as much as the sync of a
small write on a fast disk (two wake-ups of a thread and one of the loop). On an idle
node, where one publisher waits for one small message, that is pure delay. So a round of
one queue and a few KiB is done in place, as long as the disk has shown that it answers
at once. One answer that took long, and threads do all the work for a while: the loop
must not stand still for a disk that has become slow.

Pure: told what happened, asked what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Bounds: a slow disk holds the loop up once per `pause_s`, for one sync."""

    bytes_max: int
    slow_s: float = 0.002
    pause_s: float = 1.0
    _not_before: float = 0.0

    def may_block(self, size_bytes: int, queues: int, *, now: float) -> bool:
        """Whether a round of this size may be done in place."""
        return 0 < size_bytes <= self.bytes_max and queues == 1 and now >= self._not_before

    def took(self, seconds: float, *, now: float) -> None:
        """How long a sync in place has taken."""
        if seconds > self.slow_s:
            self._not_before = now + self.pause_s
