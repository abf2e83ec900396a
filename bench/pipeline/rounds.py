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

from bench.comparison import Say
from bench.pipeline import cases
from bench.pipeline.cases import CASES, EXECUTORS_CASES, SIZES_CASES, Case, cases_of, needed
from bench.pipeline.histories import judge, parse_alone, write_history
from bench.pipeline.measured import Done, Measured, Which, measure
from bench.pipeline.messages import write_table
from bench.pipeline.place import QUEUE, Place, embedded, executors, place_for, session
from bench.pipeline.work import FAILING_QUEUE, PUBLISHED_QUEUE, WORK

GIGA = 1e9
# Of a warm-up: Spark compiles its queries, and the nodes import pyarrow.
WARM_UP_SHARE = 20
WARM_UP_MAX = 50_000
_STOPPED = {case.name for case in CASES if case.stopped}


def run_rows(parsed: argparse.Namespace, folder: Path, say: Say) -> list[Measured]:
    """One session of Spark at a time, and one cluster."""
    runs: list[Measured] = []
    rows = set(parsed.rows)
    with session(folder, embedded(parsed.cores)) as spark:
        if by_rounds := [row for row in parsed.rows if cases_of([row]) and row != cases.VERIFIES]:
            runs += _rounds(parsed, by_rounds, folder / "rounds", spark, say)
        if cases.SIZES in rows:
            runs += _sizes(parsed, folder, spark, say)
        if cases.VERIFIES in rows:
            runs += _verifies(parsed, folder / "verify", spark, say)
    if cases.EXECUTORS in rows:
        for count in parsed.executors:
            runs += _executors(parsed, count, folder, say)
    return runs


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
    parsed: argparse.Namespace, rows: Sequence[str], folder: Path, spark: SparkSession, say: Say
) -> list[Measured]:
    say("writing the table, starting the nodes")
    sizes = {"count": parsed.count, "size": parsed.size}
    with (
        _emptied(folder),
        place_for(folder, spark, nodes=parsed.nodes, tasks=parsed.cores, **sizes) as place,
    ):
        say("warming up")
        with _few_messages(place):
            _round(place, rows, 0, lambda _text: None)
        runs: list[Measured] = []
        for number in range(1, parsed.rounds + 1):
            # The last round's messages stay in the stores.
            runs += _round(place, rows, number, say, keep=number == parsed.rounds)
        if any(case.stopped for case in cases_of(rows)):
            place.stop_nodes()
            for number in range(parsed.rounds + 1):
                found = _stopped_round(place, number, say)
                # The first one warms up.
                runs += found if number else []
    return runs


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
    place: Place, rows: Sequence[str], number: int, say: Say, *, keep: bool = False
) -> list[Measured]:
    """`keep`: the queue that the scan finds in the stores."""
    runs = []
    for case in CASES:
        if not case.stopped and (case.row in rows or case.name in needed(rows)):
            measured = _measure(place, case, Which(case.row, case.name, number))
            if case.row in rows:
                runs.append(measured)
                say(measured.line())
    _delete_queues(place, () if keep else (PUBLISHED_QUEUE,))
    return runs


def _delete_queues(place: Place, more: Sequence[str] = ()) -> None:
    there = {each.queue for each in place.client.queues()}
    for queue in (QUEUE, FAILING_QUEUE, *more):
        if queue in there:
            place.client.delete_queue(queue)


def _stopped_round(place: Place, number: int, say: Say) -> list[Measured]:
    runs = []
    for case in CASES:
        if case.stopped:
            runs.append(_measure(place, case, Which(case.row, case.name, number)))
            if number:
                say(runs[-1].line())
    return runs


def _measure(place: Place, case: Case | str, which: Which) -> Measured:
    name = case if isinstance(case, str) else case.name
    return measure(
        which,
        lambda: WORK[name](place),
        message_bytes=place.size,
        pids=place.pids,
        # Some of the files only.
        wanted=None if name == cases.TASKS_FAIL else place.count,
    )


# --- at settings ---


def _sizes(
    parsed: argparse.Namespace, folder: Path, spark: SparkSession, say: Say
) -> list[Measured]:
    """Once at each size, each in a cluster of its own."""
    runs: list[Measured] = []
    for size_gb in parsed.sizes_gb:
        setting, count = f"{size_gb:g} GB", round(size_gb * GIGA / parsed.size)
        say(f"{setting}: writing the table, starting the nodes")
        sizes = {"count": count, "size": parsed.size}
        with (
            _emptied(folder / "sizes") as place_folder,
            place_for(
                place_folder, spark, nodes=parsed.nodes, tasks=parsed.cores, **sizes
            ) as place,
        ):
            with _few_messages(place):
                _at_setting(place, SIZES_CASES, Which(cases.SIZES, "", 0), lambda _text: None)
            runs += _at_setting(place, SIZES_CASES, Which(cases.SIZES, "", 1, setting), say)
    return runs


def _executors(parsed: argparse.Namespace, count: int, folder: Path, say: Say) -> list[Measured]:
    setting = f"{count} executor" + ("s" if count > 1 else "")
    say(f"{setting}: writing the table, starting the nodes and Spark")
    sizes = {"count": parsed.count, "size": parsed.size}
    with (
        session(folder, executors(count)) as spark,
        _emptied(folder / "executors") as place_folder,
        place_for(place_folder, spark, nodes=parsed.nodes, tasks=count, **sizes) as place,
    ):
        with _few_messages(place):
            _at_setting(place, EXECUTORS_CASES, Which(cases.EXECUTORS, "", 0), lambda _text: None)
        return _at_setting(place, EXECUTORS_CASES, Which(cases.EXECUTORS, "", 1, setting), say)


def _at_setting(place: Place, names: Sequence[str], which: Which, say: Say) -> list[Measured]:
    """Nodes are stopped for the cases that read their directories, and started again."""
    runs = []
    for name in names:
        if name in _STOPPED and place.pids:
            place.stop_nodes()
        elif name not in _STOPPED and not place.pids:
            place.start_nodes()
        runs.append(_measure(place, name, replace(which, case=name)))
        say(runs[-1].line())
    _delete_queues(place)
    return runs


# --- histories ---


def _verifies(
    parsed: argparse.Namespace, folder: Path, spark: SparkSession, say: Say
) -> list[Measured]:
    say(f"writing a history of {parsed.events} events")
    with _emptied(folder):
        path = folder / "history.jsonl"
        messages = write_history(path, parsed.events)
        works: dict[str, partial[Done]] = {
            cases.PARSED: partial(parse_alone, spark, path, messages),
            cases.VERIFY: partial(judge, path, folder / "spark", embedded(parsed.cores), messages),
        }
        runs = []
        for name, work in works.items():
            which = Which(cases.VERIFIES, name, 1)
            runs.append(measure(which, work, message_bytes=path.stat().st_size / parsed.events))
            say(runs[-1].line())
    return runs
