"""Groups over real sockets: one process, several nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from group_harness import ListApplication, LocalCluster, local_cluster, until
from tcp_proxy import TcpProxy

from ringmq_gm import (
    FullError,
    Group,
    GroupOptions,
    NotMasterError,
    PromotionError,
    RingClosedError,
    RingFailedError,
    Role,
    SupersededError,
    Timing,
    View,
    ring_key,
)
from ringmq_gm.registry.base import Delete, Guard, Operation, Session
from ringmq_gm.registry.sqlite import SqliteRegistry

# As in use, but for a failure detector that doesn't make the tests wait.
FAST = GroupOptions(ring_timeout_s=0.5, timing=Timing(probe_s=0.2, retry_s=0.1))


def synced(view: View | None) -> list[str]:
    return [member_id.node for member_id in view.synced] if view is not None else []


def prefix_of(shorter: Sequence[object], longer: Sequence[object]) -> bool:
    return list(shorter) == list(longer[: len(shorter)])


@asynccontextmanager
async def proxied(
    tmp_path: Path, nodes: str, options: GroupOptions
) -> AsyncIterator[tuple[LocalCluster, dict[str, TcpProxy]]]:
    """A cluster whose nodes are reached through a proxy each."""
    proxies = {node: TcpProxy() for node in nodes}
    for proxy in proxies.values():
        await proxy.start()
    try:
        async with local_cluster(tmp_path, "", options) as cluster:
            for node, proxy in proxies.items():
                started = await cluster.start(node, advertised=f"127.0.0.1:{proxy.port}")
                proxy.target = started.port
            yield cluster, proxies
    finally:
        for proxy in proxies.values():
            await proxy.close()


def test_what_the_master_multicasts_is_delivered_everywhere_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(1000):
                assert rings["a"].multicast(b"%d" % index) == index + 1
                assert len(apps["a"].ops) == index + 1
            await until(lambda: apps["a"].confirmed[1] == 1000)
            assert apps["b"].ops == apps["a"].ops
            assert apps["c"].ops == apps["a"].ops
            assert all(mark.persisted == 1000 for mark in rings["a"].marks().values())

    asyncio.run(main())


def test_order_holds_while_links_are_cut_under_load(tmp_path: Path) -> None:
    async def main() -> None:
        options = GroupOptions(timing=Timing(retry_s=0.1))
        async with proxied(tmp_path, "abc", options) as (cluster, proxies):
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(600):
                if index % 100 == 50:
                    list(proxies.values())[index // 100 % 3].cut()
                rings["a"].multicast(b"%d" % index + bytes(10_000))
                if index % 10 == 0:
                    await asyncio.sleep(0.005)
            await until(lambda: apps["a"].confirmed[1] == 600)
            assert [op[0] for op in apps["c"].ops] == list(range(1, 601))
            assert apps["c"].ops == apps["b"].ops == apps["a"].ops
            # A cut that is mended by the quick redial suspects nobody.
            assert rings["a"].view is not None
            assert rings["a"].view.epoch == 1

    asyncio.run(main())


def test_the_next_member_takes_over_when_the_master_refuses_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(100):
                rings["a"].multicast(b"%d" % index)
            await until(lambda: apps["a"].confirmed[1] == 100)
            began = time.monotonic()
            await cluster.nodes["a"].stop()
            await until(lambda: rings["b"].role is Role.MASTER)
            assert time.monotonic() - began < 1.0
            rings["b"].multicast(b"after")
            await until(lambda: apps["b"].confirmed[1] == 101)
            assert prefix_of(apps["a"].payloads, apps["b"].payloads)
            assert apps["c"].ops == apps["b"].ops

    asyncio.run(main())
