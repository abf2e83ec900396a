"""`python -m bench pipeline`: Spark reads, ingests, replays and scans queues of local nodes.

All are on the same cores. Each round takes every case in turn, with its upper bounds: the same
Spark job without the broker, or the same broker without Spark. The stores are scanned at the end,
when the nodes are stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.comparison import BUILD, RESULTS, ROOT, Say
from bench.measure import machine_facts
from bench.peers.ringmq import version
from bench.pipeline import cases, report
from bench.pipeline.cases import CASES
from bench.pipeline.measured import Measured, measure
from bench.pipeline.messages import write_table
from bench.pipeline.place import QUEUE, Place, connect, running_cluster, session
from bench.pipeline.work import FAILING_QUEUE, PUBLISHED_QUEUE

# Of the warm-up: Spark compiles its queries, and the nodes import pyarrow.
_WARM_UP_SHARE = 20
_PACKAGES = ("pyspark", "pyarrow", "deltalake")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench pipeline", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--count", type=int, default=500_000, help="messages (default: 500000)")
    parser.add_argument("--size", type=int, default=1024, help="bytes (default: 1024)")
    parser.add_argument("--cores", type=int, default=2, help="of Spark: local[N] (default: 2)")
    parser.add_argument("--nodes", type=int, default=3, help="with a replica each (default: 3)")
    parser.add_argument(
        "--only",
        default="",
        metavar="CASES",
        help="with semicolons between; what they need is done uncounted",
    )
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result on stdout, no table")
    parsed = parser.parse_args(arguments)
    if min(parsed.rounds, parsed.size, parsed.cores, parsed.nodes) < 1:
        parser.error("--rounds, --size, --cores and --nodes are 1 or more")
    if parsed.count < _WARM_UP_SHARE:
        parser.error(f"--count is {_WARM_UP_SHARE} or more")
    names = [each.name for each in CASES]
    parsed.only = [name.strip() for name in parsed.only.split(";") if name.strip()] or names
    unknown = sorted(set(parsed.only) - set(names))
    if unknown:
        parser.error(f"no such case: {'; '.join(unknown)}; there are {'; '.join(names)}")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    """Raises `BenchError`, also for a node that has logged an error."""
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    # Not in the system's temporary directory, which may be memory.
    folder = Path(tempfile.mkdtemp(prefix="pipeline-", dir=BUILD))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        facts: dict[str, Any] = {
            "started": started.isoformat(timespec="seconds"),
            "machine": machine_facts(folder),
            "versions": {name: metadata.version(name) for name in _PACKAGES} | {"tree": version()},
            **{name: getattr(parsed, name) for name in ("rounds", "count", "size", "cores")},
            "nodes": parsed.nodes,
        }
        runs = _run(parsed, folder, stack, progress.print)
    name = parsed.save or f"pipeline-{started:%Y%m%dT%H%M%SZ}"
    target = RESULTS if parsed.save else RESULTS / "local"
    target.mkdir(parents=True, exist_ok=True)
    result = report.to_json(name, facts, runs)
    (target / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    report.draw(target / f"{name}.png", runs)
    if parsed.json:
        print(json.dumps(result))
    else:
        report.print_report(Console(), runs)
    progress.print(f"written: {(target / name).relative_to(ROOT)}.json and .png")


def _run(parsed: argparse.Namespace, folder: Path, stack: ExitStack, say: Say) -> list[Measured]:
    say("writing the table, starting the nodes and Spark")
    write_table(folder / "table", parsed.count, parsed.size)
    few = max(1, parsed.count // _WARM_UP_SHARE)
    write_table(folder / "warm-up", few, parsed.size)
    cluster, pids = stack.enter_context(running_cluster(folder / "cluster", parsed.nodes))
    client = connect(cluster)
    stack.callback(client.close)
    place = Place(
        folder=folder,
        table=folder / "table",
        cluster=cluster,
        client=client,
        spark=stack.enter_context(session(folder, parsed.cores)),
        count=parsed.count,
        size=parsed.size,
        tasks=parsed.cores,
        pids=pids,
    )
    say("warming up")
    warm = replace(place, table=folder / "warm-up", count=few)
    _round(warm, parsed.only, 0, lambda _text: None)
    runs: list[Measured] = []
    for number in range(1, parsed.rounds + 1):
        # The last round's messages stay in the stores.
        runs += _round(place, parsed.only, number, say, keep=number == parsed.rounds)
    if any(case.stopped and case.name in parsed.only for case in CASES):
        place.stop_nodes()
        for number in range(parsed.rounds + 1):
            found = _stopped_round(place, parsed.only, number, say)
            # The first one warms up.
            runs += found if number else []
    return runs


def _round(
    place: Place, only: Sequence[str], number: int, say: Say, *, keep: bool = False
) -> list[Measured]:
    """`keep`: the queue that the scan finds in the stores."""
    runs = []
    for case in CASES:
        if case.stopped:
            continue
        if case.name in only or case.name in _needed(only):
            wanted = None if case.name == cases.TASKS_FAIL else place.count
            measured = measure(place, case.name, number, wanted)
            if case.name in only:
                runs.append(measured)
                say(_line(measured))
    queues = {each.queue for each in place.client.queues()}
    for queue in (QUEUE, FAILING_QUEUE, *(() if keep else (PUBLISHED_QUEUE,))):
        if queue in queues:
            place.client.delete_queue(queue)
    return runs


def _needed(only: Sequence[str]) -> set[str]:
    """What fills the queues that these cases read."""
    needed = set()
    if {cases.CLIENT, cases.READ_ARROW, cases.READ_PROTO, cases.INGEST} & set(only):
        needed.add(cases.REPLAY)
    if {cases.SCAN, cases.BARE_READ} & set(only):
        needed.add(cases.PUBLISHED)
    return needed


def _stopped_round(place: Place, only: Sequence[str], number: int, say: Say) -> list[Measured]:
    runs = []
    for case in CASES:
        if case.stopped and case.name in only:
            runs.append(measure(place, case.name, number, place.count))
            if number:
                say(_line(runs[-1]))
    return runs


def _line(each: Measured) -> str:
    return (
        f"round {each.round}, {each.case}: {each.rate_per_s:.0f}/s, {each.mb_per_s:.0f} MB/s, "
        f"CPU us/message {each.job_cpu_us:.1f} and {each.node_cpu_us:.1f} of the nodes"
    )
