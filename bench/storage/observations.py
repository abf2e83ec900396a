"""All that a run has seen of a measured process: the events it told, and samples from outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.storage.events import Event


@dataclass(frozen=True, slots=True)
class Sample:
    """The use of memory, CPU and disk at one moment. `cpu_s` counts from the process's begin."""

    at_s: float
    phase: str
    cpu_s: float
    rss_bytes: int
    disk_bytes: int


@dataclass(slots=True)
class Observations:
    """Of one measured process, or of several that ran one after another."""

    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    rss_peak_bytes: int = 0

    def of(self, event: str, phase: str) -> Event:
        """The event of that kind in that phase. Raises `KeyError` if the process told none."""
        for each in self.events:
            if each.event == event and each.phase == phase:
                return each
        raise KeyError(f"no {event!r} of phase {phase!r}")

    def result(self) -> dict[str, float]:
        return next(each.figures for each in self.events if each.event == "result")

    def seconds(self, phase: str) -> float:
        return self.of("end", phase).at_s - self.of("begin", phase).at_s

    def cpu_s(self, phase: str) -> float:
        """Of the phase: as the process told it, else from the samples nearest to its edges."""
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
