"""`diverge` and `salvage` on the directories of a real cluster, and then on falsified ones."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loops
import pytest
from chaos.disks import left_disks
from chaos.load import QUEUES, REPLICAS
from chaos.run import SPARE
from chaos_runs import chaos_run
from nemesis import Cluster
from nemesis.cluster import NODES
from nemesis.falsifying import falsify
from node.tests.storage.offline.directory import queue_file
from node.tests.storage.queue.test_queue_store import append
from node.tests.storage.workload import run_store
from sparks import evidence

from ringmq_node.queue.ops import Remove
from ringmq_node.storage import Store
from ringmq_node.storage.disk.data_directory import META_NAME
from ringmq_node.storage.format.formats import STORE_META
from ringmq_node.storage.format.texts import decode_texts
from ringmq_pipeline.cli import invoke
from ringmq_pipeline.cli.errors import EXIT_FOUND
from ringmq_pipeline.jobs.diverge import LAGS
from ringmq_pipeline.jobs.stores import messages_of, queues_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING, ALTERED = 50, 20
TORN = b"half a record"
CHAOS_S = 600


def stores_of(cluster: Cluster) -> list[str]:
    return [word for name in NODES for word in ("--store", f"{name}={cluster.data(name)}")]


async def play_faults(cluster: Cluster) -> set[int]:
    """A mirror and then the master die under load; the replicas are equal in the end. Returns what
    was confirmed."""
    load, other = cluster.publishing("q"), cluster.publishing("other")
    async with load, other, cluster.consuming("other"):
        for victim in ((await cluster.mirrors_of("q"))[0], await cluster.master_of("q")):
            await load.confirms(1000, within_s=60)
            cluster.kill(victim)
            await load.confirms(500, within_s=60)
            await cluster.start(victim)
            for queue in ("q", "other"):
                await cluster.wait_synchronised(queue, within_s=60)
    await wait_equal(cluster, "q", "other")
    return load.confirmed


async def wait_equal(cluster: Cluster, *queues: str) -> None:
    for queue in queues:
        await cluster.wait_synchronised(queue, within_s=60)
        await cluster.wait_equal(queue, within_s=60)


def plant(root: Path, queue: str, removed: list[int]) -> None:
    """The store applies one op more: it removes these positions, or none."""
    named = decode_texts(STORE_META, root / META_NAME, (root / META_NAME).read_bytes())
    assert named is not None
    cluster_id, node = named
    store = Store.open(root, cluster_id=cluster_id, node=node)

    async def work() -> None:
        append(store.open_queue(queue), Remove(tuple((at, at) for at in removed)))
        await store.sync()

    run_store(store, work)


def live_bodies(spark: SparkSession, root: Path) -> dict[int, bytes]:
    rows = messages_of(spark, {"x": root}, "q").where("status = 'ok'").collect()
    return {row.position: bytes(row.body) for row in rows}


class Verbs:
    """The verbs as a user calls them: exit code and summary."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, dict[str, Any]]:
        self._capsys.readouterr()
        code = invoke([*words, "--quiet"])
        said = self._capsys.readouterr()
        assert said.out, said.err
        summary: dict[str, Any] = json.loads(said.out.splitlines()[-1])
        return code, summary


def nothing_but_lag(summary: dict[str, Any]) -> bool:
    """Of a cluster whose nodes were killed: none of the other findings."""
    lists = ("absent_replicas", "damaged", "unreadable")
    return (
        not {*summary["differences"]} - {*LAGS}
        and (summary["divergent"], summary["uncertain"]) == (0, 0)
        and not any(summary[name] for name in lists)
    )


