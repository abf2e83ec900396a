"""`python -m bench wire`: an echo over one stream, by our own gRPC transport and by grpc.aio.

One server process and one client process for each run. Each round takes the pairs of client and
server in turn, so that a busy machine slows all of them. CPU is that of both processes, from the
first message to the last answer, per message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio
import uvloop
from rich.console import Console
from rich.table import Table

from bench.measure import BenchError
from bench.procs import parse_stat
from bench.stats import percentile
from ringmq_node.resources import allocator
from ringmq_wire import OK, CallHandler, WireCall, WireChannel, WireServer

METHOD = "/bench.Wire/Echo"
HOST = "127.0.0.1"
START_TIMEOUT_S = 20
RUN_TIMEOUT_S = 300
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class EchoPoint:
    size_bytes: int
    window: int
    count: int

    @property
    def label(self) -> str:
        size = f"{self.size_bytes >> 10} KiB"
        return f"{size}, window {self.window}"


POINTS = (EchoPoint(1024, 1, 10_000), EchoPoint(1024, 100, 60_000), EchoPoint(262_144, 4, 2_000))
# (client, server)
ENDS = (("lean", "lean"), ("aio", "lean"), ("lean", "aio"), ("aio", "aio"))


@dataclass(frozen=True, slots=True)
class EchoRun:
    p50_us: float
    rate_per_s: float
    cpu_us: float


# --- servers ---


class _Echo(CallHandler):
    def __init__(self, call: WireCall) -> None:
        self._call = call

    def received(self, messages: list[bytes]) -> None:
        self._call.send(messages)

    def half_closed(self) -> None:
        self._call.finish(OK)


async def _echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def serve(kind: str) -> None:
    """Prints its port, and serves until it is killed."""
    if kind == "lean":
        port = await WireServer({METHOD: _Echo}).listen(HOST, 0)
    else:
        server = grpc.aio.server()
        methods: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(_echo)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("bench.Wire", methods),)
        )
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()


# --- clients ---


class _LeanClient(CallHandler):
    """Keeps `window` messages on their way; `done` when all have come back."""

    def __init__(self, point: EchoPoint) -> None:
        self._message = bytes(point.size_bytes)
        self._to_send = point.count
        self._missing = point.count
        self._sent_at: list[float] = []
        self.latencies_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call: WireCall | None = None

    def send(self, count: int) -> None:
        count = min(count, self._to_send)
        if count:
            assert self.call is not None
            self._to_send -= count
            self._sent_at += [time.perf_counter()] * count
            self.call.send([self._message] * count)

    def received(self, messages: list[bytes]) -> None:
        now = time.perf_counter()
        first = len(self.latencies_s)
        self.latencies_s += [now - at for at in self._sent_at[first : first + len(messages)]]
        self._missing -= len(messages)
        if not self._missing:
            self.done.set_result(None)
        self.send(len(messages))


async def _lean_client(port: int, point: EchoPoint) -> list[float]:
    channel = WireChannel(f"{HOST}:{port}")
    client = _LeanClient(point)
    client.call = await channel.open(METHOD, client)
    client.send(point.window)
    await client.done
    latencies_s = client.latencies_s
    client.call.cancel()
    await channel.close()
    return latencies_s


async def _aio_client(port: int, point: EchoPoint) -> list[float]:
    latencies_s: list[float] = []
    message = bytes(point.size_bytes)
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call: Any = channel.stream_stream(METHOD)()
        room = asyncio.Semaphore(point.window)
        sent_at: list[float] = []

        async def write() -> None:
            for _ in range(point.count):
                await room.acquire()
                sent_at.append(time.perf_counter())
                await call.write(message)
            await call.done_writing()

        writing = asyncio.create_task(write())
        for number in range(point.count):
            await call.read()
            latencies_s.append(time.perf_counter() - sent_at[number])
            room.release()
        await writing
    return latencies_s


async def run_client(kind: str, port: int, server_pid: int, point: EchoPoint) -> EchoRun:
    client = _lean_client if kind == "lean" else _aio_client
    # Not counted: connecting, imports, first calls.
    await client(port, EchoPoint(point.size_bytes, point.window, max(point.count // 10, 1)))
    pids = (server_pid, os.getpid())
    cpu_before, began = _cpu_s(pids), time.perf_counter()
    latencies_s = await client(port, point)
    seconds, cpu_s = time.perf_counter() - began, _cpu_s(pids) - cpu_before
    return EchoRun(
        p50_us=percentile(sorted(latencies_s), 50) * 1e6,
        rate_per_s=point.count / seconds,
        cpu_us=cpu_s / point.count * 1e6,
    )


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(
        parse_stat(Path(f"/proc/{pid}/stat").read_text()).ticks / _TICKS_PER_S for pid in pids
    )


# --- the comparison ---


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench wire", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each pair (default: 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="so many times the messages (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="all runs on stdout, no table")
    parsed = parser.parse_args(arguments)
    if parsed.rounds < 1 or parsed.scale <= 0:
        parser.error("--rounds and --scale are above 0")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    points = [
        EchoPoint(each.size_bytes, each.window, max(1, int(each.count * parsed.scale)))
        for each in POINTS
    ]
    runs: dict[tuple[str, str, str], list[EchoRun]] = {}
    for number in range(parsed.rounds):
        for point in points:
            for client, server in ENDS:
                progress.print(f"round {number + 1}: {point.label}: {client} to {server}")
                run = one_run(client, server, point)
                runs.setdefault((client, server, point.label), []).append(run)
    if parsed.json:
        rows = [
            {"client": client, "server": server, "point": label, "runs": [asdict(r) for r in each]}
            for (client, server, label), each in runs.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("client", "server", "point", "p50 us", "messages/s", "CPU us, both ends")
    for (client, server, label), each in runs.items():
        table.add_row(
            client,
            server,
            label,
            f"{median(run.p50_us for run in each):.0f}",
            f"{median(run.rate_per_s for run in each):.0f}",
            f"{median(run.cpu_us for run in each):.1f}",
        )
    Console().print(table)


def one_run(client: str, server: str, point: EchoPoint) -> EchoRun:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.wire", "serve", server], stdout=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            port = serving.stdout.readline().strip()
            if not port:
                raise BenchError(f"the {server} server did not start")
            words = [client, port, str(serving.pid), *map(str, asdict(point).values())]
            done = subprocess.run(
                [sys.executable, "-m", "bench.wire", "client", *words],
                stdout=subprocess.PIPE,
                text=True,
                timeout=RUN_TIMEOUT_S,
            )
        finally:
            serving.kill()
    if done.returncode:
        raise BenchError(f"the {client} client failed at {point.label}")
    return EchoRun(**json.loads(done.stdout))


def child(words: Sequence[str]) -> None:
    # As a node does. Else the kernel clears new pages for each large message: half of the time.
    allocator.keep_buffers()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if words[0] == "serve":
            runner.run(serve(words[1]))
        else:
            port, pid, size, window, count = map(int, words[2:])
            run = runner.run(run_client(words[1], port, pid, EchoPoint(size, window, count)))
            print(json.dumps(asdict(run)))


if __name__ == "__main__":
    child(sys.argv[1:])
