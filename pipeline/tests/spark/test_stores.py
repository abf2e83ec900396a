"""Replicas' directories under Spark: what differs is found exactly, and is brought back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from live_node import LiveNode
from node.tests.storage.offline.directory import bodies, queue_file
from node.tests.storage.queue.test_queue_store import append
from node.tests.storage.workload import run_store

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import Store
from ringmq_pipeline.jobs.diverge import DIVERGENT, differences, logs_by_queue, replicas_frame
from ringmq_pipeline.jobs.salvage import publish, salvageable
from ringmq_pipeline.jobs.scan import counts
from ringmq_pipeline.jobs.stores import messages_of, pieces_of, queues_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = "orders"
COUNT = 1000
MISSING = range(100, 150)
ALTERED = range(300, 320)


def fill(root: Path, log: Sequence[Op]) -> Path:
    store = Store.open(root, cluster_id="c", node=root.name)
    queue = store.open_queue(QUEUE)
    queue.begin_epoch(1)

    async def work() -> None:
        for op in log:
            append(queue, op)
            await store.sync()

    run_store(store, work)
    return root


def log_of(*, altered: Sequence[int] = (), removed: Sequence[tuple[int, int]] = ()) -> list[Op]:
    messages = bodies(COUNT, 100)
    for position in altered:
        messages[position] = b"altered"
    ops: list[Op] = [
        Publish(first, Block.of(messages[first : first + 50])) for first in range(0, COUNT, 50)
    ]
    return [*ops, Remove(tuple(removed)), Publish(COUNT, Block.of([b"last"]))]


def compare(spark: SparkSession, stores: dict[str, Path]) -> dict[str, set[tuple[str, int]]]:
    """Nodes and positions, by the kind of their difference."""
    logs = logs_by_queue(queues_of(spark, stores).collect())
    messages = messages_of(spark, stores, payload="none")
    found: dict[str, set[tuple[str, int]]] = {}
    for row in differences(messages, replicas_frame(spark, logs)).collect():
        found.setdefault(row["kind"], set()).add((row["node"], row["position"]))
    return found


def test_exactly_what_differs_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """A replica without 50 messages, one with 20 others, and one with a torn tail."""
    stores = {
        "a": fill(tmp_path / "a", log_of()),
        "b": fill(tmp_path / "b", log_of(removed=[(MISSING[0], MISSING[-1])])),
        "c": fill(tmp_path / "c", log_of(altered=ALTERED)),
        "d": fill(tmp_path / "d", log_of()),
    }
    with queue_file(stores["d"], QUEUE, "journal.jif").open("ab") as journal:
        journal.write(b"half a record")
    assert compare(spark, stores) == {
        "absent": {("b", position) for position in MISSING},
        "altered": {("c", position) for position in ALTERED},
    }
    rows = counts(pieces_of(spark, stores)).collect()
    assert {(row["node"], row["rows"]) for row in rows if row["status"] == "torn"} == {("d", 1)}


def test_a_replica_that_was_stopped_earlier_only_lags(spark: SparkSession, tmp_path: Path) -> None:
    log = log_of(removed=[(0, 9)])
    stores = {"a": fill(tmp_path / "a", log), "b": fill(tmp_path / "b", log[:-2])}
    found = compare(spark, stores)
    assert found == {
        "ack_lag": {("a", position) for position in range(10)},
        "behind": {("b", COUNT)},
    }
    assert not found.keys() & {*DIVERGENT}


def test_a_lost_store_is_published_once_however_often(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    live.client.declare_queue("salvaged")
    stores = {"a": fill(tmp_path / "a", log_of(removed=[(0, 499)]))}
    rows = salvageable(messages_of(spark, stores, minPartitions="1"))
    for _ in range(2):
        publish(rows, live.address, "salvaged", "a lost node")
    assert live.bodies("salvaged") == [*bodies(COUNT, 100)[500:], b"last"]
