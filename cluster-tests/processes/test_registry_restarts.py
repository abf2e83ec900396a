"""Etcd members that restart under load, and leases that are revoked at any moment of a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from etcd_server import EtcdCluster
from loops import run
from nemesis import Cluster, until

from ringmq_gm.registry.etcdpb import rpc_pb2
from ringmq_gm.registry.etcdpb.rpc_pb2_grpc import KVStub, LeaseStub

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

# Less than a lease, which is 3 s here.
PAUSE_S_MAX = 2.7


def test_each_member_restarts_and_then_all_of_them(tmp_path: Path) -> None:
    """Nobody notices: no error, no other view, no pause. Afterwards a failover works."""

    async def story(etcd: EtcdCluster) -> None:
        async with Cluster(tmp_path, registry=etcd.url) as cluster, asyncio.timeout(90):
            await cluster.declare("q")
            before = await cluster.wait_synchronised("q")
            async with cluster.publishing("q") as load:
                await load.confirms(100)
                load.watch_gaps()
                for member in range(3):
                    etcd.kill(member)
                    await load.confirms(100)
                    await asyncio.to_thread(etcd.start, member)
                for member in range(3):
                    etcd.kill(member)
                for member in range(3):
                    etcd.launch(member)
                await asyncio.to_thread(etcd.wait_healthy)
                await load.confirms(100)
                load.pauses_less_than(PAUSE_S_MAX)
                async with cluster.client() as client:
                    await client.declare_queue("another")
                assert (await cluster.info("q")).epoch == before.epoch
                cluster.kill(before.master)
                await load.confirms(200, within_s=20)
                await cluster.start(before.master)
                await cluster.wait_synchronised("q")
            assert load.errors == []
            (await cluster.drained("q")).judge(load)

    with EtcdCluster(tmp_path / "etcd", size=3) as etcd:
        run(story(etcd))


async def revoke_lease(etcd: EtcdCluster, node: str) -> int:
    """Takes the lease of the node's present life away; returns its number."""
    async with grpc.aio.insecure_channel(etcd.endpoints[0]) as channel:
        key = f"test/nodes/{node}".encode()
        found = await KVStub(channel).Range(rpc_pb2.RangeRequest(key=key))
        assert found.kvs, f"{key!r} is not in the registry"
        lease: int = found.kvs[0].lease
        await LeaseStub(channel).LeaseRevoke(rpc_pb2.LeaseRevokeRequest(ID=lease))
        return lease


def test_a_lease_is_revoked_at_the_master_a_mirror_and_a_joiner(tmp_path: Path) -> None:
    """Each of them takes another lease. A joiner goes on and is synchronised."""

    async def story(etcd: EtcdCluster) -> None:
        async with Cluster(tmp_path, registry=etcd.url) as cluster, asyncio.timeout(140):
            await cluster.declare("q")
            info = await cluster.wait_synchronised("q")
            master, mirror, joiner = [replica.node for replica in info.ring]
            async with cluster.publishing("q", size_bytes=8_000) as load:
                for node in (master, mirror):
                    await load.confirms(100)
                    await revoke_lease(etcd, node)
                    await until(lambda node=node: has_lease(etcd, node), f"{node} has a lease")
                    await load.confirms(100)
                cluster.kill(joiner)
                await load.confirms(1000, within_s=30)
                cluster.launch(joiner)
                await until(lambda: has_lease(etcd, joiner), "the joiner has a lease")
                await revoke_lease(etcd, joiner)
                # It fetches beside a load of 8 kB messages, as fast as they come.
                await cluster.wait_synchronised("q", within_s=60)
                await until(lambda: has_lease(etcd, joiner), "the joiner has another lease")
                await load.confirms(100)
            assert load.errors == []
            (await cluster.drained("q")).judge(load)

    with EtcdCluster(tmp_path / "etcd") as etcd:
        run(story(etcd))


async def has_lease(etcd: EtcdCluster, node: str) -> bool:
    async with grpc.aio.insecure_channel(etcd.endpoints[0]) as channel:
        request = rpc_pb2.RangeRequest(key=f"test/nodes/{node}".encode())
        return bool((await KVStub(channel).Range(request)).kvs)
