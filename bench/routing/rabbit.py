"""RabbitMQ's side: exchanges, queues and bindings by pika, messages by the C client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pika

from bench.measure import BenchError, ClientReport, Point
from bench.peers.rabbitmq.cluster import LOOPBACK, NODES, RabbitCluster
from bench.routing.cases import PRIORITY_MAX, Case

_PUBLISH_TIMEOUT_S = 600.0
# The policy for mirrors goes by this prefix.
_PREFIX = "classic."


class RabbitSide:
    """Of a running cluster, which it doesn't own. Its queues are durable and mirrored."""

    name = "rabbitmq"

    def __init__(self, cluster: RabbitCluster, client: Path) -> None:
        self._cluster = cluster
        self._client = client
        parameters = pika.ConnectionParameters(host=LOOPBACK, port=cluster.port, heartbeat=0)
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()

    def close(self) -> None:
        self._connection.close()

    def broker_pids(self) -> Sequence[int]:
        return self._cluster.broker_pids()

    def set_up(self, case: Case, label: str) -> None:
        arguments = {} if case.priority is None else {"x-max-priority": PRIORITY_MAX}
        for queue in self._queues(case, label):
            self._channel.queue_declare(queue, durable=True, arguments=arguments)
        if not case.exchange:
            return
        self._channel.exchange_declare(label, case.exchange, durable=True)
        for binding in case.each_binding():
            self._channel.queue_bind(
                self._queues(case, label)[binding.queue],
                label,
                binding.key,
                arguments={"x-match": "all", **dict(binding.headers)} if binding.headers else None,
            )

    def publish(self, case: Case, label: str, point: Point) -> ClientReport:
        words = ["--port", self._cluster.port, "--count", point.count]
        words += ["--size", point.size_bytes, "--window", point.window]
        words += ["--exchange", label if case.exchange else ""]
        words += ["--key", case.key if case.exchange else self._queues(case, label)[0]]
        if case.ttl_ms is not None:
            words += ["--expiration", case.ttl_ms]
        if case.priority is not None:
            words += ["--priority", case.priority]
        if case.header is not None:
            words += ["--header", "=".join(case.header)]
        done = subprocess.run(
            [self._client, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PUBLISH_TIMEOUT_S,
        )
        if done.returncode:
            raise BenchError(done.stderr.strip())
        report = json.loads(done.stdout)
        return ClientReport(
            seconds=report["seconds"],
            rate_per_s=report["rate_per_s"],
            acked=report["acked"],
            nacked=report["nacked"],
            client_cpu_s=report["client_cpu_s"],
            **{f"{name}_ms": value for name, value in report["confirm_ms"].items()},
        )

    def depths(self, case: Case, label: str) -> list[int]:
        """The messages in each queue. Raises `BenchError` for one that has lost a mirror."""
        columns = ("messages", "synchronised_slave_pids")
        found = self._cluster.queue_infos(self._queues(case, label), columns)
        for info in found:
            mirrors = info["synchronised_slave_pids"]
            if not isinstance(mirrors, list) or len(mirrors) != NODES - 1:
                raise BenchError(f"RabbitMQ: {info['name']} has the mirrors {mirrors}")
        return [int(str(info["messages"])) for info in found]

    def remove(self, case: Case, label: str) -> None:
        for queue in self._queues(case, label):
            self._channel.queue_delete(queue)
        if case.exchange:
            self._channel.exchange_delete(label)

    def _queues(self, case: Case, label: str) -> list[str]:
        return [f"{_PREFIX}{label}.{number}" for number in range(case.queues)]
