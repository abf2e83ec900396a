"""A cluster in containers, and its faults as verbs.

    with Cluster(ringmq_nodes(image), etcd_image=base) as cluster:
        cluster.kill("node1")
        cluster.start("node1")
        cluster.disconnect("node2", RING)     # its clients and the registry stay
        cluster.heal()

Members are the nodes and `etcd`; each verb takes any of them. Data is in named volumes and outlives
its container. Addresses and published ports stay the same for the cluster's whole life, also over
kill and start, so a client may keep what it was told. Clients run in this process, against
`address(node)`, or in a container (`run_client`) where each node's advertised name is its client
side.

All that is made carries the run's label and is removed on the way out, also after an exception or
Ctrl-C (see `engine` for the runs that didn't get that far).
"""

import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from docker.errors import APIError
from docker.models.containers import Container
from expected_logs import ExpectedLogs
from testcontainers.core.docker_client import DockerClient

from containers.client import Client
from containers.container import ClusterError, MemberContainer, Output
from containers.engine import labels_of, new_run_id, remove_run
from containers.networks import REGISTRY, RING, FixedNetwork, create_network
from containers.workload import DATA, ETCD, Workload, etcd_server

CLIENTS = "clients"

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
LOG_LINES_MAX = 80

PORT_ATTEMPTS_MAX = 5
PORT_MIN = 20_000


@dataclass
class Member:
    """One member and where it is reached: `links` by network name, `port` on 127.0.0.1."""

    name: str
    workload: Workload
    links: dict[str, tuple[FixedNetwork, str]]
    container: MemberContainer
    port: int
    cut: set[str] = field(default_factory=set)

    @property
    def raw(self) -> Container:
        """The container as the Docker SDK has it."""
        return self.container.get_wrapped_container()

    def status(self) -> str:
        """`running`, `paused`, `exited` and so on, asked anew."""
        self.raw.reload()
        return self.raw.status


