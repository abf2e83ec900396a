"""The footing of a ring: three processes on bare TCP that do the least a trip needs.

No broker can confirm faster than its wire and its disk. A frame goes from the publishers to the
first process, from there to the second and the third; each forwards it, then appends it to its one
file, together with all that came in the same turn of its event loop, whatever the queue, and syncs
(at once if that is little, in a thread if not). The second process tells the third the last frame
on its disk, the third tells the first the last one on both, and the first tells the publishers
the last one on all three. There is no queue, no index and no state, and no process may fail.

A consumer is a connection of its own to the first process. It is sent the frames that are on all
three disks, and acknowledges those of one turn together; the acknowledgement goes around the ring
and onto each disk as a small frame.

    python -m bench.peers.raw_ring node NUMBER FILE PORT PORT PORT
    python -m bench.peers.raw_ring publish PORT COUNT SIZE_BYTES WINDOW QUEUES CONSUMED
                                   (CONSUMED is 0 or 1; JSON on stdout)

Frames have a number, a length and their messages; one without messages is a mark: all frames up to
its number are on the disks of those that it has passed. All publishers share one connection, as
those of one client of ours do.
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import cast

import uvloop

from bench import procs
from bench.measure import BenchError, ClientReport, Point
from bench.peers.windows import Windows

NODES = 3
# A frame holds a quarter of the window, as our client sends it, unless that is too long.
_FRAMES_IN_WINDOW = 4
_FRAME_BYTES_MAX = 64 * 1024
# Up to this size a process syncs on its event loop, as our nodes do.
_IN_PLACE_BYTES_MAX = 16 * 1024
_START_TIMEOUT_S = 20.0
_PUBLISH_TIMEOUT_S = 600.0
_HEADER = struct.Struct("<QI")  # the number, the length of what follows
_ACKED = struct.Struct("<Q")  # all messages up to this frame
# As a mark: the connection is the consumer's, whose marks are acknowledgements.
_CONSUMES = 2**64 - 1


class _Link(asyncio.Protocol):
    """Cuts what arrives into frames. `on_frames` gets the bytes of whole ones and the number of
    the last; `on_mark` the number of a mark."""

    def __init__(
        self, on_mark: Callable[[int], None], on_frames: Callable[[bytes, int], None] | None = None
    ) -> None:
        self._on_mark = on_mark
        self._on_frames = on_frames
        self._begun = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of it.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._begun:
            self._begun += data
            data = bytes(self._begun)
        begin = at = last = mark = 0
        whole: list[bytes] = []
        while len(data) - at >= _HEADER.size:
            number, length = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length
            if end > len(data):
                break
            if length:
                last = number
            else:
                # Marks only grow: the last of several says all.
                mark = number
                whole.append(data[begin:at])
                begin = end
            at = end
        if last and self._on_frames is not None:
            self._on_frames(b"".join(whole) + data[begin:at], last)
        if mark:
            self._on_mark(mark)
        self._begun = bytearray(data[at:])


class _RingProcess:
    """Process `number` of the ring: 0 has the publishers, and hears when all have written."""

    def __init__(self, number: int, path: Path, ports: Sequence[int]) -> None:
        self._number = number
        self._next_port = ports[(number + 1) % NODES]
        self._port = ports[number]
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._downstream: asyncio.Transport
        self._publishers: asyncio.Transport
        self._consumer: asyncio.Transport | None = None
        # Frames that the consumer isn't to have yet, and the number of the last of them.
        self._undelivered: deque[tuple[int, bytes]] = deque()
        self._unwritten: list[bytes] = []
        self._last = 0
        self._writing = False
        # The last frame on this disk, the last on all disks before, and the last one reported.
        self._persisted = self._before = self._told = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(self._accept, "127.0.0.1", self._port)
        async with asyncio.timeout(_START_TIMEOUT_S):
            link = _Link(self._mark)
            while True:
                try:
                    await loop.create_connection(lambda: link, "127.0.0.1", self._next_port)
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
        self._downstream = link.transport
        print("ready", flush=True)
        await loop.create_future()

    def _accept(self) -> _Link:
        return _Publishers(self) if self._number == 0 else _Link(self._mark, self.ops)

    def publishers(self, transport: asyncio.Transport) -> None:
        self._publishers = transport

    def marked(self, transport: asyncio.Transport, number: int) -> None:
        """At the first process, by the last one or by the consumer."""
        if number == _CONSUMES:
            self._consumer = transport
            transport.write(_HEADER.pack(_CONSUMES, 0))
        elif transport is self._consumer:
            # Behind all frames so far, whose marks say that it is on a disk as well.
            self._take(_HEADER.pack(self._last, _ACKED.size) + _ACKED.pack(number), self._last)
        else:
            self._mark(number)

    def ops(self, frames: bytes, last: int) -> None:
        if self._consumer is not None:
            self._undelivered.append((last, frames))
        self._take(frames, last)

    def _take(self, frames: bytes, last: int) -> None:
        if self._number < NODES - 1:
            self._downstream.write(frames)
        self._last = last
        self._unwritten.append(frames)
        if not self._writing:
            self._writing = True
            # Two turns later: the loop sends the frames on in the next one, and a sync before
            # it would keep the next process waiting for this one's disk.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._write)

    def _mark(self, number: int) -> None:
        self._before = number
        self._tell()

    def _write(self) -> None:
        buffers, self._unwritten = self._unwritten, []
        last = self._last
        if sum(map(len, buffers)) <= _IN_PLACE_BYTES_MAX:
            self._sync(buffers)
            self._written(last)
        else:
            done = asyncio.get_running_loop().run_in_executor(None, self._sync, buffers)
            done.add_done_callback(partial(self._in_thread, last))

    def _in_thread(self, last: int, done: asyncio.Future[None]) -> None:
        done.result()
        self._written(last)

    def _sync(self, buffers: Iterable[bytes]) -> None:
        data = b"".join(buffers)
        if os.write(self._descriptor, data) != len(data):
            raise OSError("a short write; disk full?")
        os.fdatasync(self._descriptor)

    def _written(self, last: int) -> None:
        self._persisted = last
        self._writing = bool(self._unwritten)
        if self._writing:
            self._write()
        self._tell()

    def _tell(self) -> None:
        """Reports the last frame that is on all disks up to this one, if that is news."""
        reached = min(self._persisted, self._before) if self._number != 1 else self._persisted
        if reached <= self._told:
            return
        self._told = reached
        stream = self._downstream if self._number else self._publishers
        stream.write(_HEADER.pack(reached, 0))
        while self._undelivered and self._undelivered[0][0] <= reached:
            assert self._consumer is not None
            self._consumer.write(self._undelivered.popleft()[1])


class _Publishers(_Link):
    """The first process's side of the publishers' connection, of the consumer's, or of the link of
    the last process: frames come from the first, marks from the others."""

    def __init__(self, process: _RingProcess) -> None:
        super().__init__(self._marked, self._ops)
        self._process = process

    def _marked(self, number: int) -> None:
        self._process.marked(self.transport, number)

    def _ops(self, frames: bytes, last: int) -> None:
        self._process.publishers(self.transport)
        self._process.ops(frames, last)


class _Client(_Link):
    """Keeps every queue's window full until all is confirmed."""

    def __init__(self, point: Point) -> None:
        super().__init__(self._confirmed)
        frame = min(point.window // _FRAMES_IN_WINDOW, _FRAME_BYTES_MAX // point.size_bytes)
        self._windows = Windows(point, max(1, frame))
        self._queues = range(point.queues)
        self._body = os.urandom(point.size_bytes)
        self._reached = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> ClientReport:
        cpu_before = procs.own_cpu_s()
        started = time.perf_counter()
        self._fill(self._queues)
        await self.done
        return self._windows.report(
            seconds=time.perf_counter() - started, client_cpu_s=procs.own_cpu_s() - cpu_before
        )

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the ring has gone: {error}"))

    def _fill(self, queues: Iterable[int]) -> None:
        windows, body, now = self._windows, self._body, time.perf_counter()
        parts: list[bytes] = []
        for queue in queues:
            while count := windows.take(queue, now):
                parts += _HEADER.pack(windows.frames, count * len(body)), body * count
        if parts:
            self.transport.write(b"".join(parts))

    def _confirmed(self, number: int) -> None:
        now = time.perf_counter()
        numbers = range(self._reached + 1, number + 1)
        self._reached = number
        queues = {self._windows.confirm(each, now) for each in numbers}
        if self._windows.are_done:
            self.done.set_result(None)
        else:
            self._fill(queues)


class _Consumer(_Link):
    """Acknowledges all that comes, until it has every message."""

    def __init__(self, point: Point) -> None:
        super().__init__(self._marked, self._delivered)
        self._size_bytes = point.size_bytes
        self._left = point.count
        self._last = 0
        loop = asyncio.get_running_loop()
        # The ring knows it: what is published from now on comes here.
        self.begun: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[float] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(_HEADER.pack(_CONSUMES, 0))

    def connection_lost(self, error: Exception | None) -> None:
        for each in (self.begun, self.done):
            if not each.done():
                each.set_exception(ConnectionError(f"the ring has gone: {error}"))

    def _marked(self, _: int) -> None:
        self.begun.set_result(None)

    def _delivered(self, frames: bytes, last: int) -> None:
        headers = (last - self._last) * _HEADER.size
        self._last = last
        self._left -= (len(frames) - headers) // self._size_bytes
        self.transport.write(_HEADER.pack(last, 0))
        if not self._left:
            self.done.set_result(time.perf_counter())


async def _publish(port: int, point: Point) -> ClientReport:
    loop = asyncio.get_running_loop()
    consumer: _Consumer | None = None
    if point.consumed:
        _, consumer = await loop.create_connection(lambda: _Consumer(point), "127.0.0.1", port)
        await consumer.begun
    _, client = await loop.create_connection(lambda: _Client(point), "127.0.0.1", port)
    started = time.perf_counter()
    report = await client.run()
    if consumer is None:
        return report
    return replace(report, consumed_per_s=point.count / (await consumer.done - started))


class RawRing:
    """The peer: three processes for each point. `stop` ends those that still run."""

    name = "raw-ring"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nodes: list[subprocess.Popen[str]] = []
        self._ports: list[int] = []

    def describe(self) -> dict[str, str]:
        return {
            "version": f"uvloop {version('uvloop')}",
            "nodes": str(NODES),
            "queue": "one file for all",
            "messages": "once around the ring, fdatasync on each",
        }

    def broker_pids(self) -> Sequence[int]:
        return [node.pid for node in self._nodes]

    def handed_bytes(self) -> int | None:
        return None

    def prepare(self, queues: Sequence[str]) -> None:
        self._directory.mkdir(exist_ok=True)
        self._ports = [procs.free_port() for _ in range(NODES)]
        for number in range(NODES):
            words = ["node", number, self._file(queues, number), *self._ports]
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
        each = (point.count, point.size_bytes, point.window, len(queues), int(point.consumed))
        done = subprocess.run(
            _command(["publish", self._ports[0], *each]),
            capture_output=True,
            text=True,
            timeout=_PUBLISH_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"{self.name}: the publisher failed: {done.stderr.strip()}")
        return ClientReport(**json.loads(done.stdout))

    def remove(self, queues: Sequence[str]) -> None:
        self.stop()
        for number in range(NODES):
            self._file(queues, number).unlink()

    def stop(self) -> None:
        for node in self._nodes:
            node.kill()
            node.communicate()
        self._nodes.clear()

    def _file(self, queues: Sequence[str], number: int) -> Path:
        return self._directory / f"{queues[0]}.{number}"


def _command(words: Iterable[object]) -> list[str]:
    return [sys.executable, "-m", "bench.peers.raw_ring", *map(str, words)]


def main(words: Sequence[str]) -> None:
    what, *rest = words
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if what == "node":
            number, path, *ports = rest
            runner.run(_RingProcess(int(number), Path(path), [int(port) for port in ports]).run())
        else:
            port, count, size_bytes, window, queues, consumed = map(int, rest)
            point = Point(count, size_bytes, window, queues, consumed=bool(consumed))
            print(json.dumps(asdict(runner.run(_publish(port, point)))))


if __name__ == "__main__":
    main(sys.argv[1:])