async def story(folder: Path, spark: SparkSession, verb: Verbs) -> None:
    async with Cluster(folder) as cluster:
        for queue in ("q", "other", "again"):
            await cluster.declare(queue)
            await cluster.wait_synchronised(queue)
        confirmed = await play_faults(cluster)
        cluster.kill(*NODES)

        code, healthy = verb("diverge", *stores_of(cluster))
        assert code == 0
        assert nothing_but_lag(healthy), healthy

        bodies = live_bodies(spark, cluster.data("b"))
        assert len(bodies) >= len(confirmed)
        copy = cluster.copy_disk("b")
        await cluster.start()
        at = ["--endpoints", ",".join(cluster.seeds)]
        for _ in range(2):
            code, summary = verb("salvage", "--store", f"b={copy}", "--queue=q", "--to=again", *at)
            assert (code, summary["messages"], summary["findings"]) == (0, len(bodies), 0)
        async with cluster.client() as client:
            batches = client.reader("again").browse(0)
            salvaged = [body async for batch in batches for body in batch.messages.bodies]
        assert salvaged == [bodies[position] for position in sorted(bodies)]
        await wait_equal(cluster, "q", "other", "again")
        cluster.kill(*NODES)

        positions = sorted(bodies)
        missing, altered = positions[100 : 100 + MISSING], positions[700 : 700 + ALTERED]
        [replica] = queues_of(spark, {"b": cluster.data("b")}, "q").collect()
        for name in NODES:
            gone = missing if name == "b" else []
            # It has a loop of its own.
            await asyncio.to_thread(plant, cluster.data(name), replica["queue_id"], gone)
        for position in altered:
            body = bodies[position]
            # The queue `again` has these bodies, too, and keeps them.
            falsify(
                queue_file(cluster.data("c"), replica["queue_id"], "."),
                body,
                body[:-1] + bytes([body[-1] ^ 1]),
            )
        untorn = verb("diverge", *stores_of(cluster))[1]["torn_bytes"]
        journal = max(cluster.data("a").rglob("journal.jif"), key=lambda path: path.stat().st_size)
        with journal.open("ab") as file:
            file.write(TORN)

        found = folder / "found"
        code, planted = verb("diverge", *stores_of(cluster), "--to", str(found))
        rows = [
            (row.kind, row.node, row.position) for row in spark.read.parquet(str(found)).collect()
        ]
        assert Counter(rows) == Counter(
            [("absent", "b", position) for position in missing]
            + [("altered", "c", position) for position in altered]
        )
        assert code == EXIT_FOUND
        found_kinds = {"absent": MISSING, "altered": ALTERED}
        assert (planted["divergent"], planted["differences"]) == (MISSING + ALTERED, found_kinds)
        # A kill may leave one elsewhere, too: nodes are killed before this is planted.
        torn = f"a: {journal.relative_to(cluster.data('a'))}"
        assert torn in planted["torn"]
        assert planted["torn_bytes"] - len(TORN) == untorn
        assert nothing_but_lag(planted | {"divergent": 0, "differences": {}}), planted
        print(f"{len(confirmed)} confirmed, {len(bodies)} live; healthy {healthy}")
        print(f"planted {planted}")


@evidence
@pytest.mark.slow
@pytest.mark.cluster
def test_replicas_agree_after_faults_and_exactly_what_is_planted_is_found(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loops.run(story(tmp_path, spark, Verbs(capsys)))


@evidence
@pytest.mark.slow
@pytest.mark.cluster
def test_a_chaos_run_leaves_equal_replicas_and_a_sound_history(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    done = chaos_run(folder, "--seed=7", "--keep-disks", within_s=CHAOS_S)
    assert done.returncode == 0, done.stdout + done.stderr
    verb = Verbs(capsys)
    code, judged = verb("verify", "--history", str(folder / "history.jsonl"))
    assert (code, judged["violations"]) == (0, {}), judged
    assert judged["delivered"] > 1000
    with left_disks(folder, (*NODES, SPARE)) as stores:
        named = [word for name, data in stores.items() for word in ("--store", f"{name}={data}")]
        code, compared = verb("diverge", *named, "--replicas", str(REPLICAS))
    assert (code, compared["queues"]) == (0, len(QUEUES)), compared
    assert nothing_but_lag(compared), compared
    print(f"verified {judged}")
    print(f"compared {compared}")
