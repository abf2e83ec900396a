"""Ours: three local nodes, started and published to through the `ringmq` command.

The benchmark goes the way a user goes, and drives no code of the nodes itself: `cluster up`
starts the processes, its client library makes the queues (mirrored on all three nodes, which is
the default), `bench publish` measures, `cluster down` ends them. So a checkout of another commit
can be a peer too: its command starts its nodes and runs its client.

A node that logs an error or a traceback fails the run, although its figures may look well: a
link that is torn down and opened again, for example, costs milliseconds and loses nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ringmq
from bench.measure import BenchError, ClientReport, Point
from ringmq_base.logs import LogFault, log_faults

NODES = 3
TREE = Path(__file__).resolve().parents[2]
# Of the faults in the nodes' logs, as many are printed: the later ones seldom say more.
FAULTS_SHOWN_MAX = 3
# Of a node's store, all that it writes for messages.
WRITTEN = (
    "journal_bytes_written",
    "commit_log_bytes_written",
    "segment_bytes_written",
    "message_store_bytes_written",
)
_QUEUES = Path(__file__).with_name("ringmq_queues.py")
_CONTROL_TIMEOUT_S = 60.0
_PUBLISH_TIMEOUT_S = 600.0


class RingPeer:
    """Three nodes of the checkout `tree`. `start`, then `stop`, once each; both block.

    A tree that isn't this one has the environment that `make` builds, in `.venv`. With `excuse`
    the faults in its nodes' logs are said through it and fail nothing. `environment` is of all its
    programs, beside what this process has.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "ringmq",
        tree: Path = TREE,
        excuse: Callable[[str], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._excuse = excuse
        self._environment = os.environ | (environment or {})
        self._directory = directory
        self._tree = tree
        programs = Path(sys.executable).parent if tree == TREE else tree / ".venv" / "bin"
        self._programs = programs
        self._command = programs / "ringmq"
        #: The nodes' addresses, once they are up.
        self.seeds: list[str] = []
        self._pids: list[int] = []

    def start(self) -> None:
        if not self._command.exists():
            raise BenchError(
                f"{self.name}: there is no {self._command}; `make quick` in {self._tree} makes it"
            )
        # Free ports: the user's own cluster may have the usual ones.
        flags = ("--nodes", str(NODES), "--base-port", "0", "--data", str(self._directory))
        started = self._ringmq("cluster", "up", *flags)
        nodes = started["nodes"]
        if len(nodes) != NODES:
            raise BenchError(f"{self.name}: {len(nodes)} of {NODES} nodes started")
        self.seeds = [node["address"] for node in nodes]
        self._pids = [int(node["pid"]) for node in nodes]

    def stop(self) -> None:
        """Raises `BenchError` if a node has logged a fault, its shutdown included."""
        if self._directory.exists():
            self._ringmq("cluster", "down", "--data", str(self._directory))
            try:
                check_logs(self.name, sorted((self._directory / "logs").glob("*.log")))
            except BenchError as fault:
                if self._excuse is None:
                    raise
                self._excuse(f"excused: {fault}")

    def describe(self) -> dict[str, str]:
        return {
            "version": version(self._tree),
            "nodes": str(NODES),
            "queue": "durable, mirrored on all nodes",
            "messages": "persistent, confirmed when on every mirror's disk",
            "client": "ringmq bench publish",
        }

    def broker_pids(self) -> Sequence[int]:
        return self._pids

    def handed_bytes(self) -> int | None:
        """Not by the command, which takes seconds to start on a busy machine: meanwhile an idle
        node begins to copy messages into segments. An older tree doesn't count all of it."""
        if self._tree != TREE:
            return None
        with ringmq.connect_sync(self.seeds) as client:
            return handed(self.name, client.cluster_status(with_resources=True))

    def prepare(self, queues: Sequence[str]) -> None:
        self._queues("declare", queues)

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        arguments = [
            *(("--queue", queue) for queue in queues),
            ("--count", point.count),
            ("--size", point.size_bytes),
            ("--window", point.window),
        ]
        flat = [str(word) for pair in arguments for word in pair]
        verb = "both" if point.consumed else "publish"
        report = self._control("bench", verb, *flat, timeout_s=_PUBLISH_TIMEOUT_S)
        latencies = report["confirm_ms"]
        return ClientReport(
            seconds=report["seconds"],
            rate_per_s=report["rate_per_s"],
            acked=report["confirmed"],
            nacked=report["nacked"],
            client_cpu_s=report["client_cpu_s"],
            p50_ms=latencies["p50"],
            p95_ms=latencies["p95"],
            p99_ms=latencies["p99"],
            max_ms=latencies["max"],
            consumed_per_s=report.get("consume_rate_per_s"),
        )

    def remove(self, queues: Sequence[str]) -> None:
        lacking = self._queues("remove", queues)
        if lacking:
            raise BenchError(f"{self.name}: {', '.join(lacking)}")

    def _queues(self, verb: str, queues: Sequence[str]) -> list[str]:
        # Without the program's own folder on its path: this module would be its `ringmq`.
        words = ["-P", str(_QUEUES), verb, ",".join(self.seeds), *queues]
        return list(self._run(self._programs / "python", *words, said=f"{verb} queues"))

    def _control(self, *words: str, timeout_s: float = _CONTROL_TIMEOUT_S) -> Any:
        return self._ringmq(*words, "--seeds", ",".join(self.seeds), timeout_s=timeout_s)

    def _ringmq(self, *words: str, timeout_s: float = _CONTROL_TIMEOUT_S) -> Any:
        said = f"ringmq {' '.join(words[:2])}"
        return self._run(self._command, *words, "--json", said=said, timeout_s=timeout_s)

    def _run(self, *words: str | Path, said: str, timeout_s: float = _CONTROL_TIMEOUT_S) -> Any:
        """What a program of the tree prints as JSON."""
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd=self._tree,
            env=self._environment,
        )
        said = f"{self.name}: `{said}`"
        if done.returncode:
            raise BenchError(f"{said} failed with {done.returncode}: {done.stderr.strip()}")
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise BenchError(f"{said} didn't print JSON: {done.stdout[:200]!r}") from error


def handed(name: str, status: ringmq.ClusterStatus) -> int:
    """What the stores of all nodes have given to write(2) for messages."""
    total = 0
    for node in status.nodes:
        if node.resources is None:
            raise BenchError(f"{name}: {node.node} hasn't said what its store has written")
        total += sum(getattr(node.resources.store, field) for field in WRITTEN)
    return total


def check_logs(name: str, logs: Sequence[Path], *, expected: Sequence[str] = ()) -> None:
    """Raises `BenchError` with the first faults in these logs that match none of the regular
    expressions `expected`. No logs at all is an error, too."""
    if not logs:
        raise BenchError(f"{name}: its nodes have left no log")
    faults: list[LogFault] = []
    for log in logs:
        with log.open(errors="replace") as lines:
            faults += log_faults(f"{name}/{log.name}", lines, expected=expected)
    if faults:
        shown = "\n".join(map(str, faults[:FAULTS_SHOWN_MAX]))
        raise BenchError(f"{name}: {len(faults)} errors or tracebacks in its nodes' logs:\n{shown}")


def version(tree: Path = TREE) -> str:
    """The commit that is measured, with a `+` if the tree has changes on top of it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tree,
    )
    return described.stdout.strip() or "unknown"
