"""The messages that a test saw delivered, noted for the checker of histories.

`cluster-tests/support/history/checker.py` says what is judged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from history.checker import check
from history.records import Ack, Deliver, Drained, Record, Run, merged

from ringmq import Batch


class Recorded(Protocol):
    """Has records of its own: a publisher."""

    records: list[Record]


@dataclass(slots=True)
class Delivered:
    """Everything that consumers of one queue were given, noted as it came."""

    # (tag, number) -> the positions at which it was seen: one, or it was enqueued twice.
    positions: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    # position -> the (tag, number) of the message there.
    at: dict[int, tuple[str, int]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def note(self, consumer: str, batch: Batch) -> None:
        """A batch has come. Consumers are those that never requeue by themselves."""
        runs = runs_of(batch)
        self.records.append(Deliver(time.monotonic(), "", consumer, batch.generation, runs))
        for run in runs:
            for offset in range(run.count):
                key = (run.tag, run.number + offset)
                self.at.setdefault(run.position + offset, key)
                self.positions.setdefault(key, set()).add(run.position + offset)

    def acked(self, consumer: str, batch: Batch, *, safe: bool) -> None:
        """The batch has been acked. Only a safe ack says that it never comes again."""
        if safe:
            ranges = tuple((first, last) for first, last in batch.positions)
            self.records.append(Ack(time.monotonic(), "", consumer, ranges))

    def merge(self, other: Delivered) -> None:
        """Adds the deliveries that another test client saw from the same queue."""
        for position, key in other.at.items():
            self.at.setdefault(position, key)
        for key, seen in other.positions.items():
            self.positions.setdefault(key, set()).update(seen)
        self.records = merged(self.records, other.records)

    def judge(self, *loads: Recorded) -> None:
        """`AssertionError` unless all that is promised of these publishers holds. All that they
        were confirmed has to have been delivered."""
        seen = merged(*(load.records for load in loads), self.records)
        check([*seen, Drained(time.monotonic(), "")], strangers=True).demand()


def runs_of(batch: Batch) -> tuple[Run, ...]:
    """The messages of a batch, neighbours that follow each other together."""
    runs: list[Run] = []
    for part in batch.parts:
        runs += _runs(part.first, part.bodies, part.redelivered)
    return tuple(runs)


def _runs(position: int, bodies: Sequence[bytes], redelivered: bool) -> list[Run]:
    runs: list[Run] = []
    begin, (tag, first) = 0, parse_body(bodies[0])
    for index in range(1, len(bodies) + 1):
        here = parse_body(bodies[index]) if index < len(bodies) else None
        if here != (tag, first + index - begin):
            runs.append(Run(position + begin, tag, first, index - begin, redelivered))
            if here is not None:
                begin, (tag, first) = index, here
    return runs


def body_of(tag: str, number: int, size_bytes: int) -> bytes:
    return f"{tag} {number:09d} ".encode().ljust(size_bytes, b".")


def parse_body(body: bytes) -> tuple[str, int]:
    tag, number, _ = body.split(b" ", 2)
    return tag.decode(), int(number)
