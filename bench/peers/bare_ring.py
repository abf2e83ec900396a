"""The footing of a ring: three processes of grpc.aio that do the least a trip needs.

No broker can confirm faster than its wire and its disk. A frame goes from the publisher to the
first process, from there to the second and the third; each forwards it, then writes and syncs it
(at once if it is small, in a thread if not). The second process tells the third the last message
on its disk, the third tells the first the last one on both, and the first tells the publisher
the last one on all three. There is no queue, no index and no state, and no process may fail.

    python -m bench.peers.bare_ring node NUMBER FILE PORT PORT PORT
    python -m bench.peers.bare_ring publish PORT COUNT SIZE_BYTES WINDOW     (JSON on stdout)

A message on any stream is a u64, the number of the last message, and for ops the bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from bench import procs
from bench.measure import BenchError, ClientReport, Point
from bench.peers.footing import write_all
from bench.stats import client_report

NODES = 3
# Of one frame, as our client sends it: a quarter of the window.
_FRAMES_IN_WINDOW = 4
# Up to this size a process syncs on its event loop, as our nodes do.
_IN_PLACE_BYTES_MAX = 16 * 1024
_START_TIMEOUT_S = 20.0
_PUBLISH_TIMEOUT_S = 600.0
_NUMBER = struct.Struct("<Q")
_PUBLISH = "/bench.BareRing/Publish"
_OPS = "/bench.BareRing/Ops"

_Context = grpc.aio.ServicerContext[bytes, bytes]


class _Outgoing:
    """The messages that wait to be written to one stream, one at a time."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self.put = self._waiting.put_nowait

    async def run(self, write: Any) -> None:
        while True:
            await write(await self._waiting.get())


class _RingProcess:
    """Process `number` of the ring: 0 has the publisher, and hears when all have written."""

    def __init__(self, number: int, path: Path, ports: Sequence[int]) -> None:
        self._number = number
        self._next_port = ports[(number + 1) % NODES]
        self._port = ports[number]
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._downstream = _Outgoing()
        self._publisher: _Outgoing | None = None
        self._unwritten: list[bytes] = []
        self._last = 0
        self._writing = False
        # The last message on this disk, the last on all disks before, and the last one reported.
        self._persisted = 0
        self._before = 0
        self._told = 0

    async def run(self) -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Handler({_PUBLISH: self._publish, _OPS: self._ops}),))
        server.add_insecure_port(f"127.0.0.1:{self._port}")
        await server.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._next_port}")
        async with asyncio.timeout(_START_TIMEOUT_S):
            await channel.channel_ready()
        print("ready", flush=True)
        await self._downstream.run(channel.stream_stream(_OPS)().write)

    async def _publish(self, _: object, context: _Context) -> None:
        self._publisher = _Outgoing()
        writer = asyncio.create_task(self._publisher.run(context.write))
        try:
            while isinstance(data := await context.read(), bytes):
                self._op(data)
        finally:
            writer.cancel()

    async def _ops(self, _: object, context: _Context) -> None:
        while isinstance(data := await context.read(), bytes):
            if len(data) > _NUMBER.size:
                self._op(data)
            else:
                self._before = _NUMBER.unpack(data)[0]
                self._tell()

    def _op(self, data: bytes) -> None:
        if self._number < NODES - 1:
            self._downstream.put(data)
        self._last = _NUMBER.unpack_from(data)[0]
        self._unwritten.append(data)
        if not self._writing:
            self._writing = True
            # Two turns later: the loop forwards the frame in the next one, and a sync before
            # it would keep the next process waiting for this one's disk.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._write)

    def _write(self) -> None:
        buffers, self._unwritten = self._unwritten, []
        last = self._last
        if sum(map(len, buffers)) <= _IN_PLACE_BYTES_MAX:
            self._sync(buffers)
            self._written(last)
        else:
            done = asyncio.get_running_loop().run_in_executor(None, self._sync, buffers)
            done.add_done_callback(lambda each: self._in_thread(each, last))

    def _in_thread(self, done: asyncio.Future[None], last: int) -> None:
        done.result()
        self._written(last)

    def _sync(self, buffers: list[bytes]) -> None:
        for each in buffers:
            write_all(self._descriptor, each, 1)
        os.fdatasync(self._descriptor)

    def _written(self, last: int) -> None:
        self._persisted = last
        self._writing = bool(self._unwritten)
        if self._writing:
            self._write()
        self._tell()

    def _tell(self) -> None:
        """Reports the last message that is on all disks up to this one, if that is news."""
        reached = min(self._persisted, self._before) if self._number != 1 else self._persisted
        if reached <= self._told:
            return
        self._told = reached
        stream = self._downstream if self._number else self._publisher
        if stream is not None:
            stream.put(_NUMBER.pack(reached))


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = self._methods.get(handler_call_details.method)
        return method and grpc.stream_stream_rpc_method_handler(method)


