"""`deploy/compose.yaml` brought up by a real Compose: what its users do with it works, and no
container logs an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from containers.compose import Compose, compose_command, free_port
from containers.container import wait_until
from containers.engine import new_run_id, not_run, remove_run

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NODES = ("node1", "node2", "node3")
SERVICES = ("etcd", *NODES)
MESSAGES = 2000


@pytest.fixture
def compose(
    engine: docker.DockerClient, node_image: str, etcd_image: str, tmp_path: Path
) -> Iterator[Compose]:
    command = compose_command()
    if command is None:
        not_run("there is neither `docker-compose` nor `docker compose`")
    run_id = new_run_id()
    variables = {"RINGMQ_IMAGE": node_image, "ETCD_IMAGE": etcd_image} | {
        f"{node.upper()}_PORT": str(free_port()) for node in NODES
    }
    try:
        yield Compose(command, engine, tmp_path, run_id, variables)
    finally:
        remove_run(engine, run_id)


def up(compose: Compose) -> None:
    compose.run("up", "--detach", "--no-build")
    for service in SERVICES:
        wait_until(
            lambda service=service: compose.health(service) == "healthy",  # type: ignore[misc]
            f"a healthy {service}",
            deadline_s=90,
        )


def wait_synchronised(compose: Compose, count: int) -> None:
    def is_so() -> bool:
        ring = compose.ringmq("node1", "queue", "show", "q")["ring"]
        return sum(bool(replica["synchronised"]) for replica in ring) == count

    wait_until(is_so, f"{count} synchronised replicas", deadline_s=60)


def test_up_publish_crash_promote_down_and_up_again(compose: Compose) -> None:
    up(compose)
    states = [node["state"] for node in compose.ringmq("node1", "cluster", "status")["nodes"]]
    assert states == ["running"] * 3

    declared = compose.ringmq("node1", "queue", "declare", "q")
    assert len(declared["ring"]) == 3
    published = compose.ringmq("node2", "publish", "q", "--count", str(MESSAGES), "--size", "100")
    assert published["confirmed"] == MESSAGES

    crashed = declared["master"]
    compose.crash(crashed)
    wait_until(lambda: compose.restarts(crashed) == 1, f"{crashed} was restarted", deadline_s=60)
    wait_until(
        lambda: compose.health(crashed) == "healthy", f"{crashed} serves again", deadline_s=90
    )
    wait_synchronised(compose, 3)
    shown = compose.ringmq("node3", "queue", "show", "q")
    assert shown["master"] != crashed
    assert shown["messages_ready"] == MESSAGES

    promoted = compose.ringmq(crashed, "promote", "q", crashed)
    assert promoted["new_master"] == crashed

    compose.judge_logs()
    compose.run("down")
    assert [compose.run("ps", "--quiet")] == [""]
    up(compose)
    wait_synchronised(compose, 3)
    consumed = compose.run("exec", "-T", "node3", "ringmq", "consume", "q")
    assert len(consumed.splitlines()) == MESSAGES
    compose.judge_logs()
    compose.run("down", "--volumes")
