"""`deploy/compose.yaml` agrees with itself, with the Dockerfile and with what these tests run.

No engine is needed: these tests read the file for typing errors, which would break it for the
person who tries it.
"""

import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers.compose import COMPOSE_FILE, compose_command
from containers.engine import not_run
from containers.workload import DATA, ETCD, NODE_PORT, REGISTRY_BASE, REGISTRY_ETCD, ringmq_nodes
from spark_health import why_not_working

from ringmq_node.config import load_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NODES = ("node1", "node2", "node3")
SPARK = ("spark-master", "spark-worker1", "spark-worker2")

# The keys of the Compose specification that we use; anything else is a slip of the pen.
SERVICE_KEYS = {
    "image",
    "build",
    "command",
    "restart",
    "stop_grace_period",
    "depends_on",
    "networks",
    "hostname",
    "environment",
    "volumes",
    "ports",
    "healthcheck",
    "profiles",
    "init",
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as Compose reads it when nothing is overridden."""
    text = (DEPLOY / "compose.yaml").read_text()
    with_defaults = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", text)
    loaded: dict[str, Any] = yaml.safe_load(with_defaults)
    return loaded


def test_the_file_uses_known_keys_only(compose: dict[str, Any]) -> None:
    names = {name for name in compose if not name.startswith("x-")}
    assert names == {"version", "services", "networks", "volumes"}
    for service in compose["services"].values():
        assert set(service) <= SERVICE_KEYS


def test_three_nodes_and_a_registry(compose: dict[str, Any]) -> None:
    profiles = {name: service.get("profiles") for name, service in compose["services"].items()}
    assert profiles == dict.fromkeys((ETCD, *NODES)) | {name: ["spark"] for name in SPARK}
    assert compose["services"][ETCD]["image"] == REGISTRY_ETCD


@pytest.mark.parametrize("name", NODES)
def test_a_node_gets_the_environment_that_the_container_tests_run(
    compose: dict[str, Any], name: str
) -> None:
    assert compose["services"][name]["environment"] == ringmq_nodes("any").environment(name)


@pytest.mark.parametrize("name", NODES)
def test_a_node_can_do_with_its_environment(compose: dict[str, Any], name: str) -> None:
    environment = compose["services"][name]["environment"]
    config = load_config({}, environment)
    assert config.node == compose["services"][name]["hostname"] == name
    settings = {f"RINGMQ_{setting.upper()}" for setting in asdict(config)}
    assert set(environment) <= settings
    assert grace_s(compose["services"][name]) > config.drain_s


def grace_s(service: dict[str, Any]) -> int:
    """How long the service has from SIGTERM to SIGKILL, in seconds."""
    grace: str = service["stop_grace_period"]
    assert grace.endswith("s"), grace
    return int(grace[:-1])


def test_each_volume_and_network_is_declared_and_each_is_used(compose: dict[str, Any]) -> None:
    mounts = [m for name in (ETCD, *NODES) for m in compose["services"][name]["volumes"]]
    used = [mount.split(":")[0] for mount in mounts]
    assert sorted([*used, "lake"]) == sorted(compose["volumes"])
    assert len(set(used)) == len(used)
    for service in compose["services"].values():
        assert set(service["networks"]) <= set(compose["networks"])
    for name in NODES:
        assert compose["services"][name]["volumes"] == [f"{name}-data:{DATA}"]


def test_each_node_has_a_port_of_its_own_on_loopback(compose: dict[str, Any]) -> None:
    published = [compose["services"][name]["ports"] for name in NODES]
    assert published == [[f"127.0.0.1:{7801 + i}:{NODE_PORT}"] for i in range(3)]


def test_what_a_service_waits_for_has_a_health_check(compose: dict[str, Any]) -> None:
    for name in NODES:
        for other, wait in compose["services"][name]["depends_on"].items():
            assert wait == {"condition": "service_healthy"}
            assert "healthcheck" in compose["services"][other]


def test_the_build_names_what_the_dockerfile_takes(compose: dict[str, Any]) -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for name in NODES:
        build = compose["services"][name]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
        assert build["args"] == {"BASE": REGISTRY_BASE}
    assert re.findall(r"^ARG (.*)$", dockerfile, re.M) == [f"BASE={REGISTRY_BASE}"]
    assert re.findall(r"^EXPOSE (.*)$", dockerfile, re.M) == [str(NODE_PORT)]
    assert re.findall(r"^VOLUME (.*)$", dockerfile, re.M) == [DATA]


def test_spark_is_of_one_image_and_shares_the_tables(compose: dict[str, Any]) -> None:
    """Driver, master and workers need the same Python, and see the same folders."""
    dockerfile = (DEPLOY / "spark.Dockerfile").read_text()
    services = [compose["services"][name] for name in SPARK]
    for service in services:
        assert (service["image"], service["volumes"]) == (services[0]["image"], ["lake:/lake"])
        build = service["build"]
        assert build["args"] == {"BASE": REGISTRY_BASE}
        assert (DEPLOY / build["dockerfile"]).name == "spark.Dockerfile"
        assert service["command"][0] == "ringmq-spark"
    assert re.findall(r"^ARG (.*)$", dockerfile, re.M) == [f"BASE={REGISTRY_BASE}"]
    assert re.findall(r"^VOLUME (.*)$", dockerfile, re.M) == ["/lake"]
    kept = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    for script, command in {
        "spark_daemon": "ringmq-spark",
        "spark_health": "ringmq-spark-health",
    }.items():
        assert f"COPY deploy/{script}.py /opt/ringmq/bin/{command}" in dockerfile
        assert f"!deploy/{script}.py" in kept
        # The image's file has the mode of the checkout's, and is run by its name.
        assert os.access(DEPLOY / f"{script}.py", os.X_OK)


def test_the_workers_name_the_master_as_it_listens(compose: dict[str, Any]) -> None:
    words = compose["services"]["spark-master"]["command"]
    host, port = (value_of(words, option) for option in ("--host", "--port"))
    assert host == "spark-master"
    for name in SPARK[1:]:
        assert compose["services"][name]["command"][-1] == f"spark://{host}:{port}"
        assert compose["services"][name]["depends_on"] == {host: {"condition": "service_healthy"}}


@pytest.mark.parametrize("name", SPARK)
def test_a_daemon_of_spark_is_asked_at_its_own_page(compose: dict[str, Any], name: str) -> None:
    words = compose["services"][name]["command"]
    probe = compose["services"][name]["healthcheck"]["test"]
    assert probe == ["CMD", "ringmq-spark-health", words[1], value_of(words, "--webui-port")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPARK[:2])
def test_spark_takes_the_words_of_its_daemons(compose: dict[str, Any], name: str) -> None:
    """Spark reads them in order. At a word that it doesn't know it ends with 1, and at the last
    one of these, which it knows, with 0."""
    words = [*compose["services"][name]["command"][1:], "--help"]
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "spark_daemon.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.mark.parametrize(
    ("kind", "page", "reason"),
    [
        ("master", {"status": "ALIVE"}, None),
        ("master", {"status": "RECOVERING"}, "its status is RECOVERING"),
        ("worker", {"masterurl": "spark://spark-master:7077"}, None),
        ("worker", {"masterurl": ""}, "it has no master"),
    ],
)
def test_a_daemon_of_spark_works_or_says_why_not(
    kind: str, page: dict[str, Any], reason: str | None
) -> None:
    assert why_not_working(kind, page) == reason


@pytest.mark.slow
def test_compose_itself_takes_the_file(compose: dict[str, Any]) -> None:
    command = compose_command()
    if command is None:
        not_run("there is neither `docker-compose` nor `docker compose`")
    words = [*command, "--file", str(COMPOSE_FILE), "--profile", "spark", "config"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    taken = yaml.safe_load(done.stdout)
    assert set(taken["services"]) == set(compose["services"])
    for name in SPARK:
        service, meant = taken["services"][name], compose["services"][name]
        assert service["command"] == meant["command"]
        assert service["healthcheck"]["test"] == meant["healthcheck"]["test"]
        assert set(service.get("depends_on", ())) == set(meant.get("depends_on", ()))


@pytest.mark.parametrize(
    ("setting", "outcome"), [("required", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_where_an_engine_is_required_nothing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, setting: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("RINGMQ_DOCKER", setting)
    with pytest.raises(outcome, match="no engine"):
        not_run("no engine")
