"""A cluster of node processes on this machine, kept in one directory.

    cluster.json      its nodes, their addresses and its registry; rewritten when ports change
    registry.db       the SQLite registry, unless another one was given
    NAME/             a node's data directory
    logs/NAME.log     that node's output, of all its processes one after the other
    run/NAME.pid      that node's process

All state is in the directory, none in the process that started the nodes. So any later
command can open the directory and go on with the cluster.
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
from ringmq_base.logs import LogFault, log_faults
from ringmq_node.cli.cluster import processes
from ringmq_node.cli.cluster.processes import Process

FORMAT = 1
HOST = "127.0.0.1"
BASE_PORT = 7801
NODES_MAX = 32
FREE_PORTS = range(20000, 32768)
# While no node says that it has opened more of its queues.
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_ASK_S = 1.0
# Enough of a log's end to hold its last line.
_TAIL_BYTES = 4096
# In the lines of `replica.interleaver`.
_OPENING = "opening under way: "


class LocalClusterError(Exception):
    """A local cluster can't be started, found or ended; the message is one line."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    node: str
    address: str


def default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ringmq" / "cluster"


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nobody listens now.

    None is from the range that systems give to outgoing connections: such a connection
    could take the port of a node that is down, which then couldn't start again.
    """
    found: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise LocalClusterError(f"no {count} free ports in {FREE_PORTS.start}..{FREE_PORTS.stop - 1}")


def _ports(nodes: int, base_port: int) -> list[int]:
    """The ports asked for; empty if any free ones will do."""
    return list(range(base_port, base_port + nodes)) if base_port else []


class LocalCluster:
    """Made by `create` or `open`. It knows nothing that isn't in the directory."""

    def __init__(self, directory: Path, registry: str, nodes: tuple[LocalNode, ...]) -> None:
        self.directory = directory
        self.registry = registry
        self.nodes = nodes
        # For each node started by this object: the length of its log at that moment, which
        # is where the log of the new process begins.
        self._log_starts: dict[str, int] = {}
        # Those that this object has started: who kills and starts a node for hours would keep a
        # zombie of each.
        self._children: dict[str, Process] = {}

    @classmethod
    def create(
        cls, directory: Path, *, nodes: int, base_port: int | None = None, registry: str = ""
    ) -> LocalCluster:
        """A new cluster, or the directory's cluster if it is as large and has that registry.

        `base_port` is the first node's port. 0 asks for free ports; a cluster with a running
        node keeps those that it has. None keeps the cluster's ports, and gives a new cluster
        those from `BASE_PORT` on. An empty `registry` keeps the cluster's, and gives a new
        cluster a SQLite file.
        """
        directory = directory.absolute()
        found = cls.open(directory) if (directory / "cluster.json").exists() else None
        if found is not None:
            if len(found.nodes) != nodes or (registry and registry != found.registry):
                raise LocalClusterError(
                    f"{directory} holds a cluster of {len(found.nodes)} nodes with registry "
                    f"{found.registry}: use these, or another directory"
                )
            if base_port is None or found._ports == _ports(nodes, base_port):
                return found
            if any(found.process(each.node) for each in found.nodes):
                if base_port == 0:
                    return found  # Any ports were asked for, and its own were free once.
                raise LocalClusterError(
                    f"{directory}: its nodes run on ports {found._ports}: "
                    "`ringmq cluster down` ends them"
                )
        for name in ("logs", "run"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        ports = _ports(nodes, BASE_PORT if base_port is None else base_port)
        local_nodes = tuple(
            LocalNode(f"node{number}", f"{HOST}:{port}")
            for number, port in enumerate(ports or free_ports(nodes), 1)
        )
        own = f"sqlite://{quote(str(directory / 'registry.db'))}"
        kept = found.registry if found is not None else own
        cluster = cls(directory, registry or kept, local_nodes)
        content = {
            "format": FORMAT,
            "registry": cluster.registry,
            "nodes": [{"node": each.node, "address": each.address} for each in local_nodes],
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
                raise LocalClusterError(
                    f"{path}: format {content['format']}; this version reads format {FORMAT} only"
                )
            nodes = tuple(LocalNode(each["node"], each["address"]) for each in content["nodes"])
            return cls(directory, content["registry"], nodes)
        except FileNotFoundError:
            raise LocalClusterError(
                f"{directory} holds no cluster, as there is no cluster.json: "
                "`ringmq cluster up --data` makes one"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise LocalClusterError(f"{path} is damaged: {error!r}") from error

    @property
    def _ports(self) -> list[int]:
        return [int(each.address.rpartition(":")[2]) for each in self.nodes]

    @property
    def seeds(self) -> str:
        return ",".join(each.address for each in self.nodes)

    def address(self, node: str) -> str:
        return next(each.address for each in self.nodes if each.node == node)

    def log(self, node: str) -> Path:
        return self.directory / "logs" / f"{node}.log"

    def _pid_file(self, node: str) -> Path:
        return self.directory / "run" / f"{node}.pid"

    def process(self, node: str) -> Process | None:
        """The process of `node`; None unless it runs."""
        return processes.read_pid_file(self._pid_file(node))

    def start(self, node: str) -> Process:
        """Starts the node's process unless it runs. Doesn't wait until the node serves."""
        running = self.process(node)
        if running is not None:
            return running
        address = self.address(node)
        words = ["-m", "ringmq_node.cli", "node", "start"]
        settings = {
            "node": node,
            "registry": self.registry,
            "data": str(self.directory / node),
            "listen": address,
            # A flag counts over RINGMQ_ADVERTISE, which would give all nodes one address.
            "advertise": address,
        }
        for name, value in settings.items():
            words += [f"--{name}", value]
        log = self.log(node)
        self._log_starts[node] = log.stat().st_size if log.exists() else 0
        if (ended := self._children.get(node)) is not None:
            processes.reap([ended])
        process = self._children[node] = processes.spawn(words, log)
        processes.write_pid_file(self._pid_file(node), process)
        return process

    def named(self, node: str) -> str:
        """The name of the node that has this name or this address."""
        for each in self.nodes:
            if node in (each.node, each.address):
                return each.node
        known = ", ".join(f"{each.node} at {each.address}" for each in self.nodes)
        raise LocalClusterError(f"{self.directory} has no node {node!r}: there are {known}")

    def kill(self, node: str) -> Process | None:
        """SIGKILL: the node gets no chance to hand its masters over. Returns its process, which may
        end a moment later; None if it didn't run."""
        process = self.process(node)
        if process is not None:
            process.send(signal.SIGKILL)
        return process

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> tuple[list[str], list[str]]:
        """Ends all running nodes. Returns (their names, the names of those that were killed)."""
        return self.stop_nodes([each.node for each in self.nodes], timeout_s=timeout_s)

    def stop_nodes(
        self, nodes: Sequence[str], *, timeout_s: float = STOP_TIMEOUT_S
    ) -> tuple[list[str], list[str]]:
        """As `stop`, for some of the nodes."""
        running = {node: process for node in nodes if (process := self.process(node)) is not None}
        late = processes.stop(list(running.values()), timeout_s=timeout_s)
        return list(running), [node for node, process in running.items() if process in late]

    async def wait_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when every node serves and sees all the others running.

        Nodes with many queues may take any time, as long as one of them goes on: they log how far
        they are. Raises `LocalClusterError` after `timeout_s` without that, and, with the last line
        of its log, for a node that has ended.
        """
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(self._wait_node(each, timeout_s)) for each in self.nodes]
        for task in waiting:
            if (trouble := task.result()) is not None:
                raise LocalClusterError(trouble)

    async def _wait_node(self, local: LocalNode, timeout_s: float) -> str | None:
        """None once the node is ready; otherwise the reason why it isn't."""
        deadline = time.monotonic() + timeout_s
        opened = self._opened()
        last = "it doesn't answer"
        while time.monotonic() < deadline:
            process = self.process(local.node)
            if process is None:
                return f"{local.node} has ended: {self.last_words(local.node)}"
            try:
                # A new client each time: a client that has learned the other nodes'
                # addresses would ask them when this node doesn't answer.
                async with ringmq.connect(local.address, deadline_s=_ASK_S) as client:
                    status = await client.cluster_status()
            except RingMQError as error:
                last = str(error)
            else:
                up = {each.node for each in status.nodes if each.state is NodeState.RUNNING}
                missing = [each.node for each in self.nodes if each.node not in up]
                # Another user's node may answer on this port, while ours is still trying
                # to bind it. So our node's own log has to say "ready", too.
                if not missing and status.node == local.node and self._said_ready(local.node):
                    return None
                last = f"it doesn't see {', '.join(missing)}" if missing else "it isn't ready"
            if (now_opened := self._opened()) != opened:
                opened, deadline = now_opened, time.monotonic() + timeout_s
            await asyncio.sleep(_POLL_S)
        return (
            f"{local.node} isn't ready after {timeout_s:g} s: {last} (log: {self.log(local.node)})"
        )

    def _opened(self) -> list[str]:
        """How many of its queues each node has opened, in its own words."""
        return [line for each in self.nodes for line in self._tail(each.node) if _OPENING in line]

    def _said_ready(self, node: str) -> bool:
        if node not in self._log_starts:
            return True  # Not started by this object: it was running already.
        with self.log(node).open("rb") as log:
            log.seek(self._log_starts[node])
            return f"ringmq node {node} ready at ".encode() in log.read()

    def last_words(self, node: str) -> str:
        """The last line of the node's log."""
        lines = self._tail(node)
        return lines[-1] if lines else "it said nothing"

    def _tail(self, node: str) -> list[str]:
        try:
            with self.log(node).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                return log.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return []

    def log_faults(self) -> list[LogFault]:
        """The errors and tracebacks in the logs of all nodes, of all their processes."""
        faults: list[LogFault] = []
        for each in self.nodes:
            path = self.log(each.node)
            if path.exists():
                with path.open(errors="replace") as log:
                    faults += log_faults(str(path), log)
        return faults
