"""RabbitMQ from Debian: three nodes on loopback, started and ended by the run.

Nothing of an installed RabbitMQ service is used or touched but its programs.
Each node has its directories under the run's own; HOME is there too, so the
Erlang cookie is the run's; epmd (Erlang's port mapper) is the run's own, on
its own port. AMQP, distribution and epmd listen on 127.0.0.1 only.

Settings are RabbitMQ's defaults, but for where things are, no plugins (the
management plugin's statistics would cost), and the log's level (warning).
The mirrored queue is what the issue asks: durable, classic, policy
`ha-mode=all, ha-sync-mode=automatic`. The queue's master is the node that the
publisher is connected to.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import procs
from bench.measure import BenchError

NODES = 3
# The wrappers in /usr/sbin insist on the service's user; these don't.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_START_TIMEOUT_S = 120.0
_CTL_TIMEOUT_S = 60.0

_CONF = """\
listeners.tcp.default = 127.0.0.1:{port}
load_definitions = {definitions}
log.file.level = warning
log.console = false
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.randomized_startup_delay_range.min = 0
cluster_formation.randomized_startup_delay_range.max = 0
{peers}
"""

_DEFINITIONS = {
    "users": [{"name": "guest", "password": "guest", "tags": ["administrator"]}],
    "vhosts": [{"name": "/"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "policies": [
        {
            "vhost": "/",
            "name": "mirrored",
            "pattern": "^classic[.]",
            "apply-to": "queues",
            "priority": 0,
            "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"},
        }
    ],
}


class RabbitCluster:
    """Three nodes and an epmd. `start`, then `stop`, once each; both block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._epmd_port = procs.free_port()
        self._ports = [procs.free_port() for _ in range(NODES)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def port(self) -> int:
        """Where the publisher connects: the first node's AMQP port."""
        return self._ports[0]

    def broker_pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Returns when all nodes are one cluster. Raises `BenchError` with the log's end."""
        self._directory.mkdir(parents=True)
        definitions = self._directory / "definitions.json"
        definitions.write_text(json.dumps(_DEFINITIONS))
        (self._directory / "enabled_plugins").write_text("[].\n")
        self._spawn("epmd", ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)])
        self._await(lambda: procs.is_listening(self._epmd_port), "epmd")
        # The first node must be there before the others look for someone to join:
        # three that start at once elect themselves.
        self._start_node(0, definitions)
        self._await(lambda: procs.is_listening(self._ports[0]), "the first node")
        for index in range(1, NODES):
            self._start_node(index, definitions)
        self._await(lambda: all(map(procs.is_listening, self._ports)), "the other nodes")
        self._check_members()

    def stop(self) -> None:
        for process in reversed(self._processes):
            procs.kill_group(process)
        self._processes.clear()

    def control(self, *arguments: str) -> str:
        """Runs `rabbitmqctl` against the first node and returns what it prints."""
        done = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "--quiet", *arguments],
            env=self._environment(0),
            capture_output=True,
            text=True,
            check=False,
            timeout=_CTL_TIMEOUT_S,
        )
        if done.returncode:
            raise BenchError(f"rabbitmqctl {arguments[0]} failed: {done.stderr.strip()}")
        return done.stdout

    def queue_info(self, queue: str, columns: Sequence[str]) -> Mapping[str, object]:
        listed = json.loads(self.control("list_queues", "--formatter", "json", "name", *columns))
        for row in listed:
            if row["name"] == queue:
                return dict(row)
        raise BenchError(f"RabbitMQ doesn't know the queue {queue}")

    def _start_node(self, index: int, definitions: Path) -> None:
        node = self._node_directory(index)
        node.mkdir()
        peers = "\n".join(
            f"cluster_formation.classic_config.nodes.{other + 1} = {_node_name(other)}"
            for other in range(NODES)
        )
        text = _CONF.format(port=self._ports[index], definitions=definitions, peers=peers)
        (node / "rabbitmq.conf").write_text(text)
        self._spawn(_node_name(index), [PROGRAMS / "rabbitmq-server"], self._environment(index))

    def _node_directory(self, index: int) -> Path:
        return self._directory / f"node{index + 1}"

    def _environment(self, index: int) -> dict[str, str]:
        node = self._node_directory(index)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | {
            "HOME": str(self._directory),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": _node_name(index),
            "RABBITMQ_CONF_ENV_FILE": str(node / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(node / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(node / "no-such-file.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(node / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(node / "mnesia"),
            "RABBITMQ_LOG_BASE": str(node / "log"),
            "RABBITMQ_DIST_PORT": str(procs.free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Makes the start script exec the broker, so that its process is our child.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _spawn(
        self, name: str, command: Sequence[str | Path], environment: dict[str, str] | None = None
    ) -> None:
        with (self._directory / f"{name}.out").open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)

    def _await(self, done: Callable[[], bool], what: str) -> None:
        def done_or_dead() -> bool:
            return done() or any(process.poll() is not None for process in self._processes)

        procs.wait_until(done_or_dead, timeout_s=_START_TIMEOUT_S)
        if not done():
            raise BenchError(f"RabbitMQ: {what} didn't start:\n{self._last_words()}")

    def _check_members(self) -> None:
        status = json.loads(self.control("cluster_status", "--formatter", "json"))
        running = status["running_nodes"]
        if len(running) != NODES:
            raise BenchError(f"RabbitMQ: {len(running)} of {NODES} nodes are in the cluster")

    def _last_words(self, lines_max: int = 20) -> str:
        said = [path.read_text(errors="replace") for path in sorted(self._directory.glob("*.out"))]
        return "\n".join("".join(said).splitlines()[-lines_max:])


def _node_name(index: int) -> str:
    return f"bench{index + 1}@localhost"
