"""`python -m bench storage`: runs the cases one after another, reports, leaves nothing behind."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import procs
from bench.measure import BenchError, machine_facts
from bench.peers.ringmq import version
from bench.storage import plot, rabbit, report
from bench.storage.cases import CASES, Case
from bench.storage.context import BUDGET_BYTES, Context
from bench.storage.round_result import RoundResult

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "bench"
RESULTS = ROOT / "bench" / "results"
_PREFIX = "storage-"
# Kept free on the disk beside the space that a case may take.
_SPARE_BYTES = 1_000_000_000


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m bench storage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of the short cases (default: 3)")
    parser.add_argument(
        "--long-rounds",
        type=int,
        default=1,
        help=f"of {', '.join(case.name for case in CASES if case.is_long)} (default: 1)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all message counts (default: 1)"
    )
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--without-rabbitmq", action="store_true", help="leaves its side out")
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result file on stdout, no table")
    parsed = parser.parse_args(arguments)
    if min(parsed.rounds, parsed.long_rounds) < 1:
        parser.error("at least one round")
    if not 0 < parsed.scale <= 100:
        parser.error("--scale is above 0 and at most 100")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def variants(case: Case, *, with_rabbitmq: bool) -> list[str]:
    return [
        name for name in case.variants if with_rabbitmq or name not in (rabbit.DEFAULT, rabbit.LAZY)
    ]


def run_cases(
    cases: Sequence[Case],
    rounds: Callable[[Case], int],
    scale: float,
    with_rabbitmq: bool,
    run: Callable[[Case, str, int], RoundResult],
    say: Callable[[str], None],
) -> tuple[list[RoundResult], list[str]]:
    """The results, and the failures in words. A variant that fails doesn't end the other runs.

    Each round of a case takes its variants in turn, so that noise falls on all alike.
    """
    results: list[RoundResult] = []
    failures: list[str] = []
    for case in cases:
        say(f"{case.title} (scale {scale:g})")
        for number in range(1, rounds(case) + 1):
            for name in variants(case, with_rabbitmq=with_rabbitmq):
                label = f"round {number} of {rounds(case)}, {case.name}, {name}"
                try:
                    measured = run(case, name, number)
                except (BenchError, subprocess.TimeoutExpired) as error:
                    failures.append(f"{label}: {error}")
                    say(f"FAILED {failures[-1]}")
                    continue
                results.append(measured)
                say(f"{label}: {report.in_a_line(measured)}")
    return results, failures


def run_variant(
    case: Case, name: str, number: int, *, scale: float, base: Path, say: Callable[[str], None]
) -> RoundResult:
    """One variant in a directory of its own, which is gone afterwards."""
    needed = round(case.disk_bytes * scale) + _SPARE_BYTES
    free = shutil.disk_usage(base).free
    if free < needed:
        raise BenchError(
            f"{case.name} wants {needed / 1e9:.1f} GB free under build/bench, there are "
            f"{free / 1e9:.1f} GB; take a smaller --scale"
        )
    directory = base / f"{case.name}-{name}-{number}"
    directory.mkdir()
    machine_before, own_before = procs.machine_cpu(), procs.own_cpu_s()
    try:
        measured = case.variants[name](Context(directory, BUILD, say), number, scale)
    finally:
        shutil.rmtree(directory)
    # All that the case started are children that have ended by now.
    machine = procs.machine_cpu().since(machine_before)
    others_s = machine.busy_s - (procs.own_cpu_s() - own_before)
    measured.figures["others_cores"] = max(0.0, others_s) / machine.elapsed_s
    return measured


def remove_leftovers(build: Path) -> None:
    """Removes the directories of runs that were killed, so that they don't fill the disk."""
    for directory in build.glob(f"{_PREFIX}*"):
        owner = directory.name.removeprefix(_PREFIX)
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(directory)


def facts_of(parsed: argparse.Namespace, started: datetime, directory: Path) -> dict[str, Any]:
    return {
        "kind": "storage",
        "started": started.isoformat(timespec="seconds"),
        "version": version(),
        "rounds": parsed.rounds,
        "long_rounds": parsed.long_rounds,
        "scale": parsed.scale,
        "budget_bytes": BUDGET_BYTES,
        "machine": machine_facts(directory),
    }


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    started = datetime.now(UTC)
    cases = [case for case in CASES if not parsed.only or case.name in parsed.only]
    with_rabbitmq = not parsed.without_rabbitmq
    if with_rabbitmq and any(rabbit.DEFAULT in case.variants for case in cases):
        rabbit.require_installed()
    BUILD.mkdir(parents=True, exist_ok=True)
    remove_leftovers(BUILD)
    # Not in the system's temporary directory, which may be memory: fsync would cost nothing.
    base = BUILD / f"{_PREFIX}{os.getpid()}"
    base.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, base)
        most = max(case.disk_bytes for case in cases) * parsed.scale
        free = shutil.disk_usage(base).free
        progress.print(f"up to {most / 1e9:.1f} GB of {free / 1e9:.1f} GB free will be used")
        facts = facts_of(parsed, started, base)
        results, failures = run_cases(
            cases,
            lambda case: parsed.long_rounds if case.is_long else parsed.rounds,
            parsed.scale,
            with_rabbitmq,
            lambda case, name, number: run_variant(
                case, name, number, scale=parsed.scale, base=base, say=progress.print
            ),
            progress.print,
        )
    name = parsed.save or f"storage-{started:%Y%m%dT%H%M%SZ}"
    folder = RESULTS if parsed.save else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    result = report.to_json(name, facts | {"failures": failures}, results, cases)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if results:
        plot.save(folder / f"{name}.png", results)
    if parsed.json:
        print(json.dumps(result))
    else:
        report.print_report(Console(), results, cases, parsed.scale)
    progress.print(f"written: {(folder / name).relative_to(ROOT)}.json and .png")
    if failures:
        raise BenchError(f"{len(failures)} runs failed:\n" + "\n".join(failures))
