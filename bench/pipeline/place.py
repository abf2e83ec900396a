"""The cluster, the session and the folders of a run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import ringmq
from bench.comparison import ROOT
from bench.measure import BenchError
from bench.pipeline.generated import GeneratedRows, Nothing
from bench.pipeline.messages import write_table
from ringmq.sync import SyncClient
from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_pipeline.session import spark_session

QUEUE = "measured"
# A store of 10 GB is closed, opened and deleted within it.
READY_S = 300.0
POLL_S = 0.05
EXECUTOR_MIB = 1024
# A task that fails is run again, which plain `local[2]` never does.
ATTEMPTS = 3


@dataclass(slots=True)
class Place:
    """`table`: `count` messages of `size` bytes, as Parquet. `tasks`: as many as Spark's cores.
    `pids`: of the nodes that run."""

    folder: Path
    table: Path
    cluster: LocalCluster
    client: SyncClient
    spark: SparkSession
    count: int
    size: int
    tasks: int
    pids: list[int]

    @property
    def endpoints(self) -> str:
        return self.cluster.seeds

    def declare(self, queue: str) -> None:
        """On all nodes, and synchronised there."""
        self.client.declare_queue(queue)

    def stop_nodes(self) -> None:
        """Once no node has anything of the queues that were deleted: a scan would find it. Raises
        `BenchError` if a node has logged a fault."""
        stores = [self.cluster.directory / each.node / "queues" for each in self.cluster.nodes]
        _wait(
            # Asked each time: a node may list a queue for a moment after another has deleted it.
            lambda: {len(self.client.queues())} == {len([*store.iterdir()]) for store in stores},
            "the nodes have deleted the replicas of deleted queues",
        )
        self.client.close()
        self.cluster.stop(timeout_s=READY_S)
        self.pids = []
        if faults := self.cluster.log_faults():
            raise BenchError(f"{len(faults)} errors in the nodes' logs, the first: {faults[0]}")

    def start_nodes(self) -> None:
        """Those that were stopped, until every queue has all its replicas again."""
        self.pids = _started(self.cluster)
        self.client = connect(self.cluster)
        wanted = len(self.cluster.nodes)
        _wait(
            lambda: all(
                sum(replica.synchronised for replica in queue.ring) == wanted
                for queue in self.client.queues()
            ),
            "all queues are whole",
        )


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"not within {READY_S:g} s: {what}")
        time.sleep(POLL_S)


@contextmanager
def place_for(
    folder: Path, spark: SparkSession, *, nodes: int, count: int, size: int, tasks: int
) -> Iterator[Place]:
    """A table of `count` messages and a cluster of its own, both below `folder`."""
    write_table(folder / "table", count, size)
    cluster = LocalCluster.create(folder / "cluster", nodes=nodes, base_port=0)
    try:
        pids = _started(cluster)
        place = Place(
            folder=folder,
            table=folder / "table",
            cluster=cluster,
            client=connect(cluster),
            spark=spark,
            count=count,
            size=size,
            tasks=tasks,
            pids=pids,
        )
        yield place
        if place.pids:
            place.stop_nodes()
    finally:
        cluster.stop()


def _started(cluster: LocalCluster) -> list[int]:
    """The ids of the nodes' processes, once all of them serve."""
    pids = [cluster.start(each.node).pid for each in cluster.nodes]
    asyncio.run(cluster.wait_ready(timeout_s=READY_S))
    return pids


def embedded(cores: int) -> str:
    """The master of a session whose tasks are threads of the driver."""
    return f"local[{cores},{ATTEMPTS}]"


def executors(count: int) -> str:
    """The master of a session with so many executors, each a process with one core."""
    return f"local-cluster[{count},1,{EXECUTOR_MIB}]"


@contextmanager
def session(folder: Path, master: str) -> Iterator[SparkSession]:
    # The workers import the generated source.
    found = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), found)))
    conf = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        # A task that is made to fail is no news.
        "spark.log.level": "OFF",
    }
    with spark_session("ringmq bench", master=master, conf=conf) as spark:
        for source in (GeneratedRows, Nothing):
            spark.dataSource.register(source)
        yield spark


def connect(cluster: LocalCluster) -> SyncClient:
    return ringmq.connect_sync(cluster.seeds, deadline_s=60.0)
