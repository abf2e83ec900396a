"""The registry does not answer: messages go on, changes of view wait for it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from etcd_server import EtcdCluster
from loops import run
from nemesis import Cluster, until

import ringmq

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

LEASE_S = 3.0
# A cluster that needed its registry would pause for a lease or longer.
PAUSE_S_MAX = 0.9 * LEASE_S
AWAY_S = 3.3 * LEASE_S


async def no_registry(cluster: Cluster) -> None:
    async def is_away() -> bool:
        async with cluster.client() as client:
            return not (await client.cluster_status()).registry_available

    await until(is_away, "the nodes notice", within_s=10)


def test_etcd_away_and_a_failover_meanwhile(tmp_path: Path) -> None:
    """For three leases messages are published and consumed as before. Then the master is killed:
    nothing is confirmed until the registry is back, when a mirror takes over."""

    async def story(etcd: EtcdCluster) -> None:
        async with Cluster(tmp_path, registry=etcd.url) as cluster, asyncio.timeout(120):
            await cluster.declare("q")
            await cluster.wait_synchronised("q")
            async with cluster.publishing("q") as load, cluster.consuming("q") as eager:
                await load.confirms(200)
                etcd.kill()
                load.watch_gaps()
                killed_at = time.monotonic()
                await no_registry(cluster)
                async with cluster.client() as client:
                    with pytest.raises(ringmq.UnavailableError, match="registry"):
                        await client.declare_queue("another", deadline_s=8.0)
                await asyncio.sleep(AWAY_S - (time.monotonic() - killed_at))
                await load.confirms(200)
                await eager.gets(200)
                load.pauses_less_than(PAUSE_S_MAX)
                info = await cluster.info("q")
                cluster.kill(info.master)
                await load.falls_silent()
                await load.confirms_nothing(3.0)
                await asyncio.to_thread(etcd.start)
                await load.confirms(200, within_s=20)
                await cluster.start(info.master)
                await cluster.wait_synchronised("q")
            assert load.errors == []
            eager.delivered.merge(await cluster.drained("q"))
            eager.delivered.judge(load)

    with EtcdCluster(tmp_path / "etcd") as etcd:
        run(story(etcd))


def test_etcd_stopped_and_resumed(tmp_path: Path) -> None:
    """A stopped etcd (SIGSTOP) keeps its connections and answers nothing. No member is put out."""

    async def story(etcd: EtcdCluster) -> None:
        async with Cluster(tmp_path, registry=etcd.url) as cluster, asyncio.timeout(60):
            await cluster.declare("q")
            before = await cluster.wait_synchronised("q")
            async with cluster.publishing("q") as load:
                etcd.stop()
                load.watch_gaps()
                await asyncio.sleep(5.0)
                await load.confirms(200)
                load.pauses_less_than(PAUSE_S_MAX)
                etcd.resume()
                async with cluster.client() as client:
                    await client.declare_queue("another")
                await load.confirms(200)
                after = await cluster.wait_synchronised("q")
            assert load.errors == []
            assert after.epoch == before.epoch
            (await cluster.drained("q")).judge(load)

    with EtcdCluster(tmp_path / "etcd") as etcd:
        run(story(etcd))


def test_locked_sqlite_registry(tmp_path: Path) -> None:
    """Somebody holds the file's write lock for longer than a lease: nodes can't renew, and
    must not confirm under a view that others may have replaced; afterwards all is well."""

    async def story() -> None:
        async with Cluster(tmp_path) as cluster, asyncio.timeout(60):
            await cluster.declare("q")
            await cluster.wait_synchronised("q")
            async with cluster.publishing("q") as load:
                await load.confirms(200)
                lock = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
                lock.execute("BEGIN IMMEDIATE")
                load.watch_gaps()
                await asyncio.sleep(5.0)
                await load.confirms(200)
                load.pauses_less_than(PAUSE_S_MAX)
                lock.execute("ROLLBACK")
                lock.close()
                async with cluster.client() as client:
                    await client.declare_queue("another")
                await load.confirms(200)
                await cluster.wait_synchronised("q")
            assert load.errors == []
            (await cluster.drained("q")).judge(load)

    run(story())
