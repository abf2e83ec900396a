"""NATS from Debian: three servers on loopback, owned by the run, and a stream for each queue.

Settings are the defaults of 2.9.10, except for ports and directories. A stream has three replicas
and is stored in files. An ack says that a majority of the replicas has written the message, and
not that it is on a disk. (`sync_interval: always`, which would sync each message, is an unknown
field to this version.)
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import procs
from bench.measure import BenchError, ClientReport, Point
from bench.peers.nats.client import ask

NODES = 3
PROGRAM = "nats-server"
APT_COMMAND = "apt-get install --no-install-recommends nats-server"
_START_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 30.0
# A server that isn't in its cluster yet answers nothing.
_PROBE_TIMEOUT_S = 1.0
_PUBLISH_TIMEOUT_S = 600.0

_CONF = """\
server_name: n{number}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{directory}" }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


class NatsPeer:
    """`start`, then `stop`, once each; both block."""

    name = "nats-r3"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = [procs.free_port() for _ in range(NODES)]
        self._servers: list[subprocess.Popen[bytes]] = []
        # Of each stream, the port of the server that leads it.
        self._leaders: dict[str, int] = {}

    def start(self) -> None:
        """Returns when the servers make streams of three replicas."""
        self._directory.mkdir(parents=True)
        routes = [procs.free_port() for _ in range(NODES)]
        all_routes = ", ".join(f"nats://127.0.0.1:{route}" for route in routes)
        for number, (port, route) in enumerate(zip(self._ports, routes, strict=True)):
            place = self._directory / f"n{number}"
            place.mkdir()
            conf = place / "server.conf"
            conf.write_text(
                _CONF.format(
                    number=number, port=port, directory=place, route=route, routes=all_routes
                )
            )
            with (place / "server.log").open("wb") as log:
                self._servers.append(
                    subprocess.Popen(
                        [PROGRAM, "-c", str(conf)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        if not procs.wait_until(self._is_up, timeout_s=_START_TIMEOUT_S):
            said = (self._directory / "n0" / "server.log").read_text(errors="replace")
            raise BenchError(f"NATS didn't become a cluster in {_START_TIMEOUT_S:g} s:\n{said}")

    def stop(self) -> None:
        while self._servers:
            procs.kill_group(self._servers.pop())

    def describe(self) -> dict[str, str]:
        said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
        return {
            "version": said.stdout.split()[-1].removeprefix("v"),
            "nodes": str(NODES),
            "queue": f"JetStream, a file stream with {NODES} replicas",
            "messages": "acknowledged when a majority has written them, without a sync",
            "client": "asyncio, NATS' text protocol",
        }

    def broker_pids(self) -> Sequence[int]:
        return [server.pid for server in self._servers]

    def handed_bytes(self) -> int | None:
        return None

    def prepare(self, queues: Sequence[str]) -> None:
        answers = self._ask([_create(_stream(queue)) for queue in queues])
        for queue, answer in zip(queues, answers, strict=True):
            leader = answer["cluster"]["leader"]
            self._leaders[queue] = self._ports[int(leader.removeprefix("n"))]

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        ports = ",".join(str(self._leaders[queue]) for queue in queues)
        words = [ports, point.count, point.size_bytes, point.window, *map(_stream, queues)]
        done = subprocess.run(
            [sys.executable, "-m", "bench.peers.nats.client", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=_PUBLISH_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"{self.name}: the publisher failed: {done.stderr.strip()}")
        return ClientReport(**json.loads(done.stdout))

    def remove(self, queues: Sequence[str]) -> None:
        streams = [*map(_stream, queues)]
        # A replica that has just acknowledged may be a moment behind its leader.
        lacking = partial(self._lacking, streams)
        if not procs.wait_until(lambda: not lacking(), timeout_s=_ANSWER_TIMEOUT_S):
            raise BenchError(f"{self.name}: not current on all servers: {', '.join(lacking())}")
        self._ask([*map(_delete, streams)])

    def _lacking(self, streams: Sequence[str]) -> list[str]:
        """Those of the streams that lack a replica which has all messages."""
        infos = self._ask([(f"$JS.API.STREAM.INFO.{stream}", {}) for stream in streams])
        return [
            stream
            for stream, info in zip(streams, infos, strict=True)
            if sum(each["current"] for each in info["cluster"].get("replicas", ())) < NODES - 1
        ]

    def _is_up(self) -> bool:
        if not all(map(procs.is_listening, self._ports)):
            return False
        try:
            for question in (_create("up"), _delete("up")):
                self._ask([question], timeout_s=_PROBE_TIMEOUT_S)
        except (BenchError, TimeoutError):
            return False
        return True

    def _ask(
        self, questions: Sequence[tuple[str, object]], *, timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Raises `BenchError` with the answer that is an error."""
        answers = asyncio.run(ask(self._ports[0], questions, timeout_s=timeout_s))
        for (subject, _), answer in zip(questions, answers, strict=True):
            if "error" in answer:
                raise BenchError(f"{self.name}: {subject}: {answer['error']}")
        return answers


def _stream(queue: str) -> str:
    # A dot in a stream's name would make it two parts of a subject.
    return queue.replace(".", "-")


def _create(stream: str) -> tuple[str, object]:
    config = {"name": stream, "subjects": [stream], "storage": "file", "num_replicas": NODES}
    return f"$JS.API.STREAM.CREATE.{stream}", config


def _delete(stream: str) -> tuple[str, object]:
    return f"$JS.API.STREAM.DELETE.{stream}", {}
