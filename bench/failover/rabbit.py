"""RabbitMQ's mirrored and quorum queue on one cluster of three nodes, each on a host of its own.

Both queues are published to in every round. The quorum queue's leader is moved to the mirrored
queue's master before a fault, so that one fault meets both.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemesis.network import Network

from bench.failover import rabbit_client
from bench.failover.hosts import received_bytes
from bench.failover.load import Sender
from bench.measure import BenchError
from bench.peers.rabbitmq.cluster import Place, RabbitCluster

HOSTS = ("q1", "q2", "q3")
AMQP_PORT = 5672
TYPES = {"rabbitmq": "classic", "rabbitmq-quorum": "quorum"}
WHOLE_S_MAX = 1800.0
WHOLE_POLL_S = 0.3
COLUMNS = ("name", "pid", "synchronised_slave_pids", "leader", "online")


class RabbitSystem:
    def __init__(
        self, directory: Path, network: Network, kinds: Sequence[str], client: Path
    ) -> None:
        self.kinds = [kind for kind in TYPES if kind in kinds]
        self._network = network
        # The compiled publisher, which fills a queue faster than one in Python.
        self._client = client
        self.addresses = [network.address(host) for host in HOSTS]
        self._cluster = RabbitCluster(
            directory,
            # The clients are on another host of the run's own network.
            settings=["loopback_users = none"],
            places=[
                Place(address, AMQP_PORT, host, tuple(network.inside(host)))
                for host, address in zip(HOSTS, self.addresses, strict=True)
            ],
        )
        self._down: set[str] = set()

    def describe(self) -> dict[str, str]:
        return {
            "version": self._cluster.control("version").strip(),
            "nodes": str(len(HOSTS)),
            "queues": "classic, ha-mode=all, ha-sync-mode=automatic; quorum, 3 members",
            "client": "pika; to the next node at once when its connection ends, or after "
            f"{rabbit_client.SILENCE_S_MAX:g} s without a confirm; mandatory, repeats what is open",
        }

    async def start(self) -> None:
        await asyncio.to_thread(self._cluster.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._cluster.stop)

    async def declare(self, kind: str, name: str) -> None:
        queue, type_name = full_name(kind, name), TYPES[kind]
        await asyncio.to_thread(rabbit_client.declare, self.addresses[0], queue, type_name)

    async def delete(self, kind: str, name: str) -> None:
        queue = full_name(kind, name)
        await asyncio.to_thread(rabbit_client.delete, self.addresses[0], queue)

    async def wait_whole(self, name: str, kinds: Sequence[str]) -> dict[str, str]:
        deadline = time.monotonic() + WHOLE_S_MAX
        followers = Followers()
        while time.monotonic() < deadline:
            masters = await asyncio.to_thread(self._masters_if_whole, name, kinds, followers)
            if masters is not None:
                return masters
            await asyncio.sleep(WHOLE_POLL_S)
        raise BenchError(f"rabbitmq: not all replicas are synchronised after {WHOLE_S_MAX:g} s")

    async def gather(self, name: str, masters: Mapping[str, str]) -> dict[str, str]:
        if len(set(masters.values())) == 1:
            return dict(masters)
        await asyncio.to_thread(self._move_leader, name, masters)
        return await self.wait_whole(name, list(masters))

    def mirror(self, master: str) -> str:
        return next(host for host in HOSTS if host != master)

    def sender(self, kind: str) -> Sender:
        by_host = dict(zip(HOSTS, self.addresses, strict=True))
        return rabbit_client.RabbitSender(by_host, lambda name: full_name(kind, name))

    async def fill(self, kind: str, name: str, count: int, size_bytes: int) -> None:
        masters = await asyncio.to_thread(self._masters, name, [kind])
        at = self.addresses[HOSTS.index(masters[kind])]
        options = {
            "--host": at, "--port": AMQP_PORT, "--queue": full_name(kind, name),
            "--type": TYPES[kind], "--count": count, "--size": size_bytes, "--window": 1000,
        }  # fmt: skip
        words = [str(word) for pair in options.items() for word in pair]

        def filled() -> subprocess.CompletedProcess[bytes]:
            command = [str(self._client), *words]
            return subprocess.run(command, capture_output=True, check=False, timeout=WHOLE_S_MAX)

        done = await asyncio.to_thread(filled)
        if done.returncode or json.loads(done.stdout)["nacked"]:
            raise BenchError(f"rabbitmq: the queue can't be filled: {done.stderr.decode().strip()}")

    async def drain(self, kind: str, name: str) -> list[int]:
        queue = full_name(kind, name)
        up = next(h for h in HOSTS if h not in self._down)
        address = self.addresses[HOSTS.index(up)]
        return await asyncio.to_thread(rabbit_client.drain, address, queue)

    def kill(self, node: str) -> None:
        self._down.add(node)
        self._cluster.kill_node(HOSTS.index(node))

    async def bring_back(self, node: str) -> None:
        self._cluster.start_node(HOSTS.index(node))
        self._down.discard(node)

    def cut(self, node: str) -> None:
        self._network.cut(node, *(host for host in HOSTS if host != node))

    def heal(self, node: str) -> None:
        self._network.heal(node, *(host for host in HOSTS if host != node))

    def received_bytes(self, node: str) -> int:
        return received_bytes(self._network, node)

    # --- inside; all of it blocks ---

    def _listening(self) -> list[int]:
        return [index for index in range(len(HOSTS)) if self._cluster.is_listening(index)]

    def _rows(self, name: str, kinds: Sequence[str]) -> dict[str, QueueRow]:
        """Of these kinds. Raises `BenchError` if no node answers."""
        listening = self._listening()
        if not listening:
            raise BenchError("rabbitmq: no node listens")
        # Not as JSON: there a process has no node's name.
        listed = self._cluster.control(
            "list_queues", "--no-table-headers", *COLUMNS, through=listening[0]
        )
        wanted = {full_name(kind, name): kind for kind in kinds}
        rows = map(queue_row, filter(None, listed.splitlines()))
        return {wanted[row.queue]: row for row in rows if row.queue in wanted}

    def _masters(self, name: str, kinds: Sequence[str]) -> dict[str, str]:
        return {kind: row.master for kind, row in self._rows(name, kinds).items()}

    def _masters_if_whole(
        self, name: str, kinds: Sequence[str], followers: Followers
    ) -> dict[str, str] | None:
        """None while a replica is missing, or lags; or nothing answers."""
        if len(self._listening()) < len(HOSTS):
            return None
        try:
            rows = self._rows(name, kinds)
            if len(rows) < len(kinds) or not all(row.is_whole for row in rows.values()):
                return None
            if "rabbitmq-quorum" in kinds and not followers.caught_up(self._members(name)):
                return None
        except (BenchError, subprocess.TimeoutExpired):
            # A node that starts may refuse to answer, a queue have no leader, and one that
            # synchronises a mirror answers nobody until it is done.
            return None
        return {kind: row.master for kind, row in rows.items()}

    def _members(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Of the quorum queue."""
        answer = self._cluster.control(
            "quorum_status", full_name("rabbitmq-quorum", name), "--formatter", "json",
            through=self._listening()[0], program="rabbitmq-queues",
        )  # fmt: skip
        members: Sequence[Mapping[str, Any]] = json.loads(answer)
        return members

    def _move_leader(self, name: str, masters: Mapping[str, str]) -> None:
        target = HOSTS.index(masters["rabbitmq"])
        leader = HOSTS.index(masters["rabbitmq-quorum"])
        queue = f"'%2F_{full_name('rabbitmq-quorum', name)}'"
        nodes = [f"{{{queue}, '{self._cluster.node_name(index)}'}}" for index in (leader, target)]
        self._cluster.control(
            "eval", f"ra:transfer_leadership({nodes[0]}, {nodes[1]}).", through=target
        )


