"""The events that a measured process tells while it runs: one JSON object on a line of its stdout.

    {"event": "begin", "phase": P, "total": messages, "at": s}
    {"event": "progress", "done": messages, "at": s, ...}
    {"event": "end", "done": messages, "at": s, ...}
    {"event": "result", "at": s, ...}

`at` is CLOCK_MONOTONIC, which all processes of a machine share. All other fields of an event are
figures of the workload: numbers by name. The client for RabbitMQ tells the same events.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
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
    """The measured process's side: prints events."""

    def __init__(self) -> None:
        self._next_at_s = 0.0
        self._cpu_before_s = 0.0

    def begin(self, phase: str, total: int) -> None:
        self._next_at_s = time.monotonic() + PROGRESS_INTERVAL_S
        self._cpu_before_s = procs.own_cpu_s()
        self._say("begin", phase=phase, total=total)

    def is_due(self) -> bool:
        """Whether `progress` would print: for callers whose figures cost time to gather."""
        return time.monotonic() >= self._next_at_s

    def progress(self, done: int, **figures: float) -> None:
        if self.is_due():
            self._next_at_s = time.monotonic() + PROGRESS_INTERVAL_S
            self._say("progress", done=done, **figures)

    def end(self, done: int, **figures: float) -> None:
        """Adds the CPU time of this process since `begin`, as `cpu_s`."""
        cpu_s = procs.own_cpu_s() - self._cpu_before_s
        self._say("end", done=done, cpu_s=cpu_s, **figures)

    def result(self, **figures: float) -> None:
        self._say("result", **figures)

    @staticmethod
    def _say(event: str, **fields: float | str) -> None:
        print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)
