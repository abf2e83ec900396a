"""Two peers on one RabbitMQ cluster: the mirrored queue, and the quorum queue."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bench.measure import BenchError, ClientReport, Point
from bench.peers.rabbitmq.cluster import NODES, PROGRAMS, RabbitCluster
from bench.stats import merged

# With events: when it began, and when the last message came.
_PROGRESS = ("--progress", "600000")
_CONSUME = ("--mode", "consume")
# As `ringmq bench both` has it.
_PREFETCH = 5000

QueueType = Literal["classic", "quorum"]

APT_COMMAND = (
    "apt-get install --no-install-recommends rabbitmq-server librabbitmq-dev gcc libc6-dev"
)
_SOURCE = Path(__file__).with_name("client.c")
_CLIENT_TIMEOUT_S = 600.0
# Connects and declares, no more.
_NOTHING = Point(count=0, size_bytes=0, window=1)


def missing() -> list[str]:
    """The programs and files that aren't installed, in words; empty if the peer can run."""
    wanted = {
        "rabbitmq-server": (PROGRAMS / "rabbitmq-server").exists(),
        "librabbitmq-dev": Path("/usr/include/amqp.h").exists(),
        "epmd (erlang-base)": shutil.which("epmd") is not None,
        "a C compiler": shutil.which("cc") is not None,
    }
    return [name for name, is_there in wanted.items() if not is_there]


def build_client(directory: Path) -> Path:
    """Compiles the publisher if its source is newer. Raises `BenchError` with cc's words."""
    program = directory / "rabbitmq-client"
    if program.exists() and program.stat().st_mtime > _SOURCE.stat().st_mtime:
        return program
    directory.mkdir(parents=True, exist_ok=True)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra"]
    command = ["cc", *flags, "-o", str(program), str(_SOURCE), "-lrabbitmq"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the client for RabbitMQ doesn't compile:\n{done.stderr}")
    return program


def _client_report(report: Mapping[str, Any]) -> ClientReport:
    return ClientReport(
        seconds=report["seconds"],
        rate_per_s=report["rate_per_s"],
        acked=report["acked"],
        nacked=report["nacked"],
        client_cpu_s=report["client_cpu_s"],
        **{f"{name}_ms": value for name, value in report["confirm_ms"].items()},
    )


class RabbitPeer:
    """Publishes to one type of queue of a running cluster. The cluster isn't owned."""

    def __init__(self, cluster: RabbitCluster, client: Path, queue_type: QueueType) -> None:
        self._cluster = cluster
        self._client = client
        self._queue_type = queue_type

    @property
    def name(self) -> str:
        return "rabbitmq" if self._queue_type == "classic" else "rabbitmq-quorum"

    def describe(self) -> dict[str, str]:
        settings = {
            "classic": "durable classic queue, ha-mode=all, ha-sync-mode=automatic",
            "quorum": f"quorum queue, {NODES} members",
        }
        return {
            "version": self._cluster.control("version").strip(),
            "nodes": str(NODES),
            "queue": settings[self._queue_type],
            "messages": "persistent, publisher confirms",
            "client": "C, librabbitmq",
        }

    def broker_pids(self) -> Sequence[int]:
        return self._cluster.broker_pids()

    def handed_bytes(self) -> int | None:
        return None

    def prepare(self, queues: Sequence[str]) -> None:
        for queue in queues:
            self._run_client(_NOTHING, queue)

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        """With many queues, by a client process for each at the same time (`merged`)."""
        if point.consumed:
            return self._publish_and_consume(point, *queues)
        shares = [replace(point, count=count) for count in point.shares()]
        with ThreadPoolExecutor(len(queues)) as pool:
            reports = list(pool.map(self._run_client, shares, queues))
        return merged([_client_report(report) for report in reports])

    def _publish_and_consume(self, point: Point, queue: str) -> ClientReport:
        """By a process each way. The consumer waits for the first message."""
        with ThreadPoolExecutor(1) as pool:
            consumer = pool.submit(self._run, replace(point, window=_PREFETCH), queue, *_CONSUME)
            publisher = self._run(point, queue, *_PROGRESS)
            consumed = consumer.result()
        began, ended = (json.loads(each[0])["at"] for each in (publisher, consumed[-1:]))
        report = _client_report(json.loads(publisher[-1]))
        return replace(report, consumed_per_s=point.count / (ended - began))

    def remove(self, queues: Sequence[str]) -> None:
        """Checks that the queues were replicated as claimed, and deletes them."""
        columns, copies = (
            (("synchronised_slave_pids",), NODES - 1)
            if self._queue_type == "classic"
            else (("online",), NODES)
        )
        infos = self._cluster.queue_infos(map(self._full_name, queues), columns)
        for queue, info in zip(queues, infos, strict=True):
            found = info[columns[0]]
            if not isinstance(found, list) or len(found) != copies:
                raise BenchError(
                    f"RabbitMQ: {columns[0]} of {queue} is {found}, not {copies} of them"
                )
            self._run_client(_NOTHING, queue, "--delete")

    def _full_name(self, queue: str) -> str:
        # The policy for mirrors goes by this prefix.
        return f"{self._queue_type}.{queue}"

    def _run_client(self, point: Point, queue: str, *flags: str) -> Mapping[str, Any]:
        report: Mapping[str, Any] = json.loads(self._run(point, queue, *flags)[-1])
        return report

    def _run(self, point: Point, queue: str, *flags: str) -> list[str]:
        """The lines that the client has printed."""
        arguments = {
            "--port": self._cluster.port,
            "--queue": self._full_name(queue),
            "--type": self._queue_type,
            "--count": point.count,
            "--size": point.size_bytes,
            "--window": point.window,
        }
        flat = [str(word) for pair in arguments.items() for word in pair]
        done = subprocess.run(
            [self._client, *flat, *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=_CLIENT_TIMEOUT_S,
        )
        if done.returncode:
            raise BenchError(done.stderr.strip())
        return done.stdout.splitlines()
