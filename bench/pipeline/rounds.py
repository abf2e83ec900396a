"""What a run does for its rows: rounds of every case, or the cases at each setting."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench.measure import BenchError
from bench.pipeline import cases
from bench.pipeline.cases import CASES, EXECUTORS_CASES, SIZES_CASES, cases_of, needed
from bench.pipeline.histories import judge, parse_alone, write_history
from bench.pipeline.measured import Done, Measured, Which, measure
from bench.pipeline.messages import write_table
from bench.pipeline.notes import Notes
from bench.pipeline.place import QUEUE, Place, embedded, executors, place_for, session
from bench.pipeline.work import FAILING_QUEUE, PUBLISHED_QUEUE, WORK

GIGA = 1e9
# Of a warm-up: Spark compiles its queries, and the nodes import pyarrow.
WARM_UP_SHARE = 20
WARM_UP_MAX = 50_000
# Beside the replicas: the table that is replayed, and what is ingested; and what all that takes
# beyond its bodies.
OTHER_COPIES, ROOM_SHARE = 2, 1.2
_STOPPED = {case.name for case in CASES if case.stopped}


def run_rows(parsed: argparse.Namespace, folder: Path, notes: Notes) -> None:
    """One session of Spark at a time, and one cluster. Parts that fail are noted."""
    by_rounds = [row for row in parsed.rows if cases_of([row]) and row != cases.VERIFIES]
    local = embedded(parsed.cores)
    if by_rounds:
        with notes.part(by_rounds, "the rounds"), session(folder, local) as spark:
            _rounds(parsed, by_rounds, folder / "rounds", spark, notes)
        notes.complete(by_rounds)
    if cases.VERIFIES in parsed.rows:
        with notes.part([cases.VERIFIES], "verify"), session(folder, local) as spark:
            _verifies(parsed, folder / "verify", spark, notes)
        notes.complete([cases.VERIFIES])
    if cases.EXECUTORS in parsed.rows:
        for count in parsed.executors:
            setting = f"{count} executor" + ("s" if count > 1 else "")
            with (
                notes.part([cases.EXECUTORS], setting),
                session(folder, executors(count)) as spark,
            ):
                which = Which(cases.EXECUTORS, "", 1, setting)
                _at_setting(parsed, folder, spark, parsed.count, count, which, notes)
        notes.complete([cases.EXECUTORS])
    if cases.SIZES in parsed.rows:
        for size_gb in parsed.sizes_gb:
            setting, count = f"{size_gb:g} GB", round(size_gb * GIGA / parsed.size)
            with notes.part([cases.SIZES], setting), session(folder, local) as spark:
                which = Which(cases.SIZES, "", 1, setting)
                _at_setting(parsed, folder, spark, count, parsed.cores, which, notes)
        notes.complete([cases.SIZES])


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder for the block: the next one has the disk for itself."""
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def warm_up_count(count: int) -> int:
    return min(max(1, count // WARM_UP_SHARE), WARM_UP_MAX)


# --- by rounds ---


def _rounds(
    parsed: argparse.Namespace, rows: Sequence[str], folder: Path, spark: SparkSession, notes: Notes
) -> None:
    notes.say("writing the table, starting the nodes")
    sizes = {"count": parsed.count, "size": parsed.size}
    with (
        _emptied(folder),
        place_for(folder, spark, nodes=parsed.nodes, tasks=parsed.cores, **sizes) as place,
    ):
        notes.say("warming up")
        with _few_messages(place):
            _round(place, rows, 0, notes)
        for number in range(1, parsed.rounds + 1):
            # The last round's messages stay in the stores.
            _round(place, rows, number, notes, keep=number == parsed.rounds)
        if any(case.stopped for case in cases_of(rows)):
            place.stop_nodes()
            # The first one warms up.
            for number in range(parsed.rounds + 1):
                _stopped_round(place, number, notes)


@contextmanager
def _few_messages(place: Place) -> Iterator[None]:
    """For a warm-up. The place itself changes: a copy would keep a client that is closed when the
    nodes are stopped."""
    table, count = place.table, place.count
    place.table, place.count = place.folder / "warm-up", warm_up_count(count)
    write_table(place.table, place.count, place.size)
    yield
    shutil.rmtree(place.table)
    place.table, place.count = table, count


def _round(
    place: Place, rows: Sequence[str], number: int, notes: Notes, *, keep: bool = False
) -> None:
    """Without the rows of which a case has failed before. `keep`: the queue that the scan finds in
    the stores."""
    for case in CASES:
        left = [row for row in rows if row not in notes.failed]
        wanting = [row for row in left if row == case.row or case.name in needed([row])]
        if wanting and not case.stopped:
            with notes.part(wanting, f"{case.name}, round {number}"):
                measured = _measure(place, case.name, Which(case.row, case.name, number))
                if number and case.row in rows:
                    notes.take(measured)
    _delete_queues(place, () if keep else (PUBLISHED_QUEUE,))


def _delete_queues(place: Place, more: Sequence[str] = ()) -> None:
    there = {each.queue for each in place.client.queues()}
    for queue in (QUEUE, FAILING_QUEUE, *more):
        if queue in there:
            place.client.delete_queue(queue)


def _stopped_round(place: Place, number: int, notes: Notes) -> None:
    for case in CASES:
        if case.stopped and case.row not in notes.failed:
            measured = _measure(place, case.name, Which(case.row, case.name, number))
            if number:
                notes.take(measured)


def _measure(place: Place, name: str, which: Which) -> Measured:
    return measure(
        which,
        lambda: WORK[name](place),
        message_bytes=place.size,
        pids=place.pids,
        # Some of the files only.
        wanted=None if name == cases.TASKS_FAIL else place.count,
    )


# --- at settings ---


def _at_setting(
    parsed: argparse.Namespace,
    folder: Path,
    spark: SparkSession,
    count: int,
    tasks: int,
    which: Which,
    notes: Notes,
) -> None:
    """Once, in a cluster of its own. Raises `BenchError` if the disk has no room for it."""
    check_room(shutil.disk_usage(folder).free, count * parsed.size, parsed.nodes)
    notes.say(f"{which.setting}: writing the table, starting the nodes")
    with (
        _emptied(folder / which.row) as place_folder,
        place_for(
            place_folder, spark, nodes=parsed.nodes, count=count, size=parsed.size, tasks=tasks
        ) as place,
    ):
        notes.say(f"{which.setting}: warming up")
        with _few_messages(place):
            _each_case(place, replace(which, round=0), notes)
        _each_case(place, which, notes)


def check_room(free: int, bodies: int, nodes: int) -> None:
    """Raises `BenchError`. `bodies`: bytes of all bodies, once."""
    needed = bodies * (nodes + OTHER_COPIES) * ROOM_SHARE
    if free < needed:
        raise BenchError(f"it needs {needed / GIGA:.1f} GB of disk, and {free / GIGA:.1f} are free")


def _each_case(place: Place, which: Which, notes: Notes) -> None:
    """Nodes are stopped for the cases that read their directories, and started again."""
    for name in SIZES_CASES if which.row == cases.SIZES else EXECUTORS_CASES:
        if name in _STOPPED and place.pids:
            place.stop_nodes()
        elif name not in _STOPPED and not place.pids:
            place.start_nodes()
        if which.round:
            notes.say(f"{name}, {which.setting}: begins")
        measured = _measure(place, name, replace(which, case=name))
        if which.round:
            notes.take(measured)
    _delete_queues(place)


# --- histories ---


def _verifies(parsed: argparse.Namespace, folder: Path, spark: SparkSession, notes: Notes) -> None:
    notes.say(f"writing a history of {parsed.events} events")
    with _emptied(folder):
        path = folder / "history.jsonl"
        messages = write_history(path, parsed.events)
        works: dict[str, partial[Done]] = {
            cases.PARSED: partial(parse_alone, spark, path, messages),
            cases.VERIFY: partial(judge, path, folder / "spark", embedded(parsed.cores), messages),
        }
        for name, work in works.items():
            notes.say(f"{name}: begins")
            which = Which(cases.VERIFIES, name, 1)
            message_bytes = path.stat().st_size / parsed.events
            notes.take(measure(which, work, message_bytes=message_bytes))
