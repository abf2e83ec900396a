"""What is measured: each case with the one that bounds it from above, and with its goal.

A bound leaves out the broker or leaves out Spark, and does the rest of the same work in the same
round. Where a case is near its bound, the part that is ours costs little.

A *row* is what a run can be asked for by itself. The rows `sizes` and `executors` take cases of
other rows, once at each setting: how the cost of a message grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.goals import Goal

# Figures of a run, as `Measured` has them.
RATE, MEGABYTES, MEGABYTES_PER_CPU = "rate_per_s", "mb_per_s", "mb_per_cpu_s"
MESSAGES, DUPLICATES = "messages", "duplicates"

# In the order of a run: what takes longest comes last, for a run that is interrupted.
REPLAYS, READS, INGESTS, SCANS = "replay", "read", "ingest", "scan"
SIZES, EXECUTORS, VERIFIES = "sizes", "executors", "verify"
ROWS = (REPLAYS, READS, INGESTS, SCANS, VERIFIES, EXECUTORS, SIZES)


@dataclass(frozen=True, slots=True)
class Case:
    """`bounds`: names of the cases that are its upper bounds. `stopped`: it reads the directories
    of nodes that are stopped."""

    name: str
    row: str
    bounds: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    stopped: bool = False


GENERATED, CLIENT = "generated rows, read", "client alone, Arrow"
DISCARDED, PUBLISHED = "table to no queue", "client alone, publish"
TO_PARQUET, BARE_READ = "generated rows to Parquet", "files read"
REPLAY, TASKS_FAIL = "replay", "replay, tasks fail"
READ_ARROW, READ_PROTO = "read, Arrow", "read, protobuf"
INGEST, SCAN = "ingest", "scan"
PARSED, VERIFY = "history parsed", "verify, heap of 3 GB"

EVENTS = 30_000_000
NO_DUPLICATES = Goal(DUPLICATES, at_most=0)

# In the order in which a round takes them: replays fill the queue that is read and then drained.
CASES = (
    Case(PUBLISHED, REPLAYS),
    Case(DISCARDED, REPLAYS),
    Case(REPLAY, REPLAYS, (DISCARDED, PUBLISHED), (Goal(RATE, at_least=50_000), NO_DUPLICATES)),
    Case(TASKS_FAIL, REPLAYS, goals=(NO_DUPLICATES,)),
    Case(GENERATED, READS),
    Case(CLIENT, READS),
    Case(READ_ARROW, READS, (GENERATED, CLIENT), (Goal(RATE, at_least=500_000),)),
    Case(READ_PROTO, READS, (GENERATED, CLIENT), (Goal(RATE, at_least=300_000),)),
    Case(TO_PARQUET, INGESTS),
    Case(INGEST, INGESTS, (TO_PARQUET,), (Goal(MEGABYTES, at_least=50),)),
    Case(BARE_READ, SCANS, stopped=True),
    Case(SCAN, SCANS, (BARE_READ,), (Goal(MEGABYTES, at_least=200),), stopped=True),
    Case(PARSED, VERIFIES),
    Case(VERIFY, VERIFIES, (PARSED,), (Goal(MESSAGES, at_least=EVENTS),)),
)

# The queue that was replayed is read, found in a store, and drained in the end.
SIZES_CASES = (REPLAY, GENERATED, READ_ARROW, READ_PROTO, BARE_READ, SCAN, INGEST)
EXECUTORS_CASES = (REPLAY, GENERATED, READ_ARROW, READ_PROTO, TO_PARQUET, INGEST)


def cases_of(rows: Iterable[str]) -> list[Case]:
    """Without those that have a setting."""
    wanted = set(rows)
    return [case for case in CASES if case.row in wanted]


def needed(rows: Iterable[str]) -> set[str]:
    """The cases that fill the queues and stores that these rows read."""
    wanted, found = set(rows), set()
    if {READS, INGESTS} & wanted:
        found.add(REPLAY)
    if SCANS in wanted:
        found.add(PUBLISHED)
    return found
