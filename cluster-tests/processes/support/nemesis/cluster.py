"""Three nodes as processes on loopback, and the faults and questions of a test, as verbs.

When the block is left, every process is ended by its own pid, whatever state it is in. Then the
nodes' logs are judged: an error or a traceback in one of them fails the test, unless the test has
announced it by `expect_log`. If the test has failed already, the ends of the logs are printed.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from etcd_server import free_ports
from expected_logs import ExpectedLogs
from node_starter import NodeProcess, starter_of
from tcp_proxy import TcpProxy
from waiting import leeway, until

import ringmq
from nemesis.network import Network
from nemesis.oracle import Delivered
from nemesis.workload import Consuming, Publishing
from ringmq.v1 import admin_pb2 as admin
from ringmq_base.limits import GIB, KIB
from ringmq_node.storage.disk.data_directory import PARTIAL_NAME

NODES = ("a", "b", "c")
# In a namespace of its own, where every port is free.
NODE_PORT = 7800
# Generous: these tests say nothing of how fast a node starts on a busy machine.
READY_S_MAX = 60.0
LOG_LINES_SHOWN = 40
# Shorter than a node's defaults, so that a failover fits a test. Disks of tests may be small: an
# alarm would hold all publishers before one of them is full.
SETTINGS: dict[str, object] = {
    "ring_timeout_s": 1.5,
    "lease_s": 3.0,
    "heartbeat_s": 1.0,
    "disk_free_limit": 0,
}


def _missing(info: ringmq.QueueInfo | None) -> float:
    """Messages that joiners are known to lack; infinite if nothing is known."""
    fetching = [
        replica.sync.messages_missing
        for replica in (info.ring if info is not None else ())
        if replica.sync is not None and replica.sync.phase is ringmq.SyncPhase.FETCHING
    ]
    return sum(fetching) if fetching else inf


class Cluster:
    """`async with Cluster(folder) as cluster`: all nodes are up when the block is entered."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[str] = NODES,
        registry: str = "",
        proxied: bool = False,
        network: Network | None = None,
        data_of: Callable[[str], Path] | None = None,
        **settings: object,
    ) -> None:
        """`proxied`: each node advertises a proxy of its own. `proxies[name]` can hold or cut all
        connections to the node, those of clients and of other nodes.
        `network`: each node is in a network namespace, and its clients must be in one, too.
        `data_of`: the data directory of a node; without it, one below `folder`."""
        self.folder = folder
        self._data_of = data_of or (lambda name: folder / name)
        self._copies = count(1)
        self.registry = registry or f"sqlite:///{folder / 'registry.db'}"
        self.listens = dict(zip(nodes, free_ports(len(nodes)), strict=True))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in self.listens.items()}
        self._network = network
        if network is not None:
            self.addresses = {name: f"{network.address(name)}:{NODE_PORT}" for name in nodes}
        self.proxies: dict[str, TcpProxy] = {name: TcpProxy() for name in nodes if proxied}
        self.settings = {**SETTINGS, **settings}
        self._processes: dict[str, NodeProcess] = {}
        self._expected = ExpectedLogs()

    # --- life ---

    async def __aenter__(self) -> Cluster:
        try:
            for name, proxy in self.proxies.items():
                proxy.target = self.listens[name]
                await proxy.start()
                self.addresses[name] = f"127.0.0.1:{proxy.port}"
            await self.start()
        except BaseException:
            await self._leave(failed=True)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(failed=error is not None)

    async def _leave(self, *, failed: bool) -> None:
        self.close(failed=failed)
        for proxy in self.proxies.values():
            await proxy.close()
        if not failed:
            self._expected.judge(
                (f"{name}.log", self._log_path(name).read_text(errors="replace").splitlines())
                for name in self.addresses
                if self._log_path(name).exists()
            )

    def close(self, *, failed: bool) -> None:
        """Ends every process, and shows the logs if the test has `failed`."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
        for process in self._processes.values():
            process.wait(leeway(10))
        if failed:
            for name in self.addresses:
                print(f"--- node {name}\n{self.log(name)}", file=sys.stderr)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.addresses)

    @property
    def seeds(self) -> list[str]:
        return list(self.addresses.values())

    def others(self, *names: str) -> list[str]:
        return [name for name in self.nodes if name not in names]

    def data(self, name: str) -> Path:
        return self._data_of(name)

    def words(self, name: str, **settings: object) -> list[str]:
        """What follows `ringmq` in the command that starts a node; `settings` win over the
        cluster's."""
        values: dict[str, object] = {
            "node": name,
            "registry": self.registry,
            "data": self.data(name),
            "listen": self._listen(name),
            "advertise": self.addresses[name],
            **self.settings,
            **settings,
        }
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]
        return ["node", "start", *flags]

    def command(self, name: str, **settings: object) -> list[str]:
        """The same as a program of its own."""
        inside = self._network.inside(name) if self._network is not None else []
        return [*inside, sys.executable, "-m", "ringmq_node.cli", *self.words(name, **settings)]

    def _listen(self, name: str) -> str:
        return f"127.0.0.1:{self.listens[name]}" if self.proxies else self.addresses[name]

    def launch(self, name: str, **settings: object) -> None:
        """Starts a node's process, and doesn't wait for it."""
        before = self._processes.get(name)
        assert before is None or before.poll() is not None, f"node {name} runs already"
        namespace = self._network.namespace(name) if self._network is not None else ""
        with open(self._log_path(name), "ab") as log:
            self._processes[name] = starter_of(name).start(
                self.words(name, **settings), log.fileno(), namespace=namespace
            )

    async def start(self, *names: str) -> None:
        """Starts nodes (all, if none is named) and waits until they serve."""
        wanted = names or self.nodes
        ready = {name: self.ready_lines(name) for name in wanted}
        for name in wanted:
            starter_of(name)  # The first ones import side by side.
        for name in wanted:
            self.launch(name)
        for name in wanted:
            await self.wait_ready(name, after=ready[name])

    async def wait_ready(self, name: str, *, after: int = 0, within_s: float = READY_S_MAX) -> None:
        """Until the node has said for the `after + 1`st time that it is ready."""

        def is_ready() -> bool:
            code = self._processes[name].poll()
            assert code is None, f"node {name} ended with {code}:\n{self.log(name)}"
            return self.ready_lines(name) > after

        await until(is_ready, f"node {name} is ready", within_s=within_s)

    def ready_lines(self, name: str) -> int:
        """How many of the node's lives have been ready."""
        path = self._log_path(name)
        return path.read_text(errors="replace").count(" ready at ") if path.exists() else 0

    def _log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log(self, name: str, lines: int = LOG_LINES_SHOWN) -> str:
        """The last lines of a node's log."""
        path = self._log_path(name)
        if not path.exists():
            return ""
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def expect_log(self, pattern: str) -> None:
        """A node has to log an error that matches this regular expression."""
        self._expected.demanded.append(pattern)

    def allow_log(self, pattern: str) -> None:
        """A node may log an error that matches, depending on the moment of the fault."""
        self._expected.allowed.append(pattern)

    # --- the nemesis ---

    def kill(self, *names: str) -> None:
        """SIGKILL, all of them before any is waited for."""
        for name in names:
            self._processes[name].kill()
        for name in names:
            self._processes[name].wait(leeway(10))

    def lose_disk(self, name: str) -> None:
        """The data directory of a node that is down is empty from now on."""
        assert not self.is_running(name)
        # A node that was never up has none.
        shutil.rmtree(self.data(name), ignore_errors=not self.data(name).exists())

    async def wait_trusted(self, name: str, *, within_s: float = 20.0) -> None:
        """Until no replica on the node's disk is marked as partial any more.

        The mark goes a moment after the ring has counted the replica as synchronised. A node that
        dies in that moment has everything, and is taken for partial in its next life.
        """
        deadline = time.monotonic() + within_s
        while marks := [*self.data(name).rglob(PARTIAL_NAME)]:
            assert time.monotonic() < deadline, marks
            await asyncio.sleep(0.02)

    def copy_disk(self, name: str) -> Path:
        """A copy of a data directory, as it is at this moment."""
        copy = self.folder / f"{name}.copy{next(self._copies)}"
        shutil.copytree(self.data(name), copy)
        return copy

    def restore_disk(self, name: str, copy: Path) -> None:
        """Moves a copy to the place of the data directory of a node that is down."""
        self.lose_disk(name)
        shutil.move(copy, self.data(name))

    def pause(self, name: str) -> None:
        """SIGSTOP: its connections stay open, and nothing answers on them."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    async def stop(self, name: str, *, within_s: float = 20.0) -> int:
        """SIGTERM; returns the exit code."""
        process = self._processes[name]
        process.terminate()
        await until(lambda: process.poll() is not None, f"{name} has stopped", within_s=within_s)
        assert process.returncode is not None
        return process.returncode

    async def restart(self, name: str) -> None:
        """SIGTERM, and start again."""
        await self.stop(name)
        await self.start(name)

    def is_running(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def exit_code(self, name: str) -> int:
        """Of a node whose process has ended; below 0, the signal that ended it."""
        code = self._processes[name].poll()
        assert code is not None, f"node {name} runs"
        return code

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def resident_bytes(self, name: str) -> int:
        """The memory of a node's process, also of one that is paused."""
        for line in Path(f"/proc/{self.pid(name)}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * KIB
        raise AssertionError(f"node {name} has no memory")

    # --- asking ---

    @asynccontextmanager
    async def client(self, *names: str, **options: Any) -> AsyncIterator[ringmq.Client]:
        """A client whose seeds are these nodes (all, if none is named)."""
        seeds = [self.addresses[name] for name in names or self.nodes]
        async with ringmq.connect(seeds, **options) as client:
            yield client

    async def declare(self, queue: str, **arguments: Any) -> None:
        async with self.client() as client:
            await client.declare_queue(queue, **arguments)

    async def info(self, queue: str, *names: str) -> ringmq.QueueInfo:
        async with self.client(*names) as client:
            return await client.queue(queue)

    async def master_of(self, queue: str) -> str:
        return (await self.info(queue)).master

    async def mirrors_of(self, queue: str) -> list[str]:
        return [replica.node for replica in (await self.info(queue)).ring[1:]]

    async def wait_synchronised(
        self, queue: str, count: int | None = None, *, within_s: float = 20.0
    ) -> ringmq.QueueInfo:
        """Until `count` replicas (as many as nodes) are synchronised.

        Fails when joiners have come no nearer for `within_s`. How long they take in all depends on
        how much the test's publishers have made them miss.
        """
        wanted = len(self.nodes) if count is None else count
        last: ringmq.QueueInfo | None = None
        missing_min = inf
        async with self.client() as client:
            deadline = time.monotonic() + within_s
            while time.monotonic() < deadline:
                try:
                    last = await client.queue(queue, deadline_s=1.0)
                except ringmq.RingMQError:
                    last = None
                if last is not None and sum(each.synchronised for each in last.ring) == wanted:
                    return last
                missing = _missing(last)
                if missing < missing_min:
                    missing_min, deadline = missing, time.monotonic() + within_s
                await asyncio.sleep(0.02)
        raise AssertionError(f"not {wanted} synchronised, {within_s:g} s without progress: {last}")

    async def promote(self, queue: str, node: str) -> None:
        async with self.client() as client:
            await client.promote_mirror(queue, node)

    async def replica(self, queue: str, node: str, *, vhost: str = "") -> admin.Replica:
        """The replica of a queue on one node, as the node itself reports it."""
        async with grpc.aio.insecure_channel(self._listen(node)) as channel:
            call: Any = channel.unary_unary(
                "/ringmq.v1.Admin/GetReplica",
                request_serializer=admin.GetReplicaRequest.SerializeToString,
                response_deserializer=admin.GetReplicaResponse.FromString,
            )
            answer: admin.GetReplicaResponse = await call(
                admin.GetReplicaRequest(queue=queue, vhost=vhost), timeout=5.0
            )
            return answer.replica

    async def wait_equal(
        self, queue: str, *, vhost: str = "", on: Sequence[str] = (), within_s: float = 10.0
    ) -> list[admin.Replica]:
        """Until the replicas on these nodes (all, if none is named) have applied the same op;
        their digests are equal (G5)."""
        found: list[admin.Replica] = []

        async def at_the_same_op() -> bool:
            try:
                found[:] = [
                    await self.replica(queue, name, vhost=vhost) for name in on or self.nodes
                ]
            except grpc.aio.AioRpcError:
                return False  # Not open there yet.
            return len({each.last_number for each in found}) == 1

        await until(at_the_same_op, f"equal replicas: {found}", within_s=within_s)
        assert len({each.digest for each in found}) == 1, found
        return found

    async def wait_same_bodies(self, queue: str) -> None:
        """`wait_equal`, and every body is read from every replica's disk: a digest is of what a
        replica was told, not of what it can read."""
        await self.wait_equal(queue)
        async with self.client() as client:
            found = await client.operator.verify_queue(queue)
        assert found.done, (queue, found)
        assert len(found.nodes) == len(self.nodes), (queue, found)
        assert found.differences_total == 0, (queue, found.differences)

    # --- workload ---

    def publishing(self, queue: str, *, through: Sequence[str] = (), **options: Any) -> Publishing:
        """A publisher that runs beside the test; `through`: its seeds, all without it."""
        return Publishing(self._seeds_of(through), queue, **options)

    def consuming(self, queue: str, *, through: Sequence[str] = (), **options: Any) -> Consuming:
        return Consuming(self._seeds_of(through), queue, **options)

    def _seeds_of(self, names: Sequence[str]) -> list[str]:
        return [self.addresses[name] for name in names] if names else self.seeds

    async def drained(self, queue: str, *, within_s: float = 30.0) -> Delivered:
        """Consumes and acks everything that is in the queue."""
        async with self.consuming(queue, prefetch=5000) as rest, self.client() as client:

            async def is_empty() -> bool:
                info = await client.queue(queue)
                return info.messages_ready == 0 and info.messages_unacknowledged == 0

            await until(is_empty, f"queue {queue} is empty", within_s=within_s)
        return rest.delivered

    async def contents(self, queue: str, *, within_s: float = 30.0) -> Delivered:
        """Everything that is in the queue, left there; it becomes redelivered."""
        wanted = (await self.info(queue)).messages_ready
        # Nothing is acked, so the whole queue has to fit: the node's default of 16 MiB does not do
        # on a machine that publishes fast.
        async with self.consuming(
            queue, ack=False, prefetch=1_000_000, prefetch_bytes=GIB
        ) as all_of_it:
            await all_of_it.has(wanted, within_s=within_s)
        return all_of_it.delivered
