"""Replicas' directories under Spark: what differs is found exactly, and is brought back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_node import LiveNode
from node.tests.storage.offline.directory import bodies, queue_file
from node.tests.storage.queue.test_queue_store import append
from node.tests.storage.workload import run_store

import ringmq
from ringmq.sync import SyncClient
from ringmq.v1 import common_pb2 as common
from ringmq_node.model.names import join_name
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import Store
from ringmq_pipeline.cli import invoke
from ringmq_pipeline.cli.errors import EXIT_FAILED, EXIT_FOUND, EXIT_USAGE
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


def fill(root: Path, *logs: Sequence[Op], queue: str = QUEUE) -> Path:
    """Each log is an epoch."""
    store = Store.open(root, cluster_id="c", node=root.name)
    opened = store.open_queue(queue)

    async def work() -> None:
        for epoch, log in enumerate(logs, 1):
            opened.begin_epoch(epoch)
            for op in log:
                append(opened, op)
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


@pytest.mark.compute
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


def test_what_is_lost_behind_an_earlier_stop_of_another_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    stores = {
        "a": fill(tmp_path / "a", log_of()),
        "b": fill(tmp_path / "b", log_of(removed=[(900, 909)])),
        "c": fill(tmp_path / "c", log_of()[:10]),
    }
    found = compare(spark, stores)
    assert found["absent"] == {("b", position) for position in range(900, 910)}
    assert found.keys() == {"absent", "behind"}


def test_below_a_fork_a_loss_is_a_loss_or_uncertain(spark: SparkSession, tmp_path: Path) -> None:
    """`c` was master and published on; `a` and `b` had another one, from position 900 on."""
    common, rest = log_of()[:18], log_of()[18:20]
    other = Publish(900, Block.of([b"another"] * 50))
    stores = {
        "a": fill(tmp_path / "a", common, [Remove(((10, 10),)), other]),
        "b": fill(tmp_path / "b", common, [Remove(((10, 10), (20, 20))), other]),
        "c": fill(tmp_path / "c", [*common, *rest, Remove(((30, 30),))]),
    }
    assert compare(spark, stores) == {
        # Its log is that of `a`, which has the message.
        "absent": {("b", 20)},
        "uncertain": {("a", 10), ("b", 10), ("c", 30)},
        "behind": {(node, position) for node in "ab" for position in range(950, 1000)},
    }


@pytest.mark.compute
@pytest.mark.usefixtures("spark")
def test_a_replica_that_is_not_there_is_found_and_a_torn_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = {name: fill(tmp_path / name, log_of()) for name in "ab"}
    stores["c"] = fill(tmp_path / "c", log_of(), queue="another")
    with queue_file(stores["b"], QUEUE, "journal.jif").open("ab") as journal:
        journal.write(b"half a record")
    words = [word for name, path in stores.items() for word in ("--store", f"{name}={path}")]
    assert invoke(["diverge", *words]) == EXIT_FOUND
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert (summary["divergent"], summary["uncertain"], summary["unreadable"]) == (0, 0, [])
    assert sorted(summary["absent_replicas"]) == ["a: another", "b: another", f"c: {QUEUE}"]
    told = [json.loads(line) for line in said.err.splitlines()]
    assert {(each["kind"], each["node"]) for each in told if each["queue"] == QUEUE} == {
        ("absent_replica", "c"),
        ("torn", "b"),
    }
    [torn] = [each for each in told if each["kind"] == "torn"]
    assert torn["file"].endswith("journal.jif")
    assert torn["file_offset"] > 0
    assert summary["torn"] == [f"b: {torn['file']}"]
    assert invoke(["diverge", *words, "--replicas", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["absent_replicas"] == []


@pytest.mark.usefixtures("spark")
def test_a_fork_that_cannot_tell_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common, rest = log_of()[:18], log_of()[18:20]
    went_on = fill(tmp_path / "a", common, [Remove(((10, 10),)), *rest])
    stayed = fill(tmp_path / "b", [*common, *rest])
    assert invoke(["diverge", "--store", f"a={went_on}", "--store", f"b={stayed}"]) == EXIT_FAILED
    said = capsys.readouterr()
    assert json.loads(said.out)["uncertain"] == 1
    assert '"kind": "uncertain"' in said.err


def test_a_lost_store_is_published_once_however_often(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    live.client.declare_queue("salvaged")
    stores = {"a": fill(tmp_path / "a", log_of(removed=[(0, 499)]))}
    rows = salvageable(messages_of(spark, stores, minPartitions="1"))
    for _ in range(2):
        publish(rows, live.address, "salvaged", "a lost node")
    assert live.bodies("salvaged") == [*bodies(COUNT, 100)[500:], b"last"]


@pytest.mark.usefixtures("spark")
def test_queues_of_vhosts_go_back_to_their_vhosts(live: LiveNode, tmp_path: Path) -> None:
    """A queue in another vhost made a salvage fail: its name inside a node was refused. And no
    message had its type, its priority, or a header that is no text."""
    live.client.topology.create_vhost("shop")
    properties = common.Properties(
        type="t", priority=7, headers={"n": common.FieldValue(integer=1)}
    )
    log: list[Op] = [Publish(0, Block.of([b"plain"], [properties.SerializeToString()]))]
    inside: list[Op] = [Publish(0, Block.of([b"in shop"]))]
    root = fill(tmp_path / "a", log, queue="of both")
    fill(root, inside, queue=join_name("shop", "of both"))
    live.client.declare_queue("of both")
    with ringmq.connect_sync(live.address, vhost="shop") as shop:
        shop.declare_queue("of both")
        shop.declare_queue("all")
        words = ["salvage", "--store", f"a={root}", "--endpoints", live.address]
        for _ in range(2):
            assert invoke(words) == 0
        assert live.bodies("of both") == [b"plain"]
        assert found_in(shop, "of both") == [b"in shop"]
        [found] = live.client.reader("of both").browse(0)
        [message] = found.messages
        assert (message.properties.type, message.properties.priority) == ("t", 7)
        assert message.properties.headers == {"n": 1}
        assert invoke([*words, "--to", "all", "--vhost", "shop"]) == 0
        assert sorted(found_in(shop, "all")) == [b"in shop", b"plain"]
    assert invoke([*words, "--vhost", "shop"]) == EXIT_USAGE


def found_in(client: SyncClient, queue: str) -> list[bytes]:
    reader = client.reader(queue)
    return [body for batch in reader.browse(reader.stat().first) for body in batch.messages.bodies]


@pytest.mark.usefixtures("spark")
def test_another_store_in_the_same_place_is_no_repeat(live: LiveNode, tmp_path: Path) -> None:
    """A node is lost once more, and its directory has the name that it always had."""
    live.client.declare_queue("lost twice")
    root = fill(tmp_path / "a", log_of(removed=[(0, 499)]))
    words = ["salvage", "--store", f"a={root}", "--to", "lost twice", "--endpoints", live.address]
    assert invoke(words) == 0
    root.rename(tmp_path / "first")
    fill(root, log_of(altered=range(COUNT), removed=[(0, 989)]))
    for _ in range(2):
        assert invoke(words) == 0
    first = [*bodies(COUNT, 100)[500:], b"last"]
    assert live.bodies("lost twice") == [*first, *[b"altered"] * 10, b"last"]
