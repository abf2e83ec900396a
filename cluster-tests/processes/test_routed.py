"""Publishing through exchanges: to queues whose masters are on three nodes, while nodes die."""

from __future__ import annotations

import asyncio
from typing import TypedDict

import pytest
from nemesis import Cluster, scenario
from nemesis.wire import RawStream, Refusal

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common


class Wish(TypedDict, total=False):
    exchange: str
    routing_key: str
    cc: list[str]
    bcc: list[str]


QUEUES = ("qa", "qb", "qc")
TOTAL = 600


async def spread(cluster: Cluster, client: ringmq.Client) -> None:
    """Each queue's master is on another node. All are bound for "all", each for its own name."""
    for queue, node in zip(QUEUES, cluster.nodes, strict=True):
        await cluster.declare(queue)
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != node:
            await cluster.promote(queue, node)
    await client.topology.declare_exchange("x", ringmq.ExchangeType.DIRECT)
    for queue in QUEUES:
        await client.topology.bind("x", queue, "all")
        await client.topology.bind("x", queue, queue)


def key_of(number: int) -> str:
    """Runs of messages for one queue, and a fan-out between them: gaps in every queue."""
    return "all" if number % 4 == 0 else QUEUES[number // 4 % 3]


OPENINGS = (
    (broker.PublishOpen(exchange="x", queue="qa", producer_id=b"p"), "BAD_REQUEST", "queue"),
    (broker.PublishOpen(exchange="x", producer_id=b"p" * 65), "BAD_REQUEST", "producer_id"),
    (broker.PublishOpen(queue="qa", with_gaps=True), "ACCESS_REFUSED", "with_gaps"),
    (broker.PublishOpen(exchange="none", producer_id=b"p"), "EXCHANGE_NOT_FOUND", ""),
    (broker.PublishOpen(exchange="x", vhost="none", producer_id=b"p"), "VHOST_NOT_FOUND", ""),
)
BATCHES = (
    (broker.PublishBatch(first_sequence=1), "a batch has 1 to"),
    (broker.PublishBatch(bodies=[b"x"]), "sequences begin with 1"),
    (broker.PublishBatch(first_sequence=1, bodies=[b"x"], routing_key="k" * 256), "routing key"),
    (broker.PublishBatch(first_sequence=1, bodies=[b"x"], cc=["k"] * 100), "at most 100"),
    (broker.PublishBatch(first_sequence=1, bodies=[b"x"], bcc=["k" * 256]), "routing key"),
    (broker.PublishBatch(first_sequence=1, bodies=[b"x"], exchange="a\x1fb"), "no control"),
    (
        broker.PublishBatch(
            first_sequence=1, bodies=[b"x"], properties=[common.Properties(cc=["k"])]
        ),
        "the broker says",
    ),
    (broker.PublishBatch(first_sequence=5, bodies=[b"x"], routing_key="none"), ""),
    (broker.PublishBatch(first_sequence=5, bodies=[b"x"], routing_key="none"), "sequences rise"),
)


async def refuses_what_is_wrong(address: str) -> None:
    for opening, reason, field in OPENINGS:
        async with RawStream(address, "Publish") as stream:
            with pytest.raises(Refusal) as caught:
                await stream.sent(broker.PublishRequest(open=opening))
        assert caught.value.reason == reason, opening
        assert caught.value.metadata.get("field", "") == field, opening
    async with RawStream(address, "Publish") as stream:
        opening = broker.PublishOpen(exchange="x", producer_id=b"p")
        await stream.send(broker.PublishRequest(open=opening))
        assert (await stream.receive()).HasField("opened")
        for batch, said in BATCHES:
            await stream.send(broker.PublishRequest(batch=batch))
            answer = await stream.receive()
            if said:
                assert said in answer.rejected.message, batch
                assert not answer.rejected.retryable
            else:
                assert answer.HasField("confirmed"), answer


@scenario(deadline_s=60, queue="")
async def test_masters_and_the_node_of_the_session_die(cluster: Cluster) -> None:
    """Each confirmed message is in all of its queues once, in order, whoever dies in the middle:
    a master of one of them, then the node that routes."""
    async with cluster.client(deadline_s=40) as client:
        await spread(cluster, client)
        publisher = client.publisher(exchange="x", window_messages=50)
        # Through the node that has bound them: another one may not have heard of it yet.
        await publisher.open()
        at = {address: name for name, address in cluster.addresses.items()}
        routing = at[publisher.node_address]
        master = next(name for name in cluster.nodes if name != routing)
        waiting: list[asyncio.Future[None]] = []
        for number in range(TOTAL):
            if number == TOTAL // 3:
                cluster.kill(master)
            if number == TOTAL // 2:
                await asyncio.gather(*waiting)
                await cluster.restart(master)
                for queue in QUEUES:
                    await cluster.wait_synchronised(queue)
            if number == 2 * TOTAL // 3:
                cluster.kill(routing)
            body, key = b"%d" % number, key_of(number)
            waiting.append(await publisher.submit(body, routing_key=key, mandatory=True))
        await asyncio.gather(*waiting)
        assert publisher.node_address != cluster.addresses[routing]
        with pytest.raises(ringmq.UnroutableError) as caught:
            await publisher.publish_batch([b"x", b"y"], routing_key="nobody", mandatory=True)
        assert caught.value.failed == ((0, 1),)
        await publisher.publish(b"z", routing_key="nobody")
        await publisher.close()
    one, two = cluster.others(routing)
    async with cluster.client(one) as client, cluster.client(two) as other:
        # At once through another node, as an answer goes to a reply queue.
        async with other.publisher(exchange="") as answering:
            await client.declare_queue("replies")
            await answering.publish(b"answer", routing_key="replies", mandatory=True)
        await refuses_what_is_wrong(cluster.addresses[two])
        for queue in QUEUES:
            keys = ("all", queue)
            wanted = [b"%d" % n for n in range(TOTAL) if key_of(n) in keys]
            batch = await client.get_messages(queue, 1000)
            assert batch.bodies == wanted
            assert {(m.properties.exchange, m.properties.routing_key) for m in batch} == {
                ("x", key) for key in keys
            }
    await cluster.start(routing)
    for queue in QUEUES:
        await cluster.wait_synchronised(queue)
        await cluster.wait_equal(queue)


# What a message says, and the queues that it goes to: through two exchanges and by several keys.
WISHES: tuple[tuple[Wish, str], ...] = (
    ({"routing_key": "qa"}, "a"),
    ({"exchange": "y", "routing_key": "any"}, "ab"),
    ({"routing_key": "qb", "cc": ["qa", "nobody"], "bcc": ["qc"]}, "abc"),
    ({"exchange": "", "routing_key": "qa", "bcc": ["qa", "qc"]}, "ac"),
    ({"exchange": "y"}, "ab"),
    ({"routing_key": "all", "cc": ["qa"]}, "abc"),
)


def told(wish: Wish) -> tuple[str, str, tuple[str, ...]]:
    """Exchange and keys, as the consumer has to find them."""
    return wish.get("exchange", "x"), wish.get("routing_key", ""), tuple(wish.get("cc", ()))


@scenario(deadline_s=60, queue="")
async def test_one_order_over_several_exchanges_and_keys_whoever_dies(cluster: Cluster) -> None:
    """As an AMQP channel publishes: each message is in all queues of all its keys once, in the
    order of the channel, when a master and then the node that routes die in the middle."""
    async with cluster.client(deadline_s=40) as client:
        await spread(cluster, client)
        await client.topology.declare_exchange("y", ringmq.ExchangeType.FANOUT)
        for queue in ("qa", "qb"):
            await client.topology.bind("y", queue)
        publisher = client.publisher(exchange="x", window_messages=50)
        await publisher.open()
        at = {address: name for name, address in cluster.addresses.items()}
        routing = at[publisher.node_address]
        # The master of a queue that each exchange leads to.
        master = next(name for name in ("a", "b") if name != routing)
        waiting: list[asyncio.Future[None]] = []
        for number in range(TOTAL):
            if number == TOTAL // 3:
                cluster.kill(master)
            if number == TOTAL // 2:
                await asyncio.gather(*waiting)
                await cluster.restart(master)
                for queue in QUEUES:
                    await cluster.wait_synchronised(queue)
            if number == 2 * TOTAL // 3:
                cluster.kill(routing)
            wish, _ = WISHES[number % len(WISHES)]
            waiting.append(await publisher.submit(b"%d" % number, mandatory=True, **wish))
        await asyncio.gather(*waiting)
        assert publisher.node_address != cluster.addresses[routing]
        with pytest.raises(ringmq.UnroutableError):
            await publisher.publish(b"x", routing_key="nobody", cc=["none"], mandatory=True)
        with pytest.raises(ringmq.ExchangeNotFoundError):
            await publisher.publish(b"x", exchange="none")
        await publisher.close()
        for queue in QUEUES:
            batch = await client.get_messages(queue, 1000)
            numbers = [n for n in range(TOTAL) if queue[1] in WISHES[n % len(WISHES)][1]]
            assert batch.bodies == [b"%d" % number for number in numbers]
            found = [
                (m.properties.exchange, m.properties.routing_key, m.properties.cc) for m in batch
            ]
            assert found == [told(WISHES[number % len(WISHES)][0]) for number in numbers]
    await cluster.start(routing)
    for queue in QUEUES:
        await cluster.wait_synchronised(queue)
        await cluster.wait_equal(queue)


@scenario(deadline_s=90, queue="live")
async def test_a_queue_without_a_master_stops_no_other_queue_of_its_publisher(
    cluster: Cluster,
) -> None:
    """What waits for it is bounded; more is refused, and what was taken arrives in order."""
    async with cluster.client("b") as client:
        await client.declare_queue(
            "dead", replicas=1, master_locator=ringmq.MasterLocator.CLIENT_LOCAL
        )
        assert (await client.locate_queue("dead")).node == "b"
    count = 1100
    async with (
        cluster.client("a") as client,
        client.publisher(exchange="", window_messages=10_000, deadline_s=80) as publisher,
    ):
        cluster.kill("b")
        sent: dict[str, list[asyncio.Future[None]]] = {"dead": [], "live": []}
        for number in range(count):
            for queue, futures in sent.items():
                body = b"%d" % number
                futures.append(publisher.publish_nowait(body, routing_key=queue))
        await asyncio.gather(*sent["live"])
        refused = [number for number, future in enumerate(sent["dead"]) if future.done()]
        assert 0 < len(refused) <= count - 1000, len(refused)
        for number in refused:
            assert isinstance(sent["dead"][number].exception(), ringmq.QueueFullError)
        await cluster.restart("b")
        taken = [number for number in range(count) if number not in refused]
        await asyncio.gather(*[sent["dead"][number] for number in taken])
        await publisher.publish(b"last", routing_key="dead")
        with pytest.raises(ringmq.QueueFullError):
            await publisher.flush()
        got: list[bytes] = []
        while batch := await client.get_messages("dead", 1000, remove=True):
            got += [message.body for message in batch]
        assert got == [*(b"%d" % number for number in taken), b"last"]
    await cluster.wait_synchronised("live")
    await cluster.wait_equal("live")
