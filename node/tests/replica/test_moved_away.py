"""A replica that is moved to another node is deleted here, unless it may have the last copy of
confirmed messages, or is still in its ring."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from loops import run
from node.tests.nodes import replica_of, running_nodes
from waiting import until

import ringmq
from ringmq import Mirrors, Policy
from ringmq_base.limits import MIB
from ringmq_gm import Role
from ringmq_gm.registry.base import Put
from ringmq_gm.registry_views import RINGS
from ringmq_node.config import NodeConfig
from ringmq_node.node import Node, make_node


def on(*nodes: str) -> Policy:
    return Policy("p", "q", mirrors=Mirrors(nodes=nodes), min_insync=1)


def synced(node: Node) -> list[str]:
    return [each.node for each in replica_of(node).view.synced]


async def started(config: NodeConfig) -> Node:
    node = await make_node(config)
    await node.start()
    return node


@pytest.mark.may_log("accepted that confirmed messages may be lost")
@pytest.mark.may_log("can't join its ring. The end of its log may hold confirmed messages")
@pytest.mark.may_log("set aside")
def test_a_log_that_could_not_be_set_aside_is_kept_when_its_replica_is_moved_away(
    tmp_path: Path,
) -> None:
    """It waited for room, unsynchronised, and so it was the first replica to go."""

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            running_nodes(tmp_path, ("a", "b", "c"), lease_s=1.0) as nodes,
        ):
            async with ringmq.connect(nodes["a"].address) as client:
                await client.operator.set_policy(on("a", "b"))
                await client.declare_queue("q", master_locator=ringmq.MasterLocator.CLIENT_LOCAL)
                await until(lambda: synced(nodes["a"]) == ["a", "b"])
                await nodes["b"].stop()
                await until(lambda: synced(nodes["a"]) == ["a"])
                async with client.publisher("q") as publisher:
                    for _ in range(10):
                        await publisher.publish(b"confirmed")
            await nodes["a"].stop()
            nodes["b"] = await started(nodes["b"].config)
            async with ringmq.connect(nodes["b"].address) as client:
                await client.promote_mirror("q", "b", accept_loss=True)
                async with client.publisher("q") as publisher:
                    await publisher.publish(b"after")
                nodes["a"] = await started(replace(nodes["a"].config, set_aside_bytes_max=1))
                await until(lambda: len(replica_of(nodes["b"]).view.members) == 2)
                assert len(replica_of(nodes["a"]).store.state.live) == 10
                await client.operator.set_policy(on("b", "c"))
                await until(lambda: not nodes["a"].hosting.replicas, "it has left a")
                await until(
                    lambda: bool(nodes["a"].hosting.leftovers.describe()), "its log is kept"
                )
                (left,) = nodes["a"].hosting.leftovers.describe()
                assert (left.queue, left.messages) == ("q", 10)
                await until(lambda: synced(nodes["b"]) == ["b", "c"])
                # With room, after it was moved back, it sets the end of its log aside and joins.
                await nodes["a"].stop()
                nodes["a"] = await started(replace(nodes["a"].config, set_aside_bytes_max=MIB))
                await client.operator.set_policy(on("a", "b"))
                await until(lambda: "a" in synced(nodes["b"]), "a is back")
                (file,) = nodes["a"].hosting.set_asides.describe()
                assert (file.queue, file.messages, file.messages_missing) == ("q", 10, 0)
                assert nodes["a"].hosting.leftovers.describe() == ()
                # And c, which has nothing that would be missed, keeps nothing.
                await until(lambda: not nodes["c"].store.queue_names(), "it has left c")

    run(main())


class Late:
    """A node whose proposals of views wait for `go`, and whose watch of records for `shown`."""

    def __init__(self, node: Node) -> None:
        self.go, self.shown, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        commit, learn = node.registry.commit, cast(Any, node.catalogue)._learn_change

        async def held(guards: Any, operations: Any, **rest: Any) -> int | None:
            if any(isinstance(each, Put) and each.key.startswith(RINGS) for each in operations):
                self.asked.set()
                await self.go.wait()
            return await commit(guards, operations, **rest)

        async def late(*arguments: Any) -> int:
            await self.shown.wait()
            return cast(int, await learn(*arguments))

        cast(Any, node.registry).commit = held
        cast(Any, node.catalogue)._learn_change = late


def test_a_replica_that_joined_while_it_was_moved_away_leaves_before_it_is_deleted(
    tmp_path: Path,
) -> None:
    """It was deleted, and stayed in the view as a synchronised one. When its queue came back it
    failed at the first op, or would have begun the ring from nothing."""

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            running_nodes(tmp_path, ("a", "b", "c"), lease_s=1.0) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            await client.operator.set_policy(on("a", "b", "c"))
            await client.declare_queue("q", master_locator=ringmq.MasterLocator.CLIENT_LOCAL)
            async with client.publisher("q") as publisher:
                await publisher.publish(b"confirmed")
            a, c = nodes["a"], nodes["c"]
            await until(lambda: len(synced(a)) == 3)
            late = Late(c)
            replica_of(a).ring.remove(c.me)
            await until(lambda: synced(a) == ["a", "b"], "c is out")
            await late.asked.wait()
            await client.operator.set_policy(on("a", "b"))
            await until(lambda: a.catalogue.record_of("q").nodes == ("a", "b"))
            kept, ring = replica_of(c), cast(Any, replica_of(a).ring)
            ring.remove = lambda member: None
            late.go.set()
            await until(lambda: synced(a) == ["a", "b", "c"], "c has joined")
            late.shown.set()
            await until(lambda: kept.record.nodes == ("a", "b"), "c has heard")
            assert c.hosting.replicas[kept.record.id] is kept
            await until(lambda: kept.ring.role is Role.MIRROR, "c knows it")
            del ring.remove
            await until(lambda: not c.store.queue_names(), "it has left c")
            assert c.me not in replica_of(a).view.ids
            await client.operator.set_policy(on("a", "b", "c"))
            await until(lambda: len(synced(a)) == 3, "it is back")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"after")
            await until(lambda: len(replica_of(c).store.state.live) == 2)
            assert not c.hosting.failed

    run(main())
