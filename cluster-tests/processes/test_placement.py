"""Replicas come to where they are wanted, and go from where they aren't, under load."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from nemesis import Cluster, scenario
from nemesis.command_line import ringmq_succeeded
from waiting import until

import ringmq
from ringmq import Mirrors, NodeState, Policy

DOWN = NodeState.DOWN


async def wait_down(cluster: Cluster, *names: str) -> None:
    """Until the registry's leases of these nodes have run out."""
    async with cluster.client() as client:

        async def are_down() -> bool:
            nodes = {node.node: node.state for node in (await client.cluster_status()).nodes}
            return all(nodes.get(name, DOWN) is DOWN for name in names)

        await until(are_down, f"{names} are down", within_s=10)


@scenario(deadline_s=60, queue="")
async def test_declared_while_nodes_are_down(cluster: Cluster) -> None:
    """Two of three are down. The queue confirms nothing before it is on two disks, and has all of
    its replicas once the nodes are back."""
    cluster.kill("b", "c")
    await wait_down(cluster, "b", "c")
    await cluster.declare("q")
    info = await cluster.info("q", "a")
    assert [replica.node for replica in info.ring] == ["a"]
    assert (info.replicas_wanted, info.min_insync) == (3, 2)
    assert info.state is ringmq.QueueState.MINORITY
    async with cluster.client("a") as client:
        with pytest.raises(ringmq.TooFewSynchronisedError):
            async with client.publisher("q", deadline_s=1.0) as publisher:
                await publisher.publish(b"on one disk")
    await cluster.start("b", "c")
    await cluster.wait_synchronised("q", 3, within_s=20)
    async with cluster.publishing("q", total=100) as load:
        await load.finishes(within_s=20)
    assert load.errors == []
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_policies_move_replicas_under_load(cluster: Cluster) -> None:
    """One replica, all, two that are named and not the master's, and back: nothing is lost."""
    async with (
        cluster.publishing("q") as load,
        cluster.consuming("q") as eager,
        cluster.client() as client,
    ):

        async def is_on(*nodes: str) -> bool:
            info = await client.queue("q")
            ring = {replica.node for replica in info.ring if replica.synchronised}
            return ring == set(nodes) and len(info.ring) == len(nodes)

        master = await cluster.master_of("q")
        others = cluster.others(master)
        for mirrors, expected in (
            (Mirrors(1), [master]),
            (Mirrors(), [master, *others]),
            (Mirrors(nodes=tuple(others)), others),
            (Mirrors(3), [master, *others]),
        ):
            await client.operator.set_policy(Policy("p", "^q$", mirrors=mirrors))
            await until(lambda nodes=tuple(expected): is_on(*nodes), str(mirrors), within_s=20)
            await load.confirms(100)
        info = await client.queue("q")
        assert (info.replicas_wanted, info.min_insync, info.policy) == (3, 2, "p")
        await eager.gets(100)
    assert load.errors == []
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_a_node_is_drained_and_revived(cluster: Cluster) -> None:
    """Under load. Its masters go elsewhere, and come back by a rebalancing."""
    async with cluster.publishing("q") as load, cluster.client() as client:
        for name in ("r", "s"):
            await client.declare_queue(name)
        node = await cluster.master_of("q")
        seeds = ",".join(cluster.seeds)
        drained = await ringmq_succeeded("node", "drain", node, "-s", seeds)
        assert drained == f"node {node}: drained\n"
        assert await cluster.master_of("q") != node

        async def is_listed() -> bool:
            # Not at once: each command asks a node of its own.
            return f"{node}\tdrained\t0\t3\t0" in await ringmq_succeeded(
                "node", "list", "-s", seeds
            )

        await until(is_listed, f"{node} is listed as drained")
        await client.operator.revive(node)
        moves = await client.operator.rebalance()
        assert [(move.new_master, move.error) for move in moves] == [(node, "")]
        await load.confirms(100)
    assert load.errors == []
    (await cluster.drained("q")).judge(load)


