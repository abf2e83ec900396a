"""The answer to a declaration is the master's, whichever node becomes that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of

import ringmq
from ringmq_gm import MemberId
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker, Caller
from ringmq_node.broker.locating import Locator
from ringmq_node.doors.grpc.peers import GrpcPeers
from ringmq_node.model.info import QueueCondition, QueueInfo
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode
from ringmq_node.node import Node


def test_deleted_while_its_master_is_waited_for(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        replica_of(node).mastership = None
        asking = asyncio.create_task(node.broker._wait_info("q"))
        await asyncio.sleep(0)
        await node.broker.delete_by_force("q", Caller())
        with pytest.raises(BrokerError) as caught:
            async with asyncio.timeout(5):
                await asking
        assert caught.value.reason is Reason.QUEUE_NOT_FOUND

    with_node(tmp_path, work)


def test_declared_again_if_it_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transient queue that nobody held, for example."""
    waiting = Broker._wait_info

    async def deleted_first(self: Broker, queue: str) -> QueueInfo:
        monkeypatch.undo()
        await self.delete_by_force(queue, Caller())
        return await waiting(self, queue)

    async def work(node: Node, client: ringmq.Client) -> None:
        first = node.catalogue.record_of("q").id
        monkeypatch.setattr(Broker, "_wait_info", deleted_first)
        declared = await node.broker.declare("q", QueueArguments(), Caller())
        assert declared.created
        assert declared.info.id != first

    with_node(tmp_path, work)


def test_moved_while_its_master_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(self: GrpcPeers, address: str, queue: str, **_: Any) -> QueueInfo:
        assert address == "there"
        return QueueInfo(
            queue=queue,
            id="id",
            replicas_wanted=1,
            min_insync=1,
            mode=QueueMode.DEFAULT,
            durable=True,
            condition=QueueCondition.RUNNING,
            epoch=9,
        )

    async def work(node: Node, client: ringmq.Client) -> None:
        replica_of(node).mastership = None
        asking = asyncio.create_task(node.broker._wait_info("q"))
        await asyncio.sleep(0)
        monkeypatch.setattr(Locator, "master_of", lambda self, name: MemberId("b", 1))
        monkeypatch.setattr(node.cluster, "address_of", lambda member: "there")
        monkeypatch.setattr(GrpcPeers, "queue_info", answer)
        async with asyncio.timeout(5):
            assert (await asking).epoch == 9

    with_node(tmp_path, work)
