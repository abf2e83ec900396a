"""Who may call what nodes call: those that have a token of the cluster's secret."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from google.protobuf.message import Message
from loops import run
from node.tests.broker.test_deleting import with_node

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import ring_pb2 as ring
from ringmq_gm.registry.base import Delete, Registry
from ringmq_gm.registry.url import open_registry
from ringmq_node.config import ConfigError, NodeConfig
from ringmq_node.doors.grpc.node_key import NodeKey
from ringmq_node.errors import StartError
from ringmq_node.identity import SECRET_KEY, cluster_secret
from ringmq_node.node import Node
from ringmq_wire import CallStream, Metadata, RpcError, WireChannel
from ringmq_wire.transport import WireProtocol

KEY = NodeKey(b"secret of the cluster", "ä")
OTHER = NodeKey(b"secret of another one", "ä")
RELAYED: Metadata = (("ringmq-relayed", "1"),)
PUBLISH = "/ringmq.v1.Broker/Publish"
FETCH = "/ringmq.v1.Ring/FetchState"


@pytest.mark.parametrize(
    ("metadata", "path", "said"),
    [
        ((), PUBLISH, ""),
        (KEY.metadata, PUBLISH, ""),
        (KEY.metadata, FETCH, ""),
        ((*KEY.metadata, *RELAYED), PUBLISH, ""),
        (NodeKey(b"secret of the cluster", "b").metadata, FETCH, ""),
        ((), FETCH, "/ringmq.v1.Ring/FetchState is for nodes"),
        (RELAYED, PUBLISH, "only a node relays calls"),
        (OTHER.metadata, PUBLISH, "not made with this cluster's secret"),
        ((*KEY.metadata, *OTHER.metadata), PUBLISH, "not made with this cluster's secret"),
        ((("ringmq-node", b"\xff"),), PUBLISH, "not made with this cluster's secret"),
        ((("ringmq-node", "\u00e9"),), PUBLISH, "not made with this cluster's secret"),
        ((("ringmq-node", ""),), PUBLISH, "not made with this cluster's secret"),
    ],
)
def test_a_token_is_of_the_clusters_secret(metadata: Metadata, path: str, said: str) -> None:
    refusal = KEY.refusal(metadata, path)
    assert said in (refusal.message if refusal else "")
    assert (refusal is None) == (not said)


async def refused(channel: WireChannel, path: str, request: Message, metadata: Metadata) -> str:
    stream = await channel.stream(path, metadata=metadata)
    await stream.write(request.SerializeToString())
    with pytest.raises(RpcError) as caught:
        await drain(stream)
    return caught.value.status.message


async def drain(stream: CallStream) -> None:
    while await stream.read() is not None:
        continue


def test_a_client_can_not_pass_for_a_node(tmp_path: Path) -> None:
    opening = broker.PublishRequest(open=broker.PublishOpen(queue="q"))
    with_gaps = broker.PublishOpen(queue="q", producer_id=b"p", with_gaps=True)

    async def work(node: Node, client: ringmq.Client) -> None:
        channel = WireChannel(node.address)
        try:
            no_node = "the caller is no node of this cluster"
            for metadata in (RELAYED, OTHER.metadata, (*OTHER.metadata, *RELAYED)):
                assert no_node in await refused(channel, PUBLISH, opening, metadata)
            assert no_node in await refused(channel, FETCH, ring.FetchStateRequest(), ())
            assert no_node in await refused(channel, "/ringmq.v1.Ring/Link", opening, ())
            gaps = broker.PublishRequest(open=with_gaps)
            assert "only nodes publish with gaps" in await refused(channel, PUBLISH, gaps, ())
            stream = await channel.stream(PUBLISH)
            await stream.write(opening.SerializeToString())
            await stream.read()
            batch = broker.PublishBatch(first_sequence=1, bodies=[b"x"], message_id=bytes(16))
            await stream.write(broker.PublishRequest(batch=batch).SerializeToString())
            answer = broker.PublishResponse.FromString(await stream.read() or b"")
            assert "only nodes give ids to bodies" in answer.rejected.message
            batch = broker.PublishBatch(
                first_sequence=1, bodies=[b"x"], encoded_properties=[b"no properties"]
            )
            await stream.write(broker.PublishRequest(batch=batch).SerializeToString())
            answer = broker.PublishResponse.FromString(await stream.read() or b"")
            assert "only nodes encode properties" in answer.rejected.message
            stream.cancel()
            # The node itself may.
            node_says = node.channels.to(node.address)
            call = await node_says.stream(PUBLISH)
            await call.write(gaps.SerializeToString())
            assert broker.PublishResponse.FromString(await call.read() or b"").HasField("opened")
            await call.write(broker.PublishRequest(batch=batch).SerializeToString())
            answer = broker.PublishResponse.FromString(await call.read() or b"")
            assert "these bytes are no Properties" in answer.rejected.message
            call.cancel()
        finally:
            await channel.close()

    with_node(tmp_path, work)


def test_both_ends_give_up_a_nodes_connection_and_not_a_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay's connection to the master, which brought nothing for 7 s and more in a network that
    came and went (chaos seed 2729, round 39)."""
    made: list[WireProtocol] = []
    original = WireProtocol.connection_made

    def connection_made(self: WireProtocol, transport: asyncio.BaseTransport) -> None:
        original(self, transport)
        made.append(self)

    async def limits_ms(channel: WireChannel) -> list[int]:
        made.clear()
        call = await channel.stream(PUBLISH)
        await call.write(
            broker.PublishRequest(open=broker.PublishOpen(queue="q")).SerializeToString()
        )
        await call.read()
        call.cancel()
        assert len(made) == 2
        sockets = [each.tcp.socket for each in made if each.tcp is not None]
        return [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in sockets]

    async def work(node: Node, client: ringmq.Client) -> None:
        monkeypatch.setattr(WireProtocol, "connection_made", connection_made)
        assert await limits_ms(node.channels.to(node.address)) == [1000, 1000]
        channel = WireChannel(node.address)
        assert await limits_ms(channel) == [0, 0]
        await channel.close()

    with_node(tmp_path, work)


