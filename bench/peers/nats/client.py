"""A client for NATS JetStream that is not the bottleneck of a benchmark.

It speaks the text protocol (https://docs.nats.io/reference/reference-protocols/nats-protocol): a
message is `PUB subject reply length`, its ack a message to that reply. Each message has a reply
subject of its own, whose last part is the message's number, so an ack needs no table of futures.
All acks that arrive together are found by one regular expression. (nats-py 2.16 takes 97 us
of CPU a message by `publish`, and 28 by `publish_async`; this client takes 3 to 5.)

    python -m bench.peers.nats.client PORTS COUNT SIZE_BYTES WINDOW STREAM...

PORTS has the port of each stream's leader, with commas between: a publisher is connected to it, as
those of the other peers are to their masters. Prints one JSON object on stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

import uvloop

from bench import procs
from bench.measure import BenchError, ClientReport, Point
from bench.peers.windows import Windows

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1"}\r\n'
# JetStream leaves two spaces where a reply subject could be.
_HEAD = re.compile(rb"MSG r\.\d+\.(\d+) \d+ +(\d+)\r\n")


class _Connection(asyncio.Protocol):
    """One connection to the server at `port`, subscribed to the replies of a subject of its own:
    replies go to whoever asks for them, on any server. `on_replies` gets (number, payload) of each.
    """

    def __init__(self, port: int, on_replies: Callable[[list[tuple[int, bytes]]], None]) -> None:
        self.replies = b"r.%d." % port
        self._on_replies = on_replies
        self._begun = b""
        self.transport: asyncio.Transport
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of it.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(_CONNECT + b"SUB " + self.replies + b"* 1\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_exception(BenchError(f"NATS: a server has closed: {error}"))

    def data_received(self, data: bytes) -> None:
        data = self._begun + data
        at = 0
        replies: list[tuple[int, bytes]] = []
        while (line_end := data.find(b"\r\n", at)) >= 0:
            head = _HEAD.match(data, at)
            if head is None:
                self._said(data[at:line_end])
                at = line_end + 2
                continue
            begin = head.end()
            end = begin + int(head[2])
            if end + 2 > len(data):
                break
            replies.append((int(head[1]), data[begin:end]))
            at = end + 2
        self._begun = data[at:]
        if replies:
            self._on_replies(replies)

    def _said(self, line: bytes) -> None:
        if line == b"PING":
            self.transport.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            self.lost.set_exception(BenchError(f"NATS: {line.decode()}"))


async def _connect(port: int, on_replies: Callable[[list[tuple[int, bytes]]], None]) -> _Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: _Connection(port, on_replies), "127.0.0.1", port
    )
    return connection


class _Publisher:
    """Keeps every stream's window full until all messages are acknowledged."""

    def __init__(self, point: Point, streams: Sequence[str]) -> None:
        self._windows = Windows(point, 1)
        self._tail = b" %d\r\n%s\r\n" % (point.size_bytes, os.urandom(point.size_bytes))
        self._streams = [stream.encode() for stream in streams]
        self._heads: list[bytes] = []
        self._connections: list[_Connection] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, ports: Sequence[int]) -> ClientReport:
        by_port = {port: await _connect(port, self._acked) for port in sorted(set(ports))}
        self._connections = [by_port[port] for port in ports]
        self._heads = [
            b"PUB %s %s" % (stream, connection.replies)
            for stream, connection in zip(self._streams, self._connections, strict=True)
        ]
        cpu_before = procs.own_cpu_s()
        started = time.perf_counter()
        self._fill(range(len(ports)))
        ends = [self._done, *(each.lost for each in by_port.values())]
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ended:
            each.result()
        seconds = time.perf_counter() - started
        return self._windows.report(seconds=seconds, client_cpu_s=procs.own_cpu_s() - cpu_before)

    def _fill(self, queues: Iterable[int]) -> None:
        windows, tail, now = self._windows, self._tail, time.perf_counter()
        parts: dict[_Connection, list[bytes]] = {}
        for queue in queues:
            head = self._heads[queue]
            ours = parts.setdefault(self._connections[queue], [])
            while windows.take(queue, now):
                ours += head, str(windows.frames).encode(), tail
        for connection, pieces in parts.items():
            if pieces:
                connection.transport.write(b"".join(pieces))

    def _acked(self, replies: list[tuple[int, bytes]]) -> None:
        now = time.perf_counter()
        queues = set()
        for number, payload in replies:
            if b'"error"' in payload or b'"seq"' not in payload:
                self._done.set_exception(BenchError(f"NATS refused a message: {payload!r}"))
                return
            queues.add(self._windows.confirm(number, now))
        if self._windows.are_done:
            self._done.set_result(None)
        else:
            self._fill(queues)


async def _publish(point: Point, streams: Sequence[str], ports: Sequence[int]) -> ClientReport:
    return await _Publisher(point, streams).run(ports)


async def ask(
    port: int, questions: Sequence[tuple[str, object]], *, timeout_s: float
) -> list[dict[str, Any]]:
    """The JSON answers of JetStream's API to requests, in their order. They are asked all at once:
    to make a stream takes half a second, an election, but a hundred of them little more."""
    arrived: asyncio.Queue[list[tuple[int, bytes]]] = asyncio.Queue()
    connection = await _connect(port, arrived.put_nowait)
    for number, (subject, question) in enumerate(questions):
        said = json.dumps(question).encode()
        head = b"PUB %s %s%d %d" % (subject.encode(), connection.replies, number, len(said))
        connection.transport.write(head + b"\r\n" + said + b"\r\n")
    answers: dict[int, bytes] = {}
    try:
        async with asyncio.timeout(timeout_s):
            while len(answers) < len(questions):
                answers.update(await arrived.get())
    finally:
        connection.lost.cancel()
        connection.transport.close()
    return [json.loads(answers[number]) for number in range(len(questions))]


def main(words: Sequence[str]) -> None:
    ports, count, size_bytes, window, *streams = words
    point = Point(int(count), int(size_bytes), int(window), len(streams))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(_publish(point, streams, [int(each) for each in ports.split(",")]))
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main(sys.argv[1:])
