"""`ListConsumers` of real nodes: by the master, by another node, of a consumer that is relayed; and
what it tells by gRPC is what the broker tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import running_nodes
from waiting import until

import ringmq
from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq_node.doors.grpc.consumer_wire import consumers_from_wire, consumers_to_wire
from ringmq_node.model.consumers import (
    ConsumerInfo,
    ConsumerLabel,
    ConsumerPage,
    ConsumerStanding,
)
from ringmq_node.node import Node
from ringmq_wire import CallStream, WireChannel

INFO = ConsumerInfo(
    number=3,
    label=ConsumerLabel("t", "b", "ipv4:127.0.0.1:7", auto_ack=True),
    standing=ConsumerStanding.WAITING,
    prefetch_messages=5,
    prefetch_bytes=600,
    priority=-3,
    exclusive=True,
    pulls=True,
    is_held=True,
    share=(0, 7),
    messages_unacknowledged=2,
    bytes_unacknowledged=2**40,
)


@pytest.mark.parametrize("standing", ConsumerStanding)
@pytest.mark.parametrize("share", [None, (0, 0), (3, 4)])
def test_a_page_is_the_same_on_the_other_side(
    standing: ConsumerStanding, share: tuple[int, int] | None
) -> None:
    other = ConsumerInfo(4, ConsumerLabel(), standing, 1, 1, 0, False, False, False, share, 0, 0)
    page = ConsumerPage("a", 7, (INFO, replace(INFO, standing=standing, share=share), other), 4)
    data = consumers_to_wire(page).SerializeToString()
    assert consumers_from_wire(admin.ListConsumersResponse.FromString(data)) == page


def test_a_full_page_is_described_in_little_time() -> None:
    page = ConsumerPage("a", 7, (replace(INFO, label=ConsumerLabel("t" * 255)),) * 1000, 4)
    began = time.thread_time()
    data = consumers_to_wire(page).SerializeToString()
    assert time.thread_time() - began < 0.25
    # Below what a client reads at most.
    assert len(data) < 1 << 20


@asynccontextmanager
async def consuming(channel: WireChannel, opening: broker.ConsumeOpen) -> AsyncIterator[CallStream]:
    stream = await channel.stream("/ringmq.v1.Broker/Consume")
    await stream.write(broker.ConsumeRequest(open=opening).SerializeToString())
    assert broker.ConsumeResponse.FromString(await stream.read() or b"").HasField("opened")
    try:
        yield stream
    finally:
        stream.cancel()


async def story(nodes: dict[str, Node]) -> None:
    channels = {name: WireChannel(node.address) for name, node in nodes.items()}
    async with ringmq.connect(nodes["a"].address) as client:
        rules = ringmq.QueueRules(single_active_consumer=True)
        await client.declare_queue("q", replicas=2, rules=rules)
        location = await client.locate_queue("q")
        master, mirror = location.node, "ab".replace(location.node, "")
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"one", b"two", b"three"])
        here = broker.ConsumeOpen(queue="q", prefetch_messages=2, consumer_tag="here")
        there = broker.ConsumeOpen(queue="q", auto_ack=True, priority=4)
        async with consuming(channels[master], here), consuming(channels[mirror], there):
            for name, node in nodes.items():
                async with ringmq.connect(node.address) as asks:
                    one, other = await asks.operator.consumers("q")
                assert (one.consumer_tag, other.consumer_tag) == (
                    "here",
                    f"{master}.{other.number}",
                )
                assert (one.node, other.node) == (master, mirror), name
                assert (one.state, other.state) == (
                    ringmq.ConsumerState.SINGLE_ACTIVE,
                    ringmq.ConsumerState.WAITING,
                )
                assert (one.active, other.active) == (True, False)
                assert (one.ack_required, other.ack_required) == (True, False)
                assert (one.prefetch_messages, one.messages_unacknowledged) == (2, 2)
                assert (other.priority, other.messages_unacknowledged) == (4, 0)
            # The addresses are those under which the connections are listed.
            connections = (await client.operator.connections()).connections
            own = {(each.node, each.peer) for each in connections if not each.relayed}
            assert {(one.node, one.peer), (other.node, other.peer)} <= own
            await a_client_is_its_own_peer(channels[master], master)
        await until(lambda: has_none(client), "they have gone")
    for channel in channels.values():
        await channel.close()


async def a_client_is_its_own_peer(channel: WireChannel, master: str) -> None:
    """Also if it says that its stream is relayed. The list is read one by one."""
    stream = await channel.stream(
        "/ringmq.v1.Broker/Consume", metadata=(("ringmq-relayed-peer", "ipv4:1.2.3.4:5"),)
    )
    opening = broker.ConsumeOpen(queue="q", consumer_tag="liar")
    await stream.write(broker.ConsumeRequest(open=opening).SerializeToString())
    assert await stream.read()
    request = admin.ListConsumersRequest(queue="q", consumers_max=1, after=0)
    path = "/ringmq.v1.Admin/ListConsumers"
    found: list[admin.ConsumerInfo] = []
    while True:
        data = await channel.unary(path, request.SerializeToString(), timeout_s=10.0)
        page = admin.ListConsumersResponse.FromString(data)
        assert page.node == master
        assert page.epoch
        found += page.consumers
        if not page.next:
            break
        request.after = page.next
    assert [each.consumer_tag for each in found if each.node == master] == ["here", "liar"]
    assert "1.2.3.4" not in found[-1].peer
    stream.cancel()


async def has_none(client: ringmq.Client) -> bool:
    return not await client.operator.consumers("q")


@pytest.mark.slow
def test_any_node_tells_the_consumers_of_a_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), running_nodes(tmp_path, "ab") as nodes:
            await story(nodes)

    run(main())