async def _publish(port: int, point: Point) -> ClientReport:
    """Keeps the window full, in frames of a quarter of it."""
    frame = max(1, point.window // _FRAMES_IN_WINDOW)
    body = os.urandom(point.size_bytes)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        call: Any = channel.stream_stream(_PUBLISH)()
        sent = confirmed = 0
        handed: deque[tuple[int, float]] = deque()
        latencies_s: list[float] = []
        cpu_before = procs.own_cpu_s()
        started = time.perf_counter()
        while confirmed < point.count:
            while sent < point.count and sent - confirmed + frame <= max(point.window, frame):
                count = min(frame, point.count - sent)
                sent += count
                handed.append((sent, time.perf_counter()))
                await call.write(_NUMBER.pack(sent) + body * count)
            confirmed = _NUMBER.unpack(await call.read())[0]
            now = time.perf_counter()
            while handed and handed[0][0] <= confirmed:
                latencies_s.append(now - handed.popleft()[1])
        seconds = time.perf_counter() - started
    return client_report(
        latencies_s,
        seconds=seconds,
        acked=confirmed,
        client_cpu_s=procs.own_cpu_s() - cpu_before,
    )


class BareRing:
    """The peer: each queue has three processes of its own. `stop` ends those that still run."""

    name = "bare-ring"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nodes: list[subprocess.Popen[str]] = []
        self._ports: list[int] = []

    def describe(self) -> dict[str, str]:
        return {
            "version": f"grpcio {version('grpcio')}, uvloop {version('uvloop')}",
            "nodes": str(NODES),
            "queue": "one file each",
            "messages": "once around the ring, fdatasync on each",
        }

    def broker_pids(self) -> Sequence[int]:
        return [node.pid for node in self._nodes]

    def prepare(self, queues: Sequence[str]) -> None:
        (queue,) = queues
        self._directory.mkdir(exist_ok=True)
        self._ports = [procs.free_port() for _ in range(NODES)]
        for number in range(NODES):
            words = ["node", number, self._directory / f"{queue}.{number}", *self._ports]
            self._nodes.append(
                subprocess.Popen(
                    _command(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
                )
            )
        for node in self._nodes:
            assert node.stdout is not None
            if node.stdout.readline() != "ready\n":
                raise BenchError(f"{self.name}: node {node.args!r} did not start")

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        assert len(queues) == 1, queues
        words = ["publish", self._ports[0], point.count, point.size_bytes, point.window]
        done = subprocess.run(
            _command(words), capture_output=True, text=True, timeout=_PUBLISH_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise BenchError(f"{self.name}: the publisher failed: {done.stderr.strip()}")
        return ClientReport(**json.loads(done.stdout))

    def remove(self, queues: Sequence[str]) -> None:
        (queue,) = queues
        self.stop()
        for path in self._directory.glob(f"{queue}.*"):
            path.unlink()

    def stop(self) -> None:
        for node in self._nodes:
            node.kill()
            node.communicate()
        self._nodes.clear()


def _command(words: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "bench.peers.bare_ring", *map(str, words)]


def main(words: Sequence[str]) -> None:
    what, *rest = words
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if what == "node":
            number, path, *ports = rest
            runner.run(_RingProcess(int(number), Path(path), [int(port) for port in ports]).run())
        else:
            port, count, size_bytes, window = map(int, rest)
            point = Point(count, size_bytes, window)
            print(json.dumps(asdict(runner.run(_publish(port, point)))))


if __name__ == "__main__":
    main(sys.argv[1:])