async def none_has_a_replica_on(cluster: Cluster, node: str, queues: Sequence[str]) -> None:
    """Each queue has its three replicas on the others, all synchronised."""
    others = cluster.others(node)
    async with cluster.client(*others) as client:

        async def are_elsewhere() -> bool:
            infos = [await client.queue(name) for name in queues]
            rings = [{each.node for each in info.ring if each.synchronised} for info in infos]
            return rings == [set(others)] * len(queues)

        await until(are_elsewhere, f"no replica is on {node}", within_s=30)


@scenario(deadline_s=90, queue="", nodes=("a", "b", "c", "d"))
async def test_a_node_is_evacuated(cluster: Cluster) -> None:
    """Under load, with its master and a mirror of other queues. It can be taken away then, and
    when it is back it gets nothing until it is revived."""
    queues = ["q", *(f"q{number}" for number in range(6))]
    await cluster.declare("q")
    await cluster.wait_synchronised("q", 3)
    async with (
        cluster.publishing("q") as load,
        cluster.consuming("q") as eager,
        cluster.client() as client,
    ):
        for name in queues[1:]:
            await client.declare_queue(name)
            async with client.publisher(name) as publisher:
                await publisher.publish_batch([b"%d" % at for at in range(100)])
        node = await cluster.master_of("q")
        said = await ringmq_succeeded(
            "node", "drain", node, "--evacuate", "-s", ",".join(cluster.seeds)
        )
        assert said == f"node {node}: evacuated\n"
        # That is true when it is said: nothing waits for the node any more.
        for name in queues:
            assert node not in {each.node for each in (await client.queue(name)).ring}
        await cluster.stop(node)
        await none_has_a_replica_on(cluster, node, queues)
        await load.confirms(100)
        await cluster.start(node)
        await client.declare_queue("later")
        assert node not in {each.node for each in (await client.queue("later")).ring}
        await client.operator.revive(node)
        await client.operator.set_policy(Policy("back", "^q$", mirrors=Mirrors(nodes=(node,))))

        async def is_back() -> bool:
            ring = (await client.queue("q")).ring
            return [(each.node, each.synchronised) for each in ring] == [(node, True)]

        await until(is_back, f"q is on {node}", within_s=30)
        await load.confirms(100)
    assert load.errors == []
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)
    for name in queues[1:]:
        assert (await cluster.info(name)).messages_ready == 100


@scenario(deadline_s=90, queue="", nodes=("a", "b", "c", "d"))
async def test_a_node_that_is_evacuated_dies_meanwhile(cluster: Cluster) -> None:
    """The replica that takes its place isn't synchronised yet. What was about to move goes on
    moving: at once, and not when a dead node's replicas are replaced."""
    await cluster.declare("q")
    await cluster.wait_synchronised("q", 3)
    async with cluster.publishing("q") as load, cluster.client() as client:
        await load.confirms(2000)
        node = await cluster.master_of("q")
        await client.operator.set_policy(Policy("slow", "^q$", sync_rate_bytes_max=50_000))
        await client.operator.drain(node, evacuate=True)

        async def has_joiner() -> bool:
            ring = (await client.queue("q")).ring
            return [each.synchronised for each in ring] == [True, True, True, False]

        await until(has_joiner, "a replica joins", within_s=20)
        cluster.kill(node)
        await load.confirms(100)
        await client.operator.delete_policy("slow")
        await none_has_a_replica_on(cluster, node, ["q"])
        await load.confirms(100)
    assert load.errors == []
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=90, replace_after_s=3600)
async def test_a_node_that_is_lost_is_forgotten(cluster: Cluster) -> None:
    """All three stop in turn, and the last one's machine is lost with its disk. The queue waits for
    it; with it forgotten it goes on from the replica that has everything."""
    async with cluster.publishing("q", total=200) as load:
        await load.finishes(within_s=20)
    first, second, last = [each.node for each in (await cluster.wait_synchronised("q")).ring]
    for name in (first, second, last):
        await cluster.stop(name)
    await cluster.start(first, second)
    async with cluster.client(second) as client:
        with pytest.raises(ringmq.RingMQError):
            await client.queue("q", deadline_s=4.0)
        await client.operator.forget(last)
        info = await cluster.wait_synchronised("q", 2)
        assert (info.replicas_wanted, info.min_insync) == (2, 2)
        assert {each.node for each in info.ring} == {first, second}
    (await cluster.drained("q")).judge(load)
