"""The profile `spark` of `deploy/compose.yaml`, brought up by a real Compose: a queue of its nodes
becomes a table on its Spark cluster, by the words that the file and docs/pipeline.md have.

`make evidence-pipeline` runs it: its image takes minutes to build, and more than a gigabyte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from containers.compose import Compose, free_port, project
from containers.container import wait_until
from containers.hands import wait_healthy
from sparks import evidence

pytestmark = [pytest.mark.docker, pytest.mark.slow, evidence]

NODES = ("node1", "node2", "node3")
WORKERS = ("spark-worker1", "spark-worker2")
MASTER = "spark-master"
SERVICES = ("etcd", *NODES, MASTER, *WORKERS)
COUNT = 20_000
INGEST_S_MAX, ENDED_S_MAX = 300, 30
INGEST = (
    *("ringmq-pipeline", "ingest", "--master", "spark://spark-master:7077"),
    *("--endpoints", "node1:7800", "--queue", "orders"),
    *("--to", "/lake/orders", "--checkpoint", "/lake/_checkpoints/orders"),
    # So that there is work for both workers.
    *("--once", "--option", "minPartitions=4"),
)
# As any reader of Delta sees it, on a machine that shares the volume.
READ_TABLE = """
import json, deltalake, pyarrow.parquet
files = deltalake.DeltaTable("/lake/orders").file_uris()
tables = [pyarrow.parquet.read_table(file, columns=["position", "body"]) for file in files]
positions = [each for table in tables for each in table["position"].to_pylist()]
sizes = {len(body) for table in tables for body in table["body"].to_pylist()}
print(json.dumps({"rows": len(positions), "distinct": len({*positions}), "sizes": [*sizes]}))
"""
# The executors that this worker had; and processes that have ended, whose parents had ended before
# them, and for which the first process doesn't wait. (Spark's script leaves Java one of its own.)
LOOK_AROUND = """
import json
from pathlib import Path
stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat")]
states = [stat.rpartition(")")[2].split()[:2] for stat in stats]
executors = [*Path("/work").glob("app-*/[0-9]*")]
print(json.dumps({"executors": len(executors), "zombies": states.count(["Z", "1"])}))
"""


@pytest.fixture
def compose(
    engine: docker.DockerClient, node_image: str, spark_image: str, etcd_image: str, tmp_path: Path
) -> Iterator[Compose]:
    images = {"RINGMQ_IMAGE": node_image, "SPARK_IMAGE": spark_image, "ETCD_IMAGE": etcd_image}
    ports = {f"{name.upper()}_PORT": str(free_port()) for name in (*NODES, "spark")}
    # What `--profile spark` sets.
    with project(engine, tmp_path, images | ports | {"COMPOSE_PROFILES": "spark"}) as made:
        yield made


def python(compose: Compose, service: str, program: str) -> Any:
    return json.loads(compose.run("exec", "-T", service, "python", "-c", program))


def ingest(compose: Compose) -> dict[str, Any]:
    """The summary of the verb."""
    said = compose.run("exec", "-T", MASTER, *INGEST, within_s=INGEST_S_MAX)
    summary: dict[str, Any] = json.loads(said.splitlines()[-1])
    return summary


def wait_idle(compose: Compose, worker: str) -> None:
    """Returns when the worker has had one executor, of which nothing is left."""
    wait_until(
        lambda: python(compose, worker, LOOK_AROUND) == {"executors": 1, "zombies": 0},
        f"one executor on {worker}, and no zombies",
        deadline_s=ENDED_S_MAX,
    )


def test_a_queue_becomes_a_table_on_both_workers(compose: Compose) -> None:
    compose.run("up", "--detach", "--no-build")
    for service in SERVICES:
        wait_healthy(compose, service)
    compose.ringmq("node1", "queue", "declare", "orders")
    words = ("publish", "orders", "--count", str(COUNT), "--size", "100")
    assert compose.ringmq("node2", *words)["confirmed"] == COUNT

    assert ingest(compose)["rows"] == COUNT

    seen = python(compose, WORKERS[1], READ_TABLE)
    assert seen == {"rows": COUNT, "distinct": COUNT, "sizes": [100]}
    shown = compose.ringmq("node3", "queue", "show", "orders")
    assert (shown["messages_ready"], shown["messages_unacknowledged"]) == (0, 0)
    for worker in WORKERS:
        wait_idle(compose, worker)
    compose.judge_logs()
    # The tables outlive the containers.
    compose.run("down")
    assert compose.run("ps", "--quiet") == ""
    compose.run("up", "--detach", "--no-build", MASTER)
    wait_healthy(compose, MASTER)
    assert python(compose, MASTER, READ_TABLE) == seen
    compose.run("down", "--volumes")
