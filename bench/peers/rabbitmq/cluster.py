"""RabbitMQ from Debian: nodes on loopback, three unless asked otherwise, owned by the run.

Of an installed RabbitMQ service the run uses the programs and touches nothing. Each node has its
directories under the run's own; HOME is there too, so the Erlang cookie is the run's; epmd
(Erlang's port mapper) is the run's own, on its own port. AMQP, distribution and epmd listen on
127.0.0.1 only, or on the addresses of the `Place`s that the run has made (network namespaces);
there each place has an epmd of its own.

Settings are RabbitMQ's defaults except for paths, plugins (none: the management plugin's
statistics would cost CPU), and the log's level (warning). The mirrored queue is durable and
classic, under the policy `ha-mode=all, ha-sync-mode=automatic`. Its master is the node that the
publisher is connected to.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import procs
from bench.measure import BenchError

NODES = 3
LOOPBACK = "127.0.0.1"
# The wrappers in /usr/sbin insist on the service's user; these don't.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_START_TIMEOUT_S = 120.0
_CTL_TIMEOUT_S = 60.0

_CONF = """\
listeners.tcp.default = {address}:{port}
load_definitions = {definitions}
log.file.level = warning
log.console = false
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.randomized_startup_delay_range.min = 0
cluster_formation.randomized_startup_delay_range.max = 0
{peers}
{settings}
"""

Policy = Mapping[str, object]
MIRRORED: Policy = {
    "vhost": "/",
    "name": "mirrored",
    "pattern": "^classic[.]",
    "apply-to": "queues",
    "priority": 0,
    "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"},
}

_DEFINITIONS = {
    "users": [{"name": "guest", "password": "guest", "tags": ["administrator"]}],
    "vhosts": [{"name": "/"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs: its AMQP address, the host in its Erlang name, and the words before a
    command that run it there."""

    address: str
    port: int
    host: str = "localhost"
    inside: tuple[str, ...] = ()