class Cluster:
    """Nodes and an etcd in containers. Use it as a context manager; it starts ready to serve."""

    def __init__(
        self,
        workload: Workload,
        *,
        etcd_image: str,
        nodes: Sequence[str] = ("node1", "node2", "node3"),
    ) -> None:
        self.nodes = tuple(nodes)
        self.run_id = new_run_id()
        self._workloads = {ETCD: etcd_server(etcd_image), **dict.fromkeys(nodes, workload)}
        self._docker = DockerClient()
        self._networks: dict[str, FixedNetwork] = {}
        self._members: dict[str, Member] = {}
        self._client_numbers = count()
        self._folder = Path(tempfile.mkdtemp(prefix="ringmq-cluster-"))
        self._expected = ExpectedLogs()

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for name in (RING, REGISTRY, *self._workloads):
                self._networks[name] = create_network(
                    self._docker.client,
                    self._label(name),
                    labels_of(self.run_id),
                    internal=name in (RING, REGISTRY),
                )
            self._hosts = self._hosts_file(self._member_addresses())
            for name in self._workloads:
                self._members[name] = self._launch(name)
                if name == ETCD:
                    self.wait_ready(ETCD)
            self.wait_ready(*self.nodes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._judge_logs()
        finally:
            self.close()

    def expect_log(self, pattern: str) -> None:
        """A node has to log an error that matches this regular expression."""
        self._expected.demanded.append(pattern)

    def _judge_logs(self) -> None:
        """`AssertionError` for an error that a node logged, in any of its runs, unannounced."""
        self._expected.judge(
            (member.name, member.raw.logs().decode(errors="replace").splitlines())
            for member in self._members.values()
            if member.workload.judged
        )

    def close(self) -> None:
        """Remove everything that this cluster made. Twice does no harm."""
        for member in self._members.values():
            member.container.close()
        self._members.clear()
        remove_run(self._docker.client, self.run_id)
        self._docker.client.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- where things are ------------------------------------------------------------------------

    def address(self, name: str) -> str:
        """`127.0.0.1:port`, where a client on this machine reaches the member."""
        return f"127.0.0.1:{self._members[name].port}"

    def ring_address(self, name: str) -> str:
        """The node's IP address on the ring network, which the other nodes use."""
        return self._members[name].links[RING][1]

    def status(self, name: str) -> str:
        """The state of the member's container: `running`, `paused`, `exited`, ..."""
        return self._members[name].status()

    def exit_code(self, name: str) -> int:
        """How the member's last run ended: its own code, or 128 and the signal's number."""
        raw = self._members[name].raw
        raw.reload()
        code: int = raw.attrs["State"]["ExitCode"]
        return code

    def started_at(self, name: str) -> str:
        """When the member last started, as the engine writes it (ISO 8601, nanoseconds)."""
        raw = self._members[name].raw
        raw.reload()
        started: str = raw.attrs["State"]["StartedAt"]
        return started

    def wait_ready(self, *names: str, deadline_s: float = START_SECONDS_MAX) -> None:
        """Return once each of the members (default: all) serves; `ClusterError` with logs if not.

        A member that has exited is not waited for: it is reported at once.
        """
        deadline = time.monotonic() + deadline_s
        for name in names or tuple(self._members):
            member = self._members[name]
            while reason := member.workload.why_not_ready(self.address(name)):
                ended = member.status() == "exited"
                if ended or time.monotonic() > deadline:
                    how = "has exited" if ended else f"is not ready after {deadline_s} s: {reason}"
                    raise ClusterError(f"{name} {how}\n{self.logs(name)}")
                time.sleep(POLL_SECONDS)

    # -- the nemesis -----------------------------------------------------------------------------

    def kill(self, *names: str, signal: str = "SIGKILL") -> None:
        """Send the signal to the members, all at once, and wait until they have exited.

        A paused member has to be unpaused first; the engine refuses it otherwise.
        """

        def kill_one(name: str) -> None:
            container = self._members[name].raw
            container.kill(signal)
            container.wait(timeout=STOP_SECONDS_MAX)

        self._at_once(kill_one, names)

    def stop(self, *names: str, grace_s: int = 20) -> None:
        """End the members gracefully, all at once: SIGTERM, and SIGKILL after `grace_s`."""
        self._at_once(lambda name: self._members[name].raw.stop(timeout=grace_s), names)

    def start(self, *names: str, ready: bool = True) -> None:
        """Start members that have exited, on their old data; by default, wait until they serve."""
        self._at_once(lambda name: self._members[name].raw.start(), names)
        if ready:
            self.wait_ready(*names)

    def restart_all(self, *, signal: str = "SIGKILL", registry: bool = False) -> None:
        """All nodes die at the same moment and come back; with `registry`, etcd does, too."""
        if registry:
            self.kill(ETCD, *self.nodes, signal=signal)
            self.start(ETCD)
        else:
            self.kill(*self.nodes, signal=signal)
        self.start(*self.nodes)

    def pause(self, *names: str) -> None:
        """Freeze the members: their connections stay open and nobody answers."""
        self._at_once(lambda name: self._members[name].raw.pause(), names)

    def unpause(self, *names: str) -> None:
        """Let the members go on as if no time had passed."""
        self._at_once(lambda name: self._members[name].raw.unpause(), names)

    def disconnect(self, name: str, *networks: str) -> None:
        """Cut the member off from `RING` or `REGISTRY` (default: from both).

        Packets it sends there afterwards go nowhere, and open connections are not told. Its clients
        stay: `ValueError` for another network.
        """
        member = self._members[name]
        if wrong := set(networks) - {RING, REGISTRY}:
            raise ValueError(f"only {RING} and {REGISTRY} can be cut, not {sorted(wrong)}")
        for network in networks or tuple(n for n in (RING, REGISTRY) if n in member.links):
            member.links[network][0].network.disconnect(member.raw)
            member.cut.add(network)

    def connect(self, name: str, *networks: str) -> None:
        """Undo `disconnect`, with the address that the member had (default: all that was cut)."""
        member = self._members[name]
        for network in networks or tuple(sorted(member.cut)):
            fixed, address = member.links[network]
            fixed.network.connect(member.raw, ipv4_address=address)
            member.cut.remove(network)

    def heal(self) -> None:
        """Undo all faults (paused, cut off, exited) and wait until every member serves."""
        for name, member in self._members.items():
            if member.cut:
                self.connect(name)
            status = member.status()
            if status == "paused":
                self.unpause(name)
            elif status != "running":
                self.start(name, ready=False)
        self.wait_ready()

    # -- looking inside --------------------------------------------------------------------------

    def exec(self, name: str, command: Sequence[str]) -> Output:
        """Run a command inside the member and return its output."""
        result = self._members[name].container.exec(list(command))
        return Output(result.exit_code or 0, result.output.decode(errors="replace"))

    def client(
        self,
        command: Sequence[str],
        *,
        reach: Sequence[str] | None = None,
        files: Mapping[Path, str] | None = None,
    ) -> Client:
        """A client in a container of its own, from the nodes' image; it runs when it is entered.

        It is on the client networks of the nodes in `reach` (default: all) and on no other, and the
        nodes' names lead there: an advertised address that a node tells it is one that it can
        reach, even while the ring is cut. Its packets to the other nodes go nowhere. `files`
        of this machine are readable in it under the given paths. The image's entry point is not
        used.
        """
        reached = [self._members[name] for name in (self.nodes if reach is None else reach)]
        own = len(self._workloads) + next(self._client_numbers)
        links = [(m.links[CLIENTS][0], m.links[CLIENTS][0].address(own)) for m in reached]
        container = MemberContainer(reached[0].workload.image, links)
        container.with_command(list(command)[1:])
        hosts = self._hosts_file({n: self._members[n].links[CLIENTS][1] for n in self.nodes})
        container.with_volume_mapping(hosts, "/etc/hosts", "ro")
        for path, inside in (files or {}).items():
            container.with_volume_mapping(path, inside, "ro")
        container.with_kwargs(
            entrypoint=[command[0]],
            labels=labels_of(self.run_id),
            healthcheck={"test": ["NONE"]},
        )
        return Client(container)

    def run_client(self, command: Sequence[str], *, deadline_s: float = 120.0) -> Output:
        """Run a client that reaches all nodes, and return its output.

        `ClusterError` if it takes over `deadline_s`.
        """
        with self.client(command) as client:
            return client.wait(deadline_s=deadline_s)

    def logs(self, name: str, *, lines_max: int = LOG_LINES_MAX) -> str:
        """The last lines that the member wrote, with their times."""
        raw = self._members[name].raw.logs(tail=lines_max, timestamps=True)
        return raw.decode(errors="replace")

    def report(self) -> str:
        """For a failed test: each member's state, the networks cut from it, its last lines."""
        parts = []
        for name, member in self._members.items():
            cut = f", cut from {', '.join(sorted(member.cut))}" if member.cut else ""
            parts.append(f"--- {name}: {member.status()}{cut}\n{self.logs(name)}")
        return "\n".join(parts)

    # -- inside ----------------------------------------------------------------------------------

    def _label(self, name: str) -> str:
        return f"ringmq-{self.run_id}-{name}"

    def _links(self, name: str) -> dict[str, tuple[FixedNetwork, str]]:
        index = list(self._workloads).index(name)
        networks = {REGISTRY: self._networks[REGISTRY], CLIENTS: self._networks[name]}
        if name != ETCD:
            networks[RING] = self._networks[RING]
        return {key: (network, network.address(index)) for key, network in networks.items()}

    def _hosts_file(self, addresses: Mapping[str, str]) -> Path:
        """A file for /etc/hosts, on this machine.

        Not the engine's `extra_hosts`: dockerd 20.10 drops those entries from a container's file
        when the container is disconnected from a network, which is when they are wanted.
        """
        path = self._folder / f"hosts-{len(list(self._folder.iterdir()))}"
        lines = [f"{address}\t{name}\n" for name, address in addresses.items()]
        path.write_text("127.0.0.1\tlocalhost\n" + "".join(lines))
        path.chmod(0o644)
        return path

    def _member_addresses(self) -> dict[str, str]:
        """Every name that a member may use, with its address on the network meant for it."""
        names = list(self._workloads)
        return {
            name: self._networks[REGISTRY if name == ETCD else RING].address(names.index(name))
            for name in names
        }

    def _launch(self, name: str) -> Member:
        workload, links, label = self._workloads[name], self._links(name), self._label(name)
        self._docker.client.volumes.create(label, labels=labels_of(self.run_id))
        attempt = 0
        while True:
            attempt += 1
            port = free_port()
            container = MemberContainer(workload.image, list(links.values()))
            container.published = {f"{workload.port}/tcp": ("127.0.0.1", port)}
            container.with_name(label).with_envs(**workload.environment(name))
            container.with_volume_mapping(label, DATA, "rw")
            container.with_volume_mapping(self._hosts, "/etc/hosts", "ro")
            if workload.command is not None:
                container.with_command(list(workload.command))
            container.with_kwargs(
                hostname=name,
                labels=labels_of(self.run_id),
                # The tests ask themselves; a probe every few seconds would only take their CPU.
                healthcheck={"test": ["NONE"]},
            )
            try:
                return Member(name, workload, links, container.start(), port)
            except APIError as error:
                taken = "port is already allocated" in str(error) or "in use" in str(error)
                if not taken or attempt == PORT_ATTEMPTS_MAX:
                    raise
                container.get_wrapped_container().remove(force=True)
                container.close()

    def _at_once(self, act: Callable[[str], object], names: Sequence[str]) -> None:
        """Do it to all the members side by side; each has a connection of its own to the engine."""
        with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
            for _ in pool.map(act, names):
                pass


def free_port() -> int:
    """A free port below those that the system gives to outgoing connections.

    A member's port must still be free when it starts again after a kill; one that the system had
    chosen might by then be the local end of some connection.
    """
    low = Path("/proc/sys/net/ipv4/ip_local_port_range")
    ephemeral_min = int(low.read_text().split()[0]) if low.exists() else 32_768
    while True:
        port = random.randrange(PORT_MIN, max(ephemeral_min, PORT_MIN + 1000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
