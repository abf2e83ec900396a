"""What a declare answers with: the master's word, whoever that comes to be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from node.tests.broker.test_deleting import with_node

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_gm import MemberId
from ringmq_node.model.reasons import BrokerError
from ringmq_node.node import Node


def test_deleted_while_it_is_waited_for(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        node.directory.replica_of("q").master = None
        asking = asyncio.create_task(node.queue_info("q"))
        await asyncio.sleep(0)
        await node.directory.delete("q")
        with pytest.raises(BrokerError) as caught:
            async with asyncio.timeout(5):
                await asking
        assert caught.value.reason == common.REASON_QUEUE_NOT_FOUND

    with_node(tmp_path, work)


def test_moved_while_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(data: bytes, **_: Any) -> bytes:
        info = broker.QueueInfo(queue="q", epoch=9)
        return broker.GetQueueResponse(queue=info).SerializeToString()

    async def work(node: Node, client: ringmq.Client) -> None:
        node.directory.replica_of("q").master = None
        asking = asyncio.create_task(node.queue_info("q"))
        await asyncio.sleep(0)
        there = SimpleNamespace(unary_unary=lambda path: answer)
        monkeypatch.setattr(node.directory, "master_of", lambda name: MemberId("b", 1))
        monkeypatch.setattr(node, "address_of", lambda member: "there")
        monkeypatch.setattr(cast(Any, node.channels), "to", lambda address: there)
        async with asyncio.timeout(5):
            assert (await asking).epoch == 9

    with_node(tmp_path, work)
