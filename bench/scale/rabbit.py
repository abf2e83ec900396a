"""RabbitMQ's mirrored queues: durable, classic, on all three nodes.

As many connections as ours has declares under way, by turns to the three nodes: a queue's master
is the node that its client is connected to. A node that has lost its directory doesn't come back
by itself (it has to be forgotten first), so that isn't measured.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pika

from bench.measure import BenchError
from bench.peers.rabbitmq.cluster import LOOPBACK, RabbitCluster
from bench.scale.course import NODES

_COLUMNS = ("name", "pid", "synchronised_slave_pids", "state")
_BODY = b"x" * 100
_PERSISTENT = pika.BasicProperties(delivery_mode=2)
VICTIM, _ASKED = 0, 1


class RabbitSystem:
    name = "rabbitmq"
    refills = False

    def __init__(self, directory: Path, at_once: int) -> None:
        self._cluster = RabbitCluster(directory)
        self._at_once = at_once
        self._connections: list[pika.BlockingConnection] = []

    async def start(self) -> None:
        await asyncio.to_thread(self._cluster.start)
        for number in range(self._at_once):
            port = self._cluster.ports[number % NODES]
            parameters = pika.ConnectionParameters(host=LOOPBACK, port=port, heartbeat=0)
            self._connections.append(await asyncio.to_thread(pika.BlockingConnection, parameters))

    async def stop(self) -> None:
        await asyncio.to_thread(self._cluster.stop)

    def pids(self) -> Sequence[int]:
        return self._cluster.broker_pids()

    async def declare(self, queues: Sequence[int]) -> None:
        await asyncio.to_thread(self._each, queues, _declare)

    async def publish(self, queues: Sequence[int], messages: int) -> None:
        await asyncio.to_thread(self._each, queues, partial(_publish, messages))

    async def well(self, replicas: int) -> int:
        try:
            # Not as JSON: there a process has no node's name.
            listed = await asyncio.to_thread(
                partial(
                    self._cluster.control,
                    "list_queues", "--no-table-headers", *_COLUMNS,
                    through=_ASKED,
                )
            )  # fmt: skip
        except (BenchError, subprocess.TimeoutExpired):
            # A node whose queues synchronise may answer nobody.
            return 0
        dead = "" if self._cluster.is_running(VICTIM) else self._cluster.node_name(VICTIM)
        return sum(is_well(line, replicas, dead) for line in listed.splitlines())

    async def kill(self) -> None:
        # Those to the victim end with it, and nobody needs the others any more.
        self._connections.clear()
        self._cluster.kill_node(VICTIM)

    async def bring_back(self) -> None:
        self._cluster.start_node(VICTIM)

    async def wait_ready(self) -> None:
        raise AssertionError("it doesn't refill")

    def empty(self) -> None:
        raise AssertionError("it doesn't refill")

    def _each(self, queues: Sequence[int], do: Callable[[Any, str], None]) -> None:
        waiting = deque(queues)

        def work(connection: pika.BlockingConnection) -> None:
            with connection.channel() as channel:
                channel.confirm_delivery()
                while waiting:
                    try:
                        number = waiting.popleft()
                    except IndexError:
                        return  # Another one was faster.
                    # The policy for mirrors goes by this prefix.
                    do(channel, f"classic.scale{number:06d}")

        with ThreadPoolExecutor(len(self._connections)) as pool:
            list(pool.map(work, self._connections))


def is_well(line: str, replicas: int, dead: str) -> bool:
    """Of a line of `rabbitmqctl list_queues` with `_COLUMNS`; `dead`: a node's name, or empty."""
    fields = line.split("\t")
    if len(fields) != len(_COLUMNS):
        return False
    _, pid, mirrors, state = fields
    if state != "running" or not pid or (dead and f"<{dead}." in pid):
        return False
    return 1 + mirrors.count("@") >= replicas


def _declare(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True)


def _publish(messages: int, channel: Any, queue: str) -> None:
    for _ in range(messages):
        channel.basic_publish("", queue, _BODY, _PERSISTENT, mandatory=True)
