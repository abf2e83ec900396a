"""A node's report of its memory and disk, read as an operator does: `cluster status --json`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from loops import run
from nemesis import Cluster, until
from nemesis.command_line import ringmq_succeeded

import ringmq

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

BODY_BYTES = 32 << 10
BACKLOG_BYTES = 512 << 20


async def status(cluster: Cluster, *through: str) -> dict[str, dict[str, Any]]:
    """Each node's `resources`."""
    seeds = ",".join(cluster.addresses[name] for name in through or cluster.nodes)
    out = await ringmq_succeeded("cluster", "status", "--json", "--seeds", seeds)
    return {node["node"]: node["resources"] for node in json.loads(out)["nodes"]}


def test_memory_alarm_above_a_tiny_watermark(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster(tmp_path, nodes=("a", "b"), memory_watermark="2MiB") as cluster,
            asyncio.timeout(60),
        ):
            found = await status(cluster)
            for name in cluster.nodes:
                resources = found[name]
                assert resources["memory_alarm"]
                assert not resources["disk_alarm"]
                assert resources["memory_limit_bytes"] == 2 << 20
                assert resources["memory_used_bytes"] > 2 << 20
                assert resources["memory_total_bytes"] >= resources["memory_used_bytes"]
                # Nobody holds anything, and all of it has to go.
                assert 0 <= resources["desired_duration_s"] < 60
                assert cluster.log(name, lines=1000).count("memory alarm on") == 1
            # Without the setting it is gone.
            await cluster.stop("b")
            cluster.launch("b", memory_watermark="0.4")
            await cluster.wait_ready("b", after=1)
            found = await status(cluster)
            assert (found["a"]["memory_alarm"], found["b"]["memory_alarm"]) == (True, False)
            assert found["b"]["desired_duration_s"] is None

    run(story())


def test_disk_alarm_below_a_huge_limit(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster(tmp_path, nodes=("a", "b"), disk_free_limit="1000TB") as cluster,
            asyncio.timeout(60),
        ):
            await cluster.stop("b")
            cluster.launch("b", disk_free_limit="0")
            await cluster.wait_ready("b", after=1)
            found = await status(cluster)
            assert found["a"]["disk_alarm"]
            assert found["a"]["disk_limit_bytes"] == 10**15
            assert 0 < found["a"]["disk_free_bytes"] < 10**15
            assert not found["a"]["memory_alarm"]
            assert not found["b"]["disk_alarm"]
            assert cluster.log("a", lines=1000).count("disk alarm on") == 1
            assert "disk alarm" not in cluster.log("b", lines=1000).rpartition(" ready at ")[2]

    run(story())


def test_a_node_that_hangs_is_listed_without_numbers(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=("a", "b")) as cluster, asyncio.timeout(60):
            assert None not in (await status(cluster, "a")).values()
            cluster.pause("b")
            # A client that only lists the nodes doesn't wait for their resources.
            began = time.monotonic()
            async with cluster.client("a") as client:
                assert len((await client.cluster_status()).nodes) == 2
                without_s = time.monotonic() - began
                began = time.monotonic()
                nodes = {
                    each.node: each
                    for each in (await client.cluster_status(with_resources=True)).nodes
                }
                # It waits for the one that hangs.
                assert without_s < (time.monotonic() - began) / 2
            assert nodes["a"].resources is not None
            assert nodes["b"].resources is None
            cluster.resume("b")

            async def answers() -> bool:
                return None not in (await status(cluster, "a")).values()

            await until(answers, "b is back", within_s=20)

    run(story())


def test_a_backlog_pages_out_and_raises_no_alarm(tmp_path: Path) -> None:
    """A backlog twice the watermark: queues page out, and every message comes back."""

    async def story() -> None:
        async with (
            Cluster(tmp_path, nodes=("a",), memory_watermark="256MiB") as cluster,
            asyncio.timeout(120),
        ):
            await cluster.declare("q")
            seen: list[ringmq.Resources] = []
            async with (
                cluster.publishing(
                    "q", total=BACKLOG_BYTES // BODY_BYTES, size_bytes=BODY_BYTES
                ) as load,
                cluster.client() as client,
            ):
                with load.hurrying():
                    while len(load.confirmed) < BACKLOG_BYTES // BODY_BYTES and not load.errors:
                        (node,) = (await client.cluster_status(with_resources=True)).nodes
                        assert node.resources is not None
                        seen.append(node.resources)
                        await asyncio.sleep(0.1)
            assert load.errors == []
            assert max(each.memory_used_bytes for each in seen) < 256 << 20
            assert any(each.desired_duration_s is not None for each in seen)
            assert "memory alarm" not in cluster.log("a", lines=1000)
            (await cluster.drained("q")).judge(load)

    run(story())
