"""The node's image: a container's files, user, permissions and health."""

import json
from collections.abc import Iterator

import docker
import pytest
from containers.container import wait_until
from containers.engine import labels_of, new_run_id, remove_run
from docker.errors import ContainerError
from docker.models.containers import Container
from healthcheck import probe_address

pytestmark = [pytest.mark.docker, pytest.mark.slow]

# A server of the standard health service, with grpcio as the image has it. It turns healthy when
# it is sent SIGUSR1, for a probe that only finds an open port would pass before that.
HEALTH_SERVER = """
import concurrent.futures, signal, grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

server = grpc.server(concurrent.futures.ThreadPoolExecutor())
servicer = health.HealthServicer()
servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
signal.signal(
    signal.SIGUSR1,
    lambda *_: servicer.set("", health_pb2.HealthCheckResponse.SERVING),
)
server.add_insecure_port("0.0.0.0:7800")
server.start()
print("listening", flush=True)
server.wait_for_termination()
"""


@pytest.fixture
def run_id(engine: docker.DockerClient) -> Iterator[str]:
    run_id = new_run_id()
    yield run_id
    remove_run(engine, run_id)


def run_python(engine: docker.DockerClient, image: str, run_id: str, program: str) -> str:
    out = engine.containers.run(
        image,
        ["-c", program],
        entrypoint="python",
        network_mode="none",
        labels=labels_of(run_id),
    )
    assert isinstance(out, bytes)
    return out.decode()


def probe(container: Container) -> tuple[int, str]:
    result = container.exec_run(["ringmq-health"])
    assert isinstance(result.output, bytes)
    assert result.exit_code is not None
    return result.exit_code, result.output.decode()


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("0.0.0.0:7800", "127.0.0.1:7800"),
        ("[::]:7900", "127.0.0.1:7900"),
        (":7800", "127.0.0.1:7800"),
        ("10.1.2.3:7800", "10.1.2.3:7800"),
        ("node1:7800", "node1:7800"),
    ],
)
def test_the_probe_asks_where_the_node_listens(listen: str, address: str) -> None:
    assert probe_address(listen) == address


def test_the_image_is_what_its_users_rely_on(engine: docker.DockerClient, node_image: str) -> None:
    config = engine.images.get(node_image).attrs["Config"]
    assert config["Entrypoint"] == ["ringmq"]
    assert config["Cmd"] == ["node", "start"]
    assert config["User"] == "ringmq"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Volumes"] == {"/data": {}}
    assert config["ExposedPorts"] == {"7800/tcp": {}}
    assert config["Healthcheck"]["Test"] == ["CMD", "ringmq-health"]
    assert "RINGMQ_DATA=/data" in config["Env"]
    assert "RINGMQ_SEEDS=127.0.0.1:7800" in config["Env"]


def test_a_node_turns_healthy_is_asked_and_stops(
    engine: docker.DockerClient, node_image: str, run_id: str
) -> None:
    """The image's own command, probe and stop signal, with nothing but a name and a registry."""
    container = engine.containers.run(
        node_image,
        network_mode="none",
        environment={"RINGMQ_NODE": "alone", "RINGMQ_REGISTRY": "sqlite:///data/registry.db"},
        # More often than an orchestrator needs it; the probe itself is the image's.
        healthcheck={"interval": 500_000_000},
        labels=labels_of(run_id),
        detach=True,
    )

    def health() -> str:
        container.reload()
        status: str = container.attrs["State"]["Health"]["Status"]
        return status

    wait_until(lambda: health() == "healthy", "a healthy node", deadline_s=60)
    asked = container.exec_run(["ringmq", "cluster", "status", "--json"])
    assert asked.exit_code == 0, asked.output
    assert isinstance(asked.output, bytes)
    (node,) = json.loads(asked.output)["nodes"]
    assert (node["node"], node["state"]) == ("alone", "running")
    container.stop(timeout=20)
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 0


def test_it_runs_as_nobody_special_and_writes_only_its_data(
    engine: docker.DockerClient, node_image: str, run_id: str
) -> None:
    program = (
        "import os, pathlib\n"
        "import grpc, ringmq, ringmq_gm, ringmq_node\n"
        "assert os.getuid() == 7800\n"
        "pathlib.Path('/data/file').write_text('x')\n"
        "for path in ('/opt/ringmq/file', '/etc/file', '/file'):\n"
        "    try:\n"
        "        open(path, 'w')\n"
        "    except PermissionError:\n"
        "        continue\n"
        "    raise SystemExit(f'{path} is writable')\n"
        "print('as it should be')\n"
    )
    assert run_python(engine, node_image, run_id, program) == "as it should be\n"


def test_all_that_our_wheel_asks_for_is_installed(
    engine: docker.DockerClient, node_image: str, run_id: str
) -> None:
    """The wheels went in without pip's resolver, so it is asked afterwards."""
    program = "from pip._internal.cli.main import main; raise SystemExit(main(['check']))"
    try:
        assert "No broken requirements" in run_python(engine, node_image, run_id, program)
    except ContainerError as error:
        pytest.fail(str(error))


def test_the_probe_passes_only_while_the_node_serves(
    engine: docker.DockerClient, node_image: str, run_id: str
) -> None:
    container = engine.containers.run(
        node_image,
        ["-c", HEALTH_SERVER],
        entrypoint="python",
        network_mode="none",
        labels=labels_of(run_id),
        detach=True,
    )
    wait_until(lambda: b"listening" in container.logs(), "the health server", deadline_s=30)
    code, text = probe(container)
    assert (code, "not SERVING" in text) == (1, True), text
    container.kill("SIGUSR1")
    assert probe(container) == (0, "")


def test_the_probe_fails_where_nobody_listens(
    engine: docker.DockerClient, node_image: str, run_id: str
) -> None:
    container = engine.containers.run(
        node_image,
        ["60"],
        entrypoint="sleep",
        network_mode="none",
        labels=labels_of(run_id),
        detach=True,
    )
    code, text = probe(container)
    assert code == 1
    assert "UNAVAILABLE" in text
