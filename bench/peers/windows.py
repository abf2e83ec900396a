"""The window of each queue's publisher, for a client that publishes to many queues at once.

Messages are handed over in frames, which are numbered in the order of their hand-over, whatever
their queue. A frame's latency is that of each of its messages.
"""

from __future__ import annotations

from bench.measure import ClientReport, Point
from bench.stats import client_report


class Windows:
    """How many messages each queue may still take. `frame_messages` is at most the window."""

    def __init__(self, point: Point, frame_messages: int) -> None:
        self._unsent = point.shares()
        self._open = [0] * point.queues
        self._window = point.window
        self._frame_messages = frame_messages
        # (queue, messages, when) of each frame.
        self._handed: list[tuple[int, int, float]] = []
        self._latencies_s: list[float] = []
        self._count = point.count

    @property
    def frames(self) -> int:
        """The number of frames so far, and of the last one: they count from 1."""
        return len(self._handed)

    @property
    def are_done(self) -> bool:
        return len(self._latencies_s) == self._count

    def take(self, queue: int, now: float) -> int:
        """Opens the next frame, and returns its messages; 0 without room for a whole one."""
        count = min(self._frame_messages, self._unsent[queue])
        if not count or self._open[queue] + count > self._window:
            return 0
        self._unsent[queue] -= count
        self._open[queue] += count
        self._handed.append((queue, count, now))
        return count

    def confirm(self, number: int, now: float) -> int:
        """All messages of a frame are confirmed. Returns its queue, which has room again."""
        queue, count, handed = self._handed[number - 1]
        self._open[queue] -= count
        self._latencies_s.extend([now - handed] * count)
        return queue

    def report(self, *, seconds: float, client_cpu_s: float) -> ClientReport:
        return client_report(
            self._latencies_s,
            seconds=seconds,
            acked=len(self._latencies_s),
            client_cpu_s=client_cpu_s,
        )
