"""The time-outs of one connection. Pure.

`handshake` until the peer's first SETTINGS, `settings` until it acknowledges ours, `keepalive` from
the last input to a PING, `ping` from a PING to its answer, `idle` without calls, `goaway` from the
first GOAWAY of a shutdown to the second. Deadlines of calls are apart: there are many of them.
"""

from __future__ import annotations

import heapq
from enum import Enum

from ringmq_wire.streams import WireStream


class Timeout(Enum):
    HANDSHAKE = "handshake"
    SETTINGS = "acknowledgement of SETTINGS"
    KEEPALIVE = "keepalive"
    PING = "answer to a PING"
    IDLE = "idle"
    GOAWAY = "goaway"

    # By identity: that of `Enum` is a function in Python, and one is started for each input.
    __hash__ = object.__hash__


class ConnectionClocks:
    """When each of them runs out; what isn't there doesn't run."""

    def __init__(self) -> None:
        self._due: dict[Timeout, float] = {}
        # (deadline, stream id); a call that has ended stays until its moment, or until too many do.
        self._deadlines: list[tuple[float, int]] = []

    def start(self, timeout: Timeout, at: float) -> None:
        self._due[timeout] = at

    def stop(self, timeout: Timeout) -> None:
        self._due.pop(timeout, None)

    def runs(self, timeout: Timeout) -> bool:
        return timeout in self._due

    def watch(self, stream: WireStream, streams: dict[int, WireStream]) -> None:
        """The stream's deadline is looked at from now on."""
        assert stream.deadline is not None
        heapq.heappush(self._deadlines, (stream.deadline, stream.id))
        # Calls that end long before their deadlines would fill the heap.
        if len(self._deadlines) > 64 + 2 * len(streams):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in streams]
            heapq.heapify(self._deadlines)

    def next_deadline(self) -> float | None:
        times = list(self._due.values())
        if self._deadlines:
            times.append(self._deadlines[0][0])
        return min(times, default=None)

    def ran_out(self, now: float) -> tuple[list[Timeout], list[int]]:
        """The time-outs, and the streams' deadlines, that have passed. They are told once."""
        timeouts = [timeout for timeout, at in self._due.items() if now >= at]
        for timeout in timeouts:
            del self._due[timeout]
        streams = []
        while self._deadlines and now >= self._deadlines[0][0]:
            streams.append(heapq.heappop(self._deadlines)[1])
        return timeouts, streams
