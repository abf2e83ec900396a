"""Ours: three local nodes, started and published to through the `ringmq` command.

The benchmark goes the way a user goes, so it imports nothing of ours: `cluster
up` starts the processes, `queue declare` makes the queue (mirrored on all three
nodes, which is the default), `bench publish` measures, `cluster down` ends them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import BenchError, ClientReport, Point

NODES = 3
_COMMAND = Path(sys.executable).with_name("ringmq")
_CONTROL_TIMEOUT_S = 60.0
_PUBLISH_TIMEOUT_S = 600.0


class RingPeer:
    """Three of our nodes. `start`, then `stop`, once each; both block."""

    name = "ringmq"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seeds = ""
        self._pids: list[int] = []

    def start(self) -> None:
        if not _COMMAND.exists():
            raise BenchError(
                f"{_COMMAND.name} isn't installed beside this Python; `make bench` does that"
            )
        # Free ports: the user's own cluster may have the usual ones.
        flags = ("--nodes", str(NODES), "--base-port", "0", "--data", str(self._directory))
        started = _run("cluster", "up", *flags)
        nodes = started["nodes"]
        if len(nodes) != NODES:
            raise BenchError(f"ringmq: {len(nodes)} of {NODES} nodes started")
        self._seeds = ",".join(node["address"] for node in nodes)
        self._pids = [int(node["pid"]) for node in nodes]

    def stop(self) -> None:
        if self._directory.exists():
            _run("cluster", "down", "--data", str(self._directory))

    def describe(self) -> dict[str, str]:
        return {
            "version": version(),
            "nodes": str(NODES),
            "queue": "durable, mirrored on all nodes",
            "messages": "persistent, confirmed when on every mirror's disk",
            "client": "ringmq bench publish",
        }

    def broker_pids(self) -> Sequence[int]:
        return self._pids

    def prepare(self, queue: str) -> None:
        self._control("queue", "declare", queue)

    def publish(self, point: Point, queue: str) -> ClientReport:
        arguments = {
            "--queue": queue,
            "--count": point.count,
            "--size": point.size_bytes,
            "--window": point.window,
        }
        flat = [str(word) for pair in arguments.items() for word in pair]
        report = self._control("bench", "publish", *flat, timeout_s=_PUBLISH_TIMEOUT_S)
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
        )

    def remove(self, queue: str) -> None:
        shown = self._control("queue", "show", queue)
        synced = [member for member in shown["ring"] if member["synchronised"]]
        if len(synced) != NODES:
            raise BenchError(f"ringmq: {queue} is synchronised on {len(synced)} of {NODES} nodes")
        self._control("queue", "delete", queue)

    def _control(self, *words: str, timeout_s: float = _CONTROL_TIMEOUT_S) -> Any:
        return _run(*words, "--seeds", self._seeds, timeout_s=timeout_s)


def _run(*words: str, timeout_s: float = _CONTROL_TIMEOUT_S) -> Any:
    done = subprocess.run(
        [_COMMAND, *words, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    said = f"`ringmq {' '.join(words[:2])}`"
    if done.returncode:
        raise BenchError(f"{said} failed with {done.returncode}: {done.stderr.strip()}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise BenchError(f"{said} didn't print JSON: {done.stdout[:200]!r}") from error


def version() -> str:
    """The commit that is measured, with a `+` if the tree has changes on top of it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"
