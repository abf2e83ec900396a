"""What an AMQP channel needs of the broker's API: a channel on one node, its queues on others.

The channel is a door's: it has delivery tags and consumer tags, and no rule. It uses `Broker` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import running_nodes
from waiting import until

import ringmq
from ringmq_base.ranges import Range
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.node import Node
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run

NAMES = ("a", "b", "c")
CALLER = Caller(10.0)


class TaggedConsumer:
    """A consumer of a channel (`Subscriber`)."""

    def __init__(self, channel: FakeChannel, tag: str) -> None:
        self.channel = channel
        self.tag = tag
        self.subscription: QueueSubscription | None = None
        self.generation = 0
        self.auto_ack = False

    def opened(self, generation: int) -> None:
        self.generation = generation

    def delivered(self, runs: Sequence[Run]) -> None:
        for each in runs:
            for at, body in enumerate(each.block.bodies()):
                self.channel.deliver(self, each.first_position + at, body, each.redelivered)
        if self.auto_ack and self.subscription is not None:
            self.subscription.sent(self.generation, [each.positions for each in runs])

    def settled(self, positions: Sequence[Range]) -> None:
        self.channel.safe += sum(last - first + 1 for first, last in positions)

    def active_changed(self, *, active: bool) -> None:
        self.channel.active.append((self.tag, active))

    def interrupted(self) -> None:
        self.channel.interrupted.append(self.tag)

    def ended(self, error: BrokerError) -> None:
        self.channel.cancelled.append((self.tag, error.reason))


class FakeChannel:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.channel = broker.consuming.channel()
        self.tags = count(1)
        # By delivery tag: whose it is, of which stream, at which position.
        self.unacked: dict[int, tuple[TaggedConsumer, int, int]] = {}
        self.deliveries: list[tuple[str, int, bytes, bool]] = []
        self.cancelled: list[tuple[str, Reason]] = []
        self.interrupted: list[str] = []
        self.active: list[tuple[str, bool]] = []
        self.safe = 0
        self.pullers: dict[str, TaggedConsumer] = {}

    # --- methods of AMQP ---

    async def consume(
        self, queue: str, tag: str, *, no_ack: bool = False, exclusive: bool = False
    ) -> TaggedConsumer:
        consumer = TaggedConsumer(self, tag)
        terms = ConsumerTerms(exclusive=exclusive)
        consumer.auto_ack = no_ack
        consumer.subscription = await self.broker.subscribe(
            self.channel, queue, consumer, CALLER, terms, auto_ack=no_ack
        )
        await consumer.subscription.open(CALLER.deadline_s)
        return consumer

    def qos(self, messages: int) -> None:
        """`basic.qos(global=true)`."""
        self.channel.change_window(messages)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        for consumer, generation, positions in self._take(tag, multiple=multiple):
            assert consumer.subscription is not None
            consumer.subscription.settle(generation, acked=positions)

    def reject(self, tag: int, *, requeue: bool) -> None:
        for consumer, generation, positions in self._take(tag, multiple=False):
            assert consumer.subscription is not None
            if requeue:
                consumer.subscription.settle(generation, requeued=positions)
            else:
                consumer.subscription.settle(generation, rejected=positions)

    async def get(self, queue: str) -> tuple[int, bytes, bool, int] | None:
        """Tag, body, redelivered, and how many are left; None: `get-empty`."""
        puller = self.pullers.get(queue)
        if puller is None:
            puller = self.pullers[queue] = TaggedConsumer(self, "")
            puller.subscription = await self.broker.subscribe(
                self.channel, queue, puller, CALLER, ConsumerTerms(pulls=True)
            )
            await puller.subscription.open(CALLER.deadline_s)
        assert puller.subscription is not None
        got = await puller.subscription.pull()
        if not got.runs:
            return None
        [found] = got.runs
        tag = next(self.tags)
        self.unacked[tag] = puller, puller.generation, found.first_position
        return tag, found.block.bodies()[0], found.redelivered, got.messages_ready

    # --- delivery tags ---

    def deliver(
        self, consumer: TaggedConsumer, position: int, body: bytes, redelivered: bool
    ) -> None:
        tag = next(self.tags)
        if not consumer.auto_ack:
            self.unacked[tag] = consumer, consumer.generation, position
        self.deliveries.append((consumer.tag, tag, body, redelivered))

    def _take(self, tag: int, *, multiple: bool) -> list[tuple[TaggedConsumer, int, list[Range]]]:
        tags = [each for each in self.unacked if each <= tag or not tag] if multiple else [tag]
        found: dict[tuple[TaggedConsumer, int], list[Range]] = {}
        for each in tags:
            consumer, generation, position = self.unacked.pop(each)
            found.setdefault((consumer, generation), []).append((position, position))
        return [(consumer, generation, at) for (consumer, generation), at in found.items()]

    def bodies(self, tag: str) -> list[bytes]:
        return [body for each, _, body, _ in self.deliveries if each == tag]


Story = Callable[[dict[str, Node], ringmq.Client], Awaitable[None]]


def with_nodes(folder: Path, story: Story) -> None:
    """Three nodes in this process, connected as any three; and queue q-b is mastered on b."""

    async def main() -> None:
        async with running_nodes(folder, NAMES) as nodes:
            for name in NAMES:
                async with ringmq.connect(nodes[name].address) as client:
                    locator = ringmq.MasterLocator.CLIENT_LOCAL
                    info = await client.declare_queue(f"q-{name}", master_locator=locator)
                    assert info.master == name
            async with ringmq.connect(nodes["a"].address) as client, asyncio.timeout(60):
                await story(nodes, client)

    run(main())


async def publish(client: ringmq.Client, queue: str, *bodies: bytes) -> None:
    async with client.publisher(queue) as publisher:
        await publisher.publish_batch(list(bodies))


@pytest.mark.slow
def test_messages_are_got_and_settled_by_delivery_tags_over_queues_on_other_nodes(
    tmp_path: Path,
) -> None:
    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        channel = FakeChannel(nodes["a"].broker)
        for queue in ("q-a", "q-b", "q-c"):
            await publish(client, queue, *(f"{queue} {n}".encode() for n in (1, 2, 3)))
        assert await channel.get("q-b") == (1, b"q-b 1", False, 2)
        assert await channel.get("q-c") == (2, b"q-c 1", False, 2)
        assert await channel.get("q-a") == (3, b"q-a 1", False, 2)
        channel.reject(1, requeue=True)
        # Behind what was put back.
        assert await channel.get("q-b") == (4, b"q-b 1", True, 2)
        assert await channel.get("q-b") == (5, b"q-b 2", False, 1)
        # Of all queues, up to this tag.
        channel.ack(4, multiple=True)
        await until(lambda: channel.safe == 3)
        assert list(channel.unacked) == [5]
        channel.channel.close()
        # What wasn't settled is in its place.
        await until_ready(client, "q-b", 2)
        batch = await client.get_messages("q-b", 10)
        assert batch.bodies == [b"q-b 2", b"q-b 3"]

    with_nodes(tmp_path, story)


async def until_ready(client: ringmq.Client, queue: str, messages: int) -> None:
    async def are_ready() -> bool:
        return (await client.queue(queue)).messages_ready == messages

    await until(are_ready, f"{messages} ready in {queue}")


@pytest.mark.slow
def test_a_window_over_queues_on_three_nodes_is_raised_and_lowered_while_it_is_used(
    tmp_path: Path,
) -> None:
    """Celery raises `basic.qos(global=true)` by one for each task that waits for its time."""

    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        channel = FakeChannel(nodes["a"].broker)
        channel.qos(3)
        queues = ("q-a", "q-b", "q-c")
        for queue in queues:
            await publish(client, queue, *(b"%d" % n for n in range(20)))
            await channel.consume(queue, queue)
        await until(lambda: len(channel.unacked) == 3)
        channel.qos(10)
        await until(lambda: len(channel.unacked) == 10)
        channel.qos(4)
        while len(channel.deliveries) < 60:
            most = max(4, len(channel.unacked) - 1)
            channel.ack(next(iter(channel.unacked)))
            await until(lambda: bool(channel.unacked))
            assert len(channel.unacked) <= most
        for queue in queues:
            assert channel.bodies(queue) == [b"%d" % n for n in range(20)]
        channel.ack(0, multiple=True)
        await until(lambda: channel.safe == 60)
        assert channel.channel.unsettled == (0, 0)

    with_nodes(tmp_path, story)


@pytest.mark.slow
def test_a_deleted_queue_cancels_its_consumers_and_no_others(tmp_path: Path) -> None:
    """Nor do they come to the next queue of that name, which is there before they try again."""

    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        channel = FakeChannel(nodes["a"].broker)
        for queue in ("q-a", "q-b", "q-c"):
            await channel.consume(queue, queue)
        for queue in ("q-b", "q-a"):
            await nodes["c"].broker.delete(queue, DeleteConditions(), CALLER)
            await client.declare_queue(queue)
        await until(lambda: len(channel.cancelled) == 2)
        reason = Reason.QUEUE_NOT_FOUND
        assert sorted(channel.cancelled) == [("q-a", reason), ("q-b", reason)]
        await publish(client, "q-c", b"x")
        await until(lambda: channel.bodies("q-c") == [b"x"])
        assert [(await client.queue(queue)).consumers for queue in ("q-a", "q-b")] == [0, 0]

    with_nodes(tmp_path, story)


@pytest.mark.slow
def test_a_master_that_moves_has_what_is_unsettled_delivered_again(tmp_path: Path) -> None:
    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        channel = FakeChannel(nodes["a"].broker)
        consumer = await channel.consume("q-b", "t")
        assert consumer.subscription is not None
        await publish(client, "q-b", b"1", b"2", b"3")
        await until(lambda: len(channel.unacked) == 3)
        channel.ack(1)
        await until(lambda: channel.safe == 1)
        # From another node to a third one, and from there to the channel's own.
        for number, master in enumerate(("c", "a", "b"), 2):
            before = len(channel.deliveries)
            async with asyncio.timeout(20):
                while (await client.queue("q-b")).master != master:
                    # Its replica may be synchronising, after the promotion before.
                    with suppress(BrokerError):
                        await nodes["a"].broker.promote("q-b", master, CALLER)
            await until(lambda before=before: len(channel.deliveries) == before + 2)
            assert channel.interrupted == ["t"] * (number - 1)
            assert consumer.generation == number
            assert [each[2:] for each in channel.deliveries[before:]] == [
                (b"2", True),
                (b"3", True),
            ]
        # Of an older stream: it says nothing of what is held now.
        assert not consumer.subscription.settle(1, acked=[(2, 3)])
        channel.ack(0, multiple=True)
        await until(lambda: channel.safe == 3)
        with pytest.raises(BrokerError) as caught:
            consumer.subscription.settle(consumer.generation, acked=[(2, 2)])
        assert caught.value.reason is Reason.UNKNOWN_DELIVERY

    with_nodes(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["q-a", "q-b"], ids=["here", "there"])
def test_consumers_that_are_refused_or_acknowledge_by_themselves(
    tmp_path: Path, queue: str
) -> None:
    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        broker = nodes["a"].broker
        channel, other = FakeChannel(broker), FakeChannel(nodes["c"].broker)
        mine = broker.orphans.open()
        await broker.declare(
            "mine", QueueArguments(exclusive=True), Caller(5.0, connection=mine.id)
        )
        for name, reason in (
            ("nobody's", Reason.QUEUE_NOT_FOUND),
            ("mine", Reason.QUEUE_LOCKED),
        ):
            with pytest.raises(BrokerError) as caught:
                await channel.consume(name, "t")
            assert caught.value.reason is reason
        await publish(client, queue, *(b"%d" % n for n in range(3000)))
        taker = await channel.consume(queue, "t", no_ack=True, exclusive=True)
        for late in (channel, other):
            with pytest.raises(BrokerError) as caught:
                await late.consume(queue, "late")
            assert caught.value.reason is Reason.EXCLUSIVE_CONSUMER
        # More than a prefetch: they are acknowledged as they are sent.
        await until(lambda: len(channel.deliveries) == 3000)
        await until_ready(client, queue, 0)
        assert taker.subscription is not None
        taker.subscription.close()

        async def is_free() -> bool:
            return not (await client.queue(queue)).consumers

        await until(is_free)
        assert (await client.queue(queue)).messages_unacknowledged == 0
        await other.consume(queue, "late")

    with_nodes(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["q-a", "q-b"], ids=["here", "there"])
def test_a_consumer_that_is_replaced_hears_it_and_does_not_come_back(
    tmp_path: Path, queue: str
) -> None:
    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        channel = FakeChannel(nodes["a"].broker)
        terms = ConsumerTerms(identity=b"the same")
        first, second = TaggedConsumer(channel, "1"), TaggedConsumer(channel, "2")
        for each in (first, second):
            each.subscription = await channel.broker.subscribe(
                channel.channel, queue, each, CALLER, terms
            )
            await each.subscription.open(CALLER.deadline_s)
        await until(lambda: channel.cancelled == [("1", Reason.CONSUMER_REPLACED)])
        assert first.subscription is not None
        await until(lambda: first.subscription is not None and first.subscription.is_over)
        assert (first.generation, second.generation, channel.interrupted) == (1, 1, ["1"])

    with_nodes(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["q-a", "q-b"], ids=["here", "there"])
def test_a_pull_that_is_given_up_leaves_its_message_to_the_next_one(
    tmp_path: Path, queue: str
) -> None:
    async def story(nodes: dict[str, Node], client: ringmq.Client) -> None:
        channel = FakeChannel(nodes["a"].broker)
        assert await channel.get(queue) is None
        subscription = channel.pullers[queue].subscription
        assert subscription is not None
        await publish(client, queue, b"1", b"2")
        for _ in range(3):
            given_up = asyncio.create_task(subscription.pull())
            await asyncio.sleep(0)
            given_up.cancel()
        got = await channel.get(queue)
        assert got is not None
        assert got[1] == b"1"
        got = await channel.get(queue)
        assert got is not None
        assert got[1] == b"2"
        subscription.cancel()
        with pytest.raises(BrokerError):
            await subscription.pull()

    with_nodes(tmp_path, story)