def test_the_first_node_makes_the_secret_or_its_operator_gives_one(tmp_path: Path) -> None:
    generated = NodeConfig("a", "sqlite:///unused", "data")
    given = NodeConfig("a", "sqlite:///unused", "data", cluster_secret="a secret of ours")
    another = NodeConfig("a", "sqlite:///unused", "data", cluster_secret="another of theirs")

    async def judge(registry: Registry) -> None:
        found = await asyncio.gather(*[cluster_secret(registry, generated) for _ in range(3)])
        assert len(set(found)) == 1
        assert len(found[0]) == 64
        with pytest.raises(StartError, match="not that of the other nodes"):
            await cluster_secret(registry, given)
        await registry.commit([], [Delete(SECRET_KEY)])
        assert await cluster_secret(registry, given) == b"a secret of ours"
        entry = await registry.get(SECRET_KEY)
        assert entry is not None
        assert b"ours" not in entry.value
        assert await cluster_secret(registry, given) == b"a secret of ours"
        with pytest.raises(StartError, match="not that of the other nodes"):
            await cluster_secret(registry, another)
        with pytest.raises(StartError, match="missing"):
            await cluster_secret(registry, generated)

    async def main() -> None:
        registry = open_registry(f"sqlite:///{tmp_path / 'registry.db'}")
        try:
            await judge(registry)
        finally:
            await registry.close()

    run(main())
    with pytest.raises(ConfigError, match="cluster_secret: shorter than 16"):
        NodeConfig("a", "sqlite:///unused", "data", cluster_secret="short")
    assert "ours" not in repr(given)
