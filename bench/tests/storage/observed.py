"""Events and samples of a process that was never run, for tests of the figures."""

from __future__ import annotations

from bench.storage.events import Event
from bench.storage.observations import Sample


def event(kind: str, phase: str, at_s: float, done: int = 0, **figures: float) -> Event:
    return Event(kind, phase, at_s, done, 1000, figures)


def phase(name: str, start_s: float, points: list[tuple[float, int]]) -> list[Event]:
    *middle, last = points
    return [
        event("begin", name, start_s),
        *(event("progress", name, start_s + at, done) for at, done in middle),
        event("end", name, start_s + last[0], last[1]),
    ]


def sample(at_s: float, phase: str, cpu_s: float, rss: int = 0, disk: int = 0) -> Sample:
    return Sample(at_s, phase, cpu_s, rss, disk)
