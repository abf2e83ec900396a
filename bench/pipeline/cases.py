"""What is measured: each case with the one that bounds it from above, and with its goal.

A bound leaves out the broker or leaves out Spark, and does the rest of the same work in the same
round. Where a case is near its bound, the part that is ours costs little.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.goals import Goal

# Figures of a run, as `Measured` has them.
RATE, MEGABYTES, MEGABYTES_PER_CPU = "rate_per_s", "mb_per_s", "mb_per_cpu_s"


@dataclass(frozen=True, slots=True)
class Case:
    """`bounds`: names of the cases that are its upper bounds. `stopped`: it reads the directories
    of nodes that are stopped."""

    name: str
    bounds: tuple[str, ...] = ()
    goal: Goal | None = None
    stopped: bool = False


GENERATED, CLIENT = "generated rows, read", "client alone, Arrow"
DISCARDED, PUBLISHED = "table to no queue", "client alone, publish"
TO_PARQUET, BARE_READ = "generated rows to Parquet", "files read"
REPLAY, TASKS_FAIL = "replay", "replay, tasks fail"
READ_ARROW, READ_PROTO = "read, Arrow", "read, protobuf"
INGEST, SCAN = "ingest", "scan"

# In the order in which a round takes them: replays fill the queue that is read and then drained.
CASES = (
    Case(PUBLISHED),
    Case(DISCARDED),
    Case(REPLAY, (DISCARDED, PUBLISHED), Goal(RATE, at_least=50_000)),
    Case(TASKS_FAIL),
    Case(GENERATED),
    Case(CLIENT),
    Case(READ_ARROW, (GENERATED, CLIENT), Goal(RATE, at_least=500_000)),
    Case(READ_PROTO, (GENERATED, CLIENT), Goal(RATE, at_least=300_000)),
    Case(TO_PARQUET),
    Case(INGEST, (TO_PARQUET,), Goal(MEGABYTES, at_least=50)),
    Case(BARE_READ, stopped=True),
    Case(SCAN, (BARE_READ,), Goal(MEGABYTES_PER_CPU, at_least=200), stopped=True),
)