def full_name(kind: str, name: str) -> str:
    # The policy for mirrors goes by this prefix.
    return f"{TYPES[kind]}.{name}"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """`master`: its host, or a quorum queue's leader's; empty if there is none."""

    queue: str
    master: str
    is_whole: bool


def queue_row(line: str) -> QueueRow:
    """Of a line of `rabbitmqctl list_queues` with `COLUMNS`."""
    queue, pid, mirrors, leader, online = line.split("\t")
    master = hosts_in(leader) or hosts_in(pid)
    whole = len(hosts_in(mirrors)) == len(HOSTS) - 1 or len(hosts_in(online)) == len(HOSTS)
    return QueueRow(queue, "".join(master[:1]), whole and bool(master))


def hosts_in(text: str) -> list[str]:
    """Of nodes like `bench1@q1` and processes like `<bench1@q1.1669.562.0>`."""
    return re.findall(r"@(\w+)", text)


class Followers:
    """Whether all members of a quorum queue have what its leader had when first asked. Messages
    that are published meanwhile are always on their way to one of them."""

    def __init__(self) -> None:
        self._target: int | None = None

    def caught_up(self, members: Sequence[Mapping[str, Any]]) -> bool:
        """Of an answer to `rabbitmq-queues quorum_status`."""
        known = [each["Commit Index"] for each in members if isinstance(each["Commit Index"], int)]
        if len(known) < len(HOSTS):
            return False
        if self._target is None:
            self._target = max(known)
        return min(known) >= self._target