class RabbitCluster:
    """`nodes` nodes and an epmd. `start`, then `stop`, once each; both block.

    `settings` are more lines for each node's rabbitmq.conf. `places`: one for each node, each with
    an address of its own; without it, all are on loopback.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = NODES,
        policies: Sequence[Policy] = (MIRRORED,),
        settings: Sequence[str] = (),
        places: Sequence[Place] = (),
    ) -> None:
        self._directory = directory
        self._places = [*places] or [Place(LOOPBACK, procs.free_port()) for _ in range(nodes)]
        self._policies = [*policies]
        self._settings = "\n".join(settings)
        self._epmd_port = procs.free_port()
        self._epmds: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def port(self) -> int:
        """Where the publisher connects: the first node's AMQP port."""
        return self._places[0].port

    @property
    def ports(self) -> Sequence[int]:
        """Of AMQP, node by node."""
        return [place.port for place in self._places]

    def is_running(self, index: int) -> bool:
        """Whether the node was started, and not killed since."""
        return index in self._nodes

    def broker_pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes()]

    def start(self) -> None:
        """Returns when all nodes are one cluster. Raises `BenchError` with the log's end."""
        self._directory.mkdir(parents=True)
        definitions = self._directory / "definitions.json"
        definitions.write_text(json.dumps({**_DEFINITIONS, "policies": self._policies}))
        (self._directory / "enabled_plugins").write_text("[].\n")
        self._write_hosts()
        for address, place in {place.address: place for place in self._places}.items():
            epmd = ["epmd", "-address", address, "-port", str(self._epmd_port)]
            self._epmds.append(self._spawn(f"epmd-{address}", [*place.inside, *epmd]))
            self._await(partial(procs.is_listening, self._epmd_port, address), "epmd")
        # The first node must be there before the others look for someone to join:
        # three that start at once elect themselves.
        self._write_conf(definitions)
        self.start_node(0)
        self._await(lambda: self.is_listening(0), "the first node")
        for index in range(1, len(self._places)):
            self.start_node(index)
        self._await(
            lambda: all(map(self.is_listening, range(len(self._places)))), "the other nodes"
        )
        self._check_members()

    def is_listening(self, index: int) -> bool:
        """Whether the node takes connections of clients."""
        place = self._places[index]
        return procs.is_listening(place.port, place.address)

    def node_name(self, index: int) -> str:
        """In Erlang, and in what `rabbitmqctl` prints."""
        return f"bench{index + 1}@{self._places[index].host}"

    def stop(self) -> None:
        for index in reversed([*self._nodes]):
            self.kill_node(index)
        while self._epmds:
            procs.kill_group(self._epmds.pop())

    def kill_node(self, index: int) -> None:
        """SIGKILL. Its files stay for `start_node`."""
        procs.kill_group(self._nodes.pop(index))

    def start_node(self, index: int) -> None:
        """Returns at once: its clients have to wait until it listens."""
        self._nodes[index] = self._spawn(
            self.node_name(index),
            [*self._places[index].inside, PROGRAMS / "rabbitmq-server"],
            self._environment(index),
        )

    def control(self, *arguments: str, through: int = 0, program: str = "rabbitmqctl") -> str:
        """Runs `rabbitmqctl` against a node, the first by default, and returns its output."""
        done = subprocess.run(
            [*self._places[through].inside, PROGRAMS / program, "--quiet", *arguments],
            env=self._environment(through),
            capture_output=True,
            text=True,
            check=False,
            timeout=_CTL_TIMEOUT_S,
        )
        if done.returncode:
            raise BenchError(f"{program} {arguments[0]} failed: {done.stderr.strip()}")
        return done.stdout

    def queue_infos(
        self, queues: Iterable[str], columns: Sequence[str]
    ) -> list[Mapping[str, object]]:
        """Of all of them by one call, which takes a second however many they are."""
        listed = json.loads(self.control("list_queues", "--formatter", "json", "name", *columns))
        rows = {row["name"]: row for row in listed}
        try:
            return [rows[queue] for queue in queues]
        except KeyError as unknown:
            raise BenchError(f"RabbitMQ doesn't know the queue {unknown}") from None

    def _write_conf(self, definitions: Path) -> None:
        peers = "\n".join(
            f"cluster_formation.classic_config.nodes.{other + 1} = {self.node_name(other)}"
            for other in range(len(self._places))
        )
        for index, place in enumerate(self._places):
            node = self._node_directory(index)
            node.mkdir()
            text = _CONF.format(
                address=place.address,
                port=place.port,
                definitions=definitions,
                peers=peers,
                settings=self._settings,
            )
            (node / "rabbitmq.conf").write_text(text)

    def _write_hosts(self) -> None:
        """Erlang's own table of hosts: the machine's needs no change for the places' names."""
        lines = ["{lookup, [file, native]}."]
        for host, address in {place.host: place.address for place in self._places}.items():
            lines.append(f'{{host, {{{address.replace(".", ",")}}}, ["{host}"]}}.')
        self._hosts.write_text("\n".join(lines) + "\n")

    @property
    def _hosts(self) -> Path:
        return self._directory / "hosts.inetrc"

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [*self._epmds, *self._nodes.values()]

    def _node_directory(self, index: int) -> Path:
        return self._directory / f"node{index + 1}"

    def _environment(self, index: int) -> dict[str, str]:
        node, place = self._node_directory(index), self._places[index]
        interface = f"-kernel inet_dist_use_interface {{{place.address.replace('.', ',')}}}"
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | {
            "HOME": str(self._directory),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": place.address,
            "ERL_INETRC": str(self._hosts),
            "RABBITMQ_NODENAME": self.node_name(index),
            "RABBITMQ_CONF_ENV_FILE": str(node / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(node / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(node / "no-such-file.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(node / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(node / "mnesia"),
            "RABBITMQ_LOG_BASE": str(node / "log"),
            "RABBITMQ_DIST_PORT": str(procs.free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": interface,
            # Makes the start script exec the broker, so that its process is our child.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_CTL_ERL_ARGS": interface,
        }

    def _spawn(
        self, name: str, command: Sequence[str | Path], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.out").open("ab") as output:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await(self, done: Callable[[], bool], what: str) -> None:
        def done_or_dead() -> bool:
            return done() or any(process.poll() is not None for process in self._processes())

        procs.wait_until(done_or_dead, timeout_s=_START_TIMEOUT_S)
        if not done():
            raise BenchError(f"RabbitMQ: {what} didn't start:\n{self._last_words()}")

    def _check_members(self) -> None:
        status = json.loads(self.control("cluster_status", "--formatter", "json"))
        running = status["running_nodes"]
        wanted = len(self._places)
        if len(running) != wanted:
            raise BenchError(f"RabbitMQ: {len(running)} of {wanted} nodes are in the cluster")

    def _last_words(self, lines_max: int = 20) -> str:
        said = [path.read_text(errors="replace") for path in sorted(self._directory.glob("*.out"))]
        return "\n".join("".join(said).splitlines()[-lines_max:])
