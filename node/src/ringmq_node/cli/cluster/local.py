"""A cluster of node processes on this machine, kept in one directory.

    cluster.json      what it consists of; rewritten only when the ports change
    registry.db       the SQLite registry, unless another one was given
    NAME/             the data of a node
    logs/NAME.log     what it said
    run/NAME.pid      its process

The directory is all there is to know: whoever has it can go on with the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import ringmq
from ringmq import NodeState, RingMQError
from ringmq_node.cli.cluster import processes
from ringmq_node.cli.cluster.processes import Process

FORMAT = 1
HOST = "127.0.0.1"
BASE_PORT = 7801
NODES_MAX = 32
FREE_PORTS = range(20000, 32768)
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_ASK_S = 1.0
# Of a log, to find what a node said last.
_TAIL_BYTES = 4096


class ClusterError(Exception):
    """A local cluster can't be started, found or ended; the message is one line."""


@dataclass(frozen=True, slots=True)
class Member:
    node: str
    address: str


def default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ringmq" / "cluster"


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nobody listens now, outside the range from which systems
    take the ports of outgoing connections: a node that is down must find its own again."""
    found: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise ClusterError(f"no {count} free ports in {FREE_PORTS.start}..{FREE_PORTS.stop - 1}")


def _ports(nodes: int, base_port: int) -> list[int]:
    """Empty if any will do."""
    return list(range(base_port, base_port + nodes)) if base_port else []


class LocalCluster:
    """Made by `create` or `open`. Knows nothing that isn't in the directory."""

    def __init__(self, directory: Path, registry: str, members: tuple[Member, ...]) -> None:
        self.directory = directory
        self.registry = registry
        self.members = members
        # Of the nodes started here: where in the log that process begins.
        self._log_starts: dict[str, int] = {}

    @classmethod
    def create(
        cls, directory: Path, *, nodes: int, base_port: int | None = None, registry: str = ""
    ) -> LocalCluster:
        """A new cluster, or the one that is there if it is the same.

        `base_port`: the first node's; 0 for free ones, or those that it has while any of its
        nodes runs; None: those that it has, or from `BASE_PORT`. `registry` empty: the one that
        it has, or a SQLite file.
        """
        directory = directory.absolute()
        found = cls.open(directory) if (directory / "cluster.json").exists() else None
        if found is not None:
            if len(found.members) != nodes or (registry and registry != found.registry):
                raise ClusterError(
                    f"{directory} holds a cluster of {len(found.members)} nodes with registry "
                    f"{found.registry}: use these, or another directory"
                )
            if base_port is None or found._ports == _ports(nodes, base_port):
                return found
            if any(found.process(member.node) for member in found.members):
                if base_port == 0:
                    return found  # Theirs were free ones once.
                raise ClusterError(
                    f"{directory}: its nodes run on ports {found._ports}; end them first"
                )
        for name in ("logs", "run"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        ports = _ports(nodes, BASE_PORT if base_port is None else base_port)
        members = tuple(
            Member(f"node{number}", f"{HOST}:{port}")
            for number, port in enumerate(ports or free_ports(nodes), 1)
        )
        own = f"sqlite://{quote(str(directory / 'registry.db'))}"
        kept = found.registry if found is not None else own
        cluster = cls(directory, registry or kept, members)
        content = {
            "format": FORMAT,
            "registry": cluster.registry,
            "nodes": [{"node": each.node, "address": each.address} for each in members],
        }
        (directory / "cluster.json").write_text(json.dumps(content, indent=2) + "\n")
        return cluster

    @classmethod
    def open(cls, directory: Path) -> LocalCluster:
        directory = directory.absolute()
        path = directory / "cluster.json"
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT:
                raise ClusterError(f"{path}: format {content['format']}, expected {FORMAT}")
            members = tuple(Member(each["node"], each["address"]) for each in content["nodes"])
            return cls(directory, content["registry"], members)
        except FileNotFoundError:
            raise ClusterError(f"{directory} holds no cluster: no cluster.json") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"{path} is damaged: {error!r}") from error

    @property
    def _ports(self) -> list[int]:
        return [int(member.address.rpartition(":")[2]) for member in self.members]

    @property
    def seeds(self) -> str:
        return ",".join(member.address for member in self.members)

    def member(self, node: str) -> Member:
        return next(member for member in self.members if member.node == node)

    def log(self, node: str) -> Path:
        return self.directory / "logs" / f"{node}.log"

    def _pid_file(self, node: str) -> Path:
        return self.directory / "run" / f"{node}.pid"

    def process(self, node: str) -> Process | None:
        """The process of `node` if it runs."""
        return processes.read_pid_file(self._pid_file(node))

    def start(self, node: str) -> Process:
        """Starts its process, unless it runs. Doesn't wait until it serves."""
        running = self.process(node)
        if running is not None:
            return running
        address = self.member(node).address
        words = ["-m", "ringmq_node.cli", "node", "start"]
        settings = {
            "node": node,
            "registry": self.registry,
            "data": str(self.directory / node),
            "listen": address,
            # Over whatever the environment says, which is meant for one node.
            "advertise": address,
        }
        for name, value in settings.items():
            words += [f"--{name}", value]
        log = self.log(node)
        self._log_starts[node] = log.stat().st_size if log.exists() else 0
        process = processes.spawn(words, log)
        processes.write_pid_file(self._pid_file(node), process)
        return process

    def kill(self, node: str) -> None:
        """SIGKILL, which it can do nothing about."""
        process = self.process(node)
        if process is not None:
            process.send(signal.SIGKILL)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[list[str], list[str]]:
        """Ends all that run: (names of those that ended, those of them that had to be killed)."""
        return self.stop_nodes([member.node for member in self.members], timeout_s=timeout_s)

    def stop_nodes(
        self, nodes: Sequence[str], *, timeout_s: float = STOP_TIMEOUT_S
    ) -> tuple[list[str], list[str]]:
        """As `stop`, of some."""
        running = {node: process for node in nodes if (process := self.process(node)) is not None}
        late = processes.stop(list(running.values()), timeout_s=timeout_s)
        return list(running), [node for node, process in running.items() if process in late]

    async def wait_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when every node serves and sees all the others running.

        Raises `ClusterError`, with what the node said, as soon as one has ended.
        """
        deadline = time.monotonic() + timeout_s
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(self._wait_member(member, deadline)) for member in self.members
            ]
        for task in waiting:
            if (trouble := task.result()) is not None:
                raise ClusterError(trouble)

    async def _wait_member(self, member: Member, deadline: float) -> str | None:
        """None, or why not."""
        last = "it doesn't answer"
        while time.monotonic() < deadline:
            process = self.process(member.node)
            if process is None:
                return f"{member.node} has ended: {self.last_words(member.node)}"
            try:
                # A new client each time: one that knows the others would ask them.
                async with ringmq.connect(member.address, deadline_s=_ASK_S) as client:
                    status = await client.cluster_status()
            except RingMQError as error:
                last = str(error)
            else:
                up = {each.node for each in status.nodes if each.state is NodeState.RUNNING}
                missing = [each.node for each in self.members if each.node not in up]
                # What answers may be somebody else's node on the same port: ours has
                # to have said that it is the one.
                if not missing and status.node == member.node and self._said_ready(member.node):
                    return None
                last = f"it doesn't see {', '.join(missing)}" if missing else "it isn't ready"
            await asyncio.sleep(_POLL_S)
        return f"{member.node} isn't ready in time: {last} (log: {self.log(member.node)})"

    def _said_ready(self, node: str) -> bool:
        if node not in self._log_starts:
            return True  # it ran before
        with self.log(node).open("rb") as log:
            log.seek(self._log_starts[node])
            return f"ringmq node {node} ready at ".encode() in log.read()

    def last_words(self, node: str) -> str:
        """The last line of its log."""
        try:
            with self.log(node).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1] if lines else "it said nothing"
