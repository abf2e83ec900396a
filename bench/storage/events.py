"""What a measured process says while it runs: one JSON object on each line of its stdout.

    {"event": "begin", "phase": P, "total": messages, "at": s}
    {"event": "progress", "done": messages, "at": s, ...}
    {"event": "end", "done": messages, "at": s, ...}
    {"event": "result", "at": s, ...}

`at` is CLOCK_MONOTONIC, which all processes of a machine share. What else there is in an
event are figures of the workload: numbers by name. The client for RabbitMQ says the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench import procs

PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Event:
    """`phase` is that of the last `begin`."""

    event: str
    phase: str
    at_s: float
    done: int
    total: int
    figures: dict[str, float]


class EventReader:
    """Makes events of lines, in order."""

    def __init__(self) -> None:
        self._phase = ""
        self._total = 0

    def read(self, line: str) -> Event | None:
        """None for a line that is not an event."""
        if not line.startswith("{"):
            return None
        try:
            said: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            return None
        if "event" not in said:
            return None
        self._phase = said.pop("phase", self._phase)
        self._total = said.pop("total", self._total)
        return Event(
            event=said.pop("event"),
            phase=self._phase,
            at_s=said.pop("at"),
            done=said.pop("done", 0),
            total=self._total,
            figures={
                name: float(value) for name, value in said.items() if isinstance(value, int | float)
            },
        )


class Teller:
    """The side that says them."""

    def __init__(self) -> None:
        self._next_at_s = 0.0
        self._cpu_before_s = 0.0

    def begin(self, phase: str, total: int) -> None:
        self._next_at_s = time.monotonic() + PROGRESS_INTERVAL_S
        self._cpu_before_s = procs.own_cpu_s()
        self._say("begin", phase=phase, total=total)

    def is_due(self) -> bool:
        """Whether `progress` would say something: what it says may cost something."""
        return time.monotonic() >= self._next_at_s

    def progress(self, done: int, **figures: float) -> None:
        if self.is_due():
            self._next_at_s = time.monotonic() + PROGRESS_INTERVAL_S
            self._say("progress", done=done, **figures)

    def end(self, done: int, **figures: float) -> None:
        """With the CPU time of this process since `begin`, as `cpu_s`."""
        cpu_s = procs.own_cpu_s() - self._cpu_before_s
        self._say("end", done=done, cpu_s=cpu_s, **figures)

    def result(self, **figures: float) -> None:
        self._say("result", **figures)

    @staticmethod
    def _say(event: str, **fields: float | str) -> None:
        print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the run saw from outside at one moment. `cpu_s` is since the process began."""

    at_s: float
    phase: str
    cpu_s: float
    rss_bytes: int
    disk_bytes: int


@dataclass(slots=True)
class Record:
    """All that was seen of one measured process, or of several, one after another."""

    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    rss_peak_bytes: int = 0

    def of(self, event: str, phase: str) -> Event:
        """Raises `KeyError` if it was never said."""
        for each in self.events:
            if each.event == event and each.phase == phase:
                return each
        raise KeyError(f"no {event!r} of phase {phase!r}")

    def result(self) -> dict[str, float]:
        return next(each.figures for each in self.events if each.event == "result")

    def seconds(self, phase: str) -> float:
        return self.of("end", phase).at_s - self.of("begin", phase).at_s

    def cpu_s(self, phase: str) -> float:
        """Of the phase: as the process said, else of those that were watched meanwhile."""
        begin, end = self.of("begin", phase), self.of("end", phase)
        if "cpu_s" in end.figures:
            return end.figures["cpu_s"]
        return _nearest(self.samples, end.at_s).cpu_s - _nearest(self.samples, begin.at_s).cpu_s

    def progress(self, phase: str) -> list[tuple[float, int]]:
        """(seconds, messages done) from the begin of a phase to its end."""
        return [
            (each.at_s, each.done)
            for each in self.events
            if each.phase == phase and each.event != "result"
        ]


def _nearest(samples: Iterable[Sample], at_s: float) -> Sample:
    return min(samples, key=lambda sample: abs(sample.at_s - at_s))


def rate_between(progress: list[tuple[float, int]], low: float, high: float) -> float:
    """Messages per second between the shares `low` and `high` of a phase's messages.

    `progress` is (seconds, messages done), both rising, from 0 messages on; between two
    points the rate is taken as even.
    """
    total = progress[-1][1]
    start, stop = _when(progress, low * total), _when(progress, high * total)
    return (high - low) * total / (stop - start)


def _when(progress: list[tuple[float, int]], done: float) -> float:
    before = progress[0]
    for point in progress[1:]:
        if point[1] >= done:
            if point[1] == before[1]:
                return point[0]
            return before[0] + (point[0] - before[0]) * (done - before[1]) / (point[1] - before[1])
        before = point
    return before[0]
