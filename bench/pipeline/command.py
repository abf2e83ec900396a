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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.comparison import BUILD, RESULTS, ROOT
from bench.measure import machine_facts
from bench.peers.ringmq import version
from bench.pipeline import report
from bench.pipeline.cases import EVENTS, ROWS
from bench.pipeline.histories import EVENTS_MIN
from bench.pipeline.notes import Notes
from bench.pipeline.rounds import WARM_UP_SHARE, run_rows

N = TypeVar("N", int, float)
_PACKAGES = ("pyspark", "pyarrow", "deltalake")
_SETTINGS = ("rounds", "count", "size", "cores", "nodes", "sizes_gb", "executors", "events")
# With `--short`: every part once, and no figure worth keeping.
_SHORT = {
    "rounds": 1,
    "count": 60_000,
    "sizes_gb": [0.03, 0.06],
    "executors": [1, 2],
    "events": 400_000,
}


def _numbers(kind: Callable[[str], N]) -> Callable[[str], list[N]]:
    def parse(text: str) -> list[N]:
        try:
            found = [kind(each) for each in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} isn't numbers with commas") from None
        if min(found) <= 0:
            raise argparse.ArgumentTypeError(f"{text!r} has a number that isn't above 0")
        return found

    return parse


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench pipeline", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--rows", default=",".join(ROWS), help="with commas between (default: %(default)s)")
    add("--short", action="store_true", help="every row once with little work, as a test")
    add("--rounds", type=int, default=3, help="runs of each (default: 3)")
    add("--count", type=int, default=1_000_000, help="messages (default: 1000000)")
    add("--size", type=int, default=1024, help="bytes (default: 1024)")
    add("--cores", type=int, default=2, help="of Spark: local[N] (default: 2)")
    add("--nodes", type=int, default=3, help="with a replica each (default: 3)")
    add(
        "--sizes-gb",
        type=_numbers(float),
        default=[1.0, 10.0],
        metavar="GB,GB",
        help="of the row sizes: bodies of a queue (default: 1,10)",
    )
    add(
        "--executors",
        type=_numbers(int),
        default=[1, 2],
        metavar="N,N",
        help="of the row executors: local-cluster[N,1,1024] (default: 1,2)",
    )
    add("--events", type=int, default=EVENTS, help=f"of the row verify (default: {EVENTS})")
    add("--save", metavar="NAME", help="as bench/results/NAME; rows that it has already stay there")
    add("--json", action="store_true", help="the result on stdout, no table")
    if "--short" in arguments:
        parser.set_defaults(**_SHORT)
    parsed = parser.parse_args(arguments)
    if min(parsed.rounds, parsed.size, parsed.cores, parsed.nodes) < 1:
        parser.error("--rounds, --size, --cores and --nodes are 1 or more")
    if parsed.count < WARM_UP_SHARE:
        parser.error(f"--count is {WARM_UP_SHARE} or more")
    if parsed.events < EVENTS_MIN:
        parser.error(f"--events is {EVENTS_MIN} or more")
    named = {name.strip() for name in parsed.rows.split(",")}
    if unknown := sorted(named - set(ROWS)):
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    parsed.rows = [row for row in ROWS if row in named]
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    """Raises `BenchError`, also for a node that has logged an error. The rows that are complete by
    then are reported, and in the file, also if the run is interrupted."""
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    name = parsed.save or f"pipeline-{started:%Y%m%dT%H%M%SZ}"
    target = RESULTS if parsed.save else RESULTS / "local"
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{name}.json"
    # Not in the system's temporary directory, which may be memory.
    folder = Path(tempfile.mkdtemp(prefix="pipeline-", dir=BUILD))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        facts: dict[str, Any] = {
            "started": started.isoformat(timespec="seconds"),
            "machine": machine_facts(folder),
            "versions": {each: metadata.version(each) for each in _PACKAGES} | {"tree": version()},
            **{each: getattr(parsed, each) for each in _SETTINGS},
        }
        notes = Notes(path, parsed.rows, facts, progress.print)
        try:
            run_rows(parsed, folder, notes)
        finally:
            _report(path, notes, progress, as_json=parsed.json)
    notes.check()


def _report(path: Path, notes: Notes, progress: Console, *, as_json: bool) -> None:
    if not notes.runs:
        return
    notes.save()
    result = notes.result()
    kinds = ".json and .png" if report.draw(path.with_suffix(".png"), result.runs) else ".json"
    if as_json:
        print(json.dumps(result.to_json(path.stem)))
    else:
        report.print_report(Console(), result.runs)
    incomplete = [row for row, facts in result.facts.items() if not facts["complete"]]
    if incomplete:
        progress.print(f"not complete: {', '.join(incomplete)}")
    progress.print(f"written: {path.with_suffix('').relative_to(ROOT)}{kinds}")
