"""The cluster, the session and the folders of a run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import ringmq
from bench.comparison import ROOT
from bench.measure import BenchError
from bench.pipeline.generated import GeneratedRows, Nothing
from ringmq.sync import SyncClient
from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_pipeline.session import spark_session

QUEUE = "measured"
READY_S = 60.0
# A task that fails is run again, which plain `local[2]` never does.
ATTEMPTS = 3


@dataclass(slots=True)
class Place:
    """`table`: `count` messages of `size` bytes, as Parquet. `tasks`: as many as Spark's cores."""

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
        """Raises `BenchError` if a node has logged a fault."""
        self.client.close()
        self.cluster.stop()
        self.pids = []
        if faults := self.cluster.log_faults():
            raise BenchError(f"{len(faults)} errors in the nodes' logs, the first: {faults[0]}")


@contextmanager
def running_cluster(folder: Path, nodes: int) -> Iterator[tuple[LocalCluster, list[int]]]:
    """Local nodes and their processes' ids."""
    cluster = LocalCluster.create(folder, nodes=nodes, base_port=0)
    try:
        pids = [cluster.start(each.node).pid for each in cluster.nodes]
        asyncio.run(cluster.wait_ready(timeout_s=READY_S))
        yield cluster, pids
    finally:
        cluster.stop()


@contextmanager
def session(folder: Path, cores: int) -> Iterator[SparkSession]:
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
    master = f"local[{cores},{ATTEMPTS}]"
    with spark_session("ringmq bench", master=master, conf=conf) as spark:
        for source in (GeneratedRows, Nothing):
            spark.dataSource.register(source)
        yield spark


def connect(cluster: LocalCluster) -> SyncClient:
    return ringmq.connect_sync(cluster.seeds, deadline_s=60.0)
