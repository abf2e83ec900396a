"""Dead letters between queues whose masters are on two nodes, and die."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from nemesis import Cluster, scenario
from waiting import until

import ringmq
from ringmq import Overflow, QueueRules
from ringmq_node.queue import backlog

TO_DEAD = QueueRules(dead_letter_exchange="", dead_letter_routing_key="dead")
# Other ways to leave; their letters go to the same queue, through an exchange.
LEAVING = {
    "brief": QueueRules(message_ttl_ms=0, dead_letter_exchange="letters"),
    "short": QueueRules(max_length=10, dead_letter_exchange="letters"),
    "full": QueueRules(
        max_length=10, overflow=Overflow.REJECT_PUBLISH_DLX, dead_letter_exchange="letters"
    ),
}
# What stays in each queue.
KEEPS = {"work": 0, "brief": 0, "short": 10, "full": 10}
LETTERS_MAX = backlog.LETTERS_MESSAGES_MAX
DEAD_LETTERS = ringmq.BlockReason.DEAD_LETTERS
REASONS = {"work": "rejected", "brief": "expired", "short": "maxlen", "full": "maxlen"}


async def with_masters(cluster: Cluster, **masters: str) -> None:
    for queue, node in masters.items():
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != node:
            await cluster.promote(queue, node)


async def letters_have_left(client: ringmq.Client) -> None:
    """Also those of consumers; each queue has what it keeps."""

    async def all_gone() -> bool:
        infos = [await client.queue(source) for source in KEEPS]
        return all(
            info.messages_ready == KEEPS[info.queue]
            and not info.messages_unacknowledged
            and not info.messages_dead_lettering
            for info in infos
        )

    await until(all_gone, "letters have left", within_s=60.0)


async def letters_in(client: ringmq.Client, queue: str) -> list[ringmq.Message]:
    """All of them, taken out."""
    found: list[ringmq.Message] = []
    # What has just been enqueued is visible a trip later.
    while (await client.queue(queue)).messages_ready:
        found += await client.get_messages(queue, 1000, remove=True)
    return found


@scenario(deadline_s=150, queue="")
async def test_letters_arrive_once_whoever_dies(cluster: Cluster) -> None:
    """Rejected, expired and dropped: the master of their queues dies while a consumer rejects, then
    the target's while letters arrive. Each is in the dead-letter queue once, and none is lost."""
    await cluster.declare("dead")
    await cluster.declare("work", rules=TO_DEAD)
    total, others = 600, 200
    async with cluster.client(deadline_s=90) as client, client.publisher("work") as publisher:
        await client.topology.declare_exchange("letters", ringmq.ExchangeType.FANOUT, internal=True)
        await client.topology.bind("letters", "dead")
        for queue, rules in LEAVING.items():
            await cluster.declare(queue, rules=rules)
        await with_masters(cluster, work="a", dead="b", brief="a", short="a", full="c")
        await publisher.publish_batch([b"work %d" % number for number in range(total)])
        for queue in LEAVING:
            async with client.publisher(queue) as other:
                name = queue.encode()
                with suppress(ringmq.QueueFullError):
                    await other.publish_batch([b"%s %d" % (name, n) for n in range(others)])

        async def reject(count: int) -> None:
            """So many of those that are left, or all."""
            async with client.consumer("work", prefetch=40) as consumer:
                while count > 0:
                    batch = await consumer.next_batch(timeout_s=1.0)
                    if batch is None:
                        return
                    await consumer.nack(batch, requeue=False)
                    count -= len(batch)

        await reject(total // 3)
        cluster.kill("a")
        await reject(total // 3)
        await cluster.restart("a")
        for queue in ("work", "dead"):
            await cluster.wait_synchronised(queue)
        cluster.kill("b")

        async def is_drained() -> bool:
            await reject(total)
            info = await client.queue("work")
            return not (info.messages_ready or info.messages_unacknowledged)

        # Also of what a consumer had whose settle was lost.
        await until(is_drained, "all are rejected", within_s=60.0)
        await letters_have_left(client)
        letters = await letters_in(client, "dead")
        await cluster.start("b")
        for queue in ("dead", *KEEPS):
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)
        assert (await client.queue("dead")).messages_ready == 0
    expected = {b"work %d" % n for n in range(total)} | {b"brief %d" % n for n in range(others)}
    # The newest stay, and the first.
    expected |= {b"short %d" % n for n in range(others - 10)}
    expected |= {b"full %d" % n for n in range(10, others)}
    assert Counter(letter.body for letter in letters) == Counter(expected)
    for letter in letters:
        [death] = letter.properties.deaths
        queue = letter.body.split()[0].decode()
        assert (death.reason, death.queue, death.count) == (REASONS[queue], queue, 1)


async def reject(client: ringmq.Client, count: int) -> None:
    """So many messages of the queue `work`."""
    async with client.consumer("work", prefetch=count) as consumer:
        while count > 0:
            batch = await consumer.next_batch(timeout_s=20.0)
            assert batch is not None, count
            if await consumer.nack(batch, requeue=False, wait=True):
                count -= len(batch)


async def every_node_dies(cluster: Cluster, *, durable: bool) -> None:
    """When these queues have let go of their letters, only the dead-letter queue has them, which is
    durable. All nodes are killed then, and it has those of all persistent messages. Those of one
    queue leave from two nodes, which have them from the publisher and from the ring."""
    await cluster.declare("dead")
    await cluster.declare("work", rules=TO_DEAD, durable=durable)
    count = 30
    async with cluster.client(deadline_s=60) as client:
        await client.topology.declare_exchange("letters", ringmq.ExchangeType.FANOUT, internal=True)
        await client.topology.bind("letters", "dead")
        for queue, rules in LEAVING.items():
            await cluster.declare(queue, rules=rules, durable=durable)
        await with_masters(cluster, work="a", dead="b", brief="a", short="b", full="c")
        for queue in KEEPS:
            bodies = [b"%s %d" % (queue.encode(), number) for number in range(count)]
            async with client.publisher(queue) as publisher:
                with suppress(ringmq.QueueFullError):
                    await publisher.publish_batch(bodies)
                if queue in ("work", "brief"):
                    await publisher.publish_batch([b"transient"] * count, transient=True)
        cluster.kill("a")
        await reject(client, count // 2)
        await cluster.start("a")
        await with_masters(cluster, work="a")
        await reject(client, 2 * count - count // 2)
        await letters_have_left(client)
        assert (await client.queue("dead")).messages_ready == 6 * count - 20
        cluster.kill(*cluster.nodes)
        await cluster.start()
        await cluster.wait_synchronised("dead")
        letters = await letters_in(client, "dead")
    expected = {b"work %d" % n for n in range(count)} | {b"brief %d" % n for n in range(count)}
    expected |= {b"short %d" % n for n in range(count - 10)}
    expected |= {b"full %d" % n for n in range(10, count)}
    assert Counter(letter.body for letter in letters) == Counter(expected)
    found = {(each.body.split()[0].decode(), each.properties.deaths[0].reason) for each in letters}
    assert found == {*REASONS.items()}


@scenario(deadline_s=90, queue="")
async def test_letters_that_have_left_outlive_every_node(cluster: Cluster) -> None:
    await every_node_dies(cluster, durable=True)


@scenario(deadline_s=90, queue="")
async def test_persistent_letters_of_queues_that_are_not_durable_do_so_too(
    cluster: Cluster,
) -> None:
    """What a message's publisher has asked for holds in each queue that it comes to."""
    await every_node_dies(cluster, durable=False)


@scenario(deadline_s=60, queue="")
async def test_letters_keep_their_keys_and_that_of_their_queue(cluster: Cluster) -> None:
    """Without a key of the rules: a message that was published to the queue itself has the queue's
    name, as in RabbitMQ, and those with further keys keep them; also when the next master sends.
    Their consumers are told the same before."""
    await cluster.declare("work", rules=QueueRules(dead_letter_exchange="letters"))
    wanted = {b"itself": ("work",), b"hidden": ("work",), b"told": ("none", "more", "work")}
    async with cluster.client(deadline_s=40) as client:
        await client.topology.declare_exchange("letters", ringmq.ExchangeType.DIRECT)
        for key, queue in {"work": "direct", "more": "further"}.items():
            await cluster.declare(queue)
            await client.topology.bind("letters", queue, key)
        await with_masters(cluster, work="a", direct="b", further="b")
        async with (
            client.publisher("work") as publisher,
            client.publisher(exchange="") as routed,
            client.consumer("work") as consumer,
        ):
            for is_killed in (False, True):
                await publisher.publish(b"itself", priority=3)
                await routed.publish(b"hidden", routing_key="work", bcc=["more"])
                await routed.publish(b"told", routing_key="none", cc=["more", "work"])
                if is_killed:
                    cluster.kill("a")
                rejected: set[bytes] = set()
                while len(rejected) < 3:
                    batch = await consumer.next_batch(timeout_s=20.0)
                    assert batch is not None, rejected
                    for message in batch:
                        key = wanted[message.body][0]
                        assert (message.properties.exchange, message.properties.routing_key) == (
                            "",
                            key,
                        )
                    if await consumer.nack(batch, requeue=False, wait=True):
                        rejected.update(batch.bodies)
        for queue, bodies in (("direct", [*wanted]), ("further", [b"told"])):

            async def all_there(queue: str = queue, count: int = 2 * len(bodies)) -> bool:
                return (await client.queue(queue)).messages_ready == count

            await until(all_there, f"letters in {queue}", within_s=30.0)
            for letter in await client.get_messages(queue, 100):
                found = letter.properties
                keys = wanted[letter.body]
                assert [each.routing_keys for each in found.deaths] == [keys]
                assert (found.exchange, found.routing_key, found.cc) == (
                    "letters",
                    keys[0],
                    keys[1:],
                )
        await cluster.start("a")
        for queue in ("work", "direct", "further"):
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)


@scenario(deadline_s=120, queue="")
async def test_a_target_that_is_down_holds_publishers_and_loses_nothing(cluster: Cluster) -> None:
    """The node of the target is dead: what the queue drops waits, up to its bound, and then its
    publisher does, also at the next master. All letters arrive when the node is back."""
    async with cluster.client("c") as client:
        await client.declare_queue(
            "dead", replicas=1, min_insync=1, master_locator=ringmq.MasterLocator.CLIENT_LOCAL
        )
    rules = QueueRules(max_length=10, dead_letter_exchange="", dead_letter_routing_key="dead")
    told: list[tuple[ringmq.BlockReason, ...]] = []
    async with cluster.client("a", "b", deadline_s=90) as client:
        await cluster.declare("short", rules=rules)
        await with_masters(cluster, short="a")
        cluster.kill("c")
        async with (
            client.publisher("short", on_blocked=told.append, window_messages=1000) as publisher,
            client.publisher(exchange="") as routed,
        ):
            total = LETTERS_MAX + 8000
            sent = asyncio.ensure_future(
                publisher.publish_batch([b"%d" % number for number in range(total)])
            )
            await until(lambda: (DEAD_LETTERS,) in told, "told why", within_s=60.0)
            # Less than its session takes: the queue's master alone holds them.
            sent_routed = asyncio.ensure_future(
                routed.publish_batch([b"routed"] * 100, routing_key="short")
            )

            def all_are_held() -> bool:
                held = (DEAD_LETTERS,)
                return publisher.blocked_by == held and routed.blocked_by == held

            await until(all_are_held, "the routed one is told why", within_s=60.0)
            cluster.kill("a")
            told.clear()
            await cluster.start("a")
            await until(lambda: (DEAD_LETTERS,) in told, "told why again", within_s=60.0)
            # If the node that routes has lived on, it has nothing new to tell its client.
            await until(all_are_held, "the routed one, too", within_s=60.0)
            assert not sent.done()
            assert not sent_routed.done()
            waiting = (await client.queue("short")).messages_dead_lettering
            assert LETTERS_MAX <= waiting <= total - 2000
            await cluster.start("c")
            await asyncio.gather(sent, sent_routed)

        async def all_gone() -> bool:
            return not (await client.queue("short")).messages_dead_lettering

        await until(all_gone, "letters have left", within_s=60.0)
        assert (await client.queue("dead")).messages_ready == total + 100 - 10
        assert (await client.queue("short")).dead_letters_dropped_total == 0
        await cluster.wait_synchronised("short")
        await cluster.wait_equal("short")


@scenario(deadline_s=120, queue="")
async def test_letters_that_find_their_target_full_go_on_from_there_once(cluster: Cluster) -> None:
    """The target refuses, and dead-letters what it refuses. The masters of both queues die."""
    goes_on = QueueRules(
        max_length=10,
        overflow=Overflow.REJECT_PUBLISH_DLX,
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    to_full = QueueRules(dead_letter_exchange="", dead_letter_routing_key="full")
    total = 300
    async with cluster.client(deadline_s=90) as client:
        await cluster.declare("dead")
        await cluster.declare("full", rules=goes_on)
        await cluster.declare("work", rules=to_full)
        await with_masters(cluster, work="a", full="b", dead="c")
        async with client.publisher("work") as publisher:
            await publisher.publish_batch([b"%d" % number for number in range(total)])
        await reject(client, total // 3)
        cluster.kill("b")
        await reject(client, total // 3)
        await cluster.start("b")
        await with_masters(cluster, full="b")
        cluster.kill("a")
        await reject(client, total // 3)
        await cluster.start("a")

        async def all_have_arrived() -> bool:
            infos = [await client.queue(queue) for queue in ("work", "full")]
            waiting = sum(info.messages_dead_lettering for info in infos)
            return not waiting and (await client.queue("dead")).messages_ready >= total - 10

        await until(all_have_arrived, "letters have gone on", within_s=60.0)
        letters = await letters_in(client, "dead")
        kept = await client.get_messages("full", 100)
        for queue in ("dead", "full", "work"):
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)
    assert sorted(int(each.body) for each in (*letters, *kept)) == [*range(total)]
    assert len(kept) == 10
    ways = {tuple((d.reason, d.queue, d.count) for d in each.properties.deaths) for each in letters}
    assert ways == {(("maxlen", "full", 1), ("rejected", "work", 1))}


@scenario(deadline_s=90, queue="")
async def test_letters_for_a_target_that_is_down_follow_a_policy_to_another(
    cluster: Cluster,
) -> None:
    """More of them than may be under way."""
    total = 1500

    def to(target: str) -> ringmq.Policy:
        rules = QueueRules(dead_letter_exchange="", dead_letter_routing_key=target)
        return ringmq.Policy("letters", "^work$", rules=rules)

    async with cluster.client("c") as client:
        await client.declare_queue(
            "dead", replicas=1, min_insync=1, master_locator=ringmq.MasterLocator.CLIENT_LOCAL
        )
    async with cluster.client("a", "b", deadline_s=60) as client:
        await client.operator.set_policy(to("dead"))
        await cluster.declare("work")
        await cluster.declare("spare")
        await with_masters(cluster, work="a", spare="b")
        async with client.publisher("work") as publisher:
            await publisher.publish_batch([b"%d" % number for number in range(total)])
        cluster.kill("c")
        await reject(client, total)
        assert (await client.queue("work")).messages_dead_lettering == total
        await client.operator.set_policy(to("spare"))

        async def all_there() -> bool:
            left = (await client.queue("work")).messages_dead_lettering
            return not left and (await client.queue("spare")).messages_ready == total

        await until(all_there, "letters have gone elsewhere", within_s=30.0)
        await cluster.start("c")
        assert (await client.queue("work")).dead_letters_dropped_total == 0
        await cluster.wait_synchronised("work")
        await cluster.wait_equal("work")


ROUNDS = 3
CLOSES_A_CYCLE = "they would go round for ever through 'mill'"


async def declare_circles(client: ringmq.Client) -> None:
    """Two of them: messages go round by themselves, or a consumer is to reject each on the way."""

    def to(queue: str, ttl_ms: int | None) -> QueueRules:
        return QueueRules(
            message_ttl_ms=ttl_ms, dead_letter_exchange="", dead_letter_routing_key=queue
        )

    await client.declare_queue("mill", rules=to("stream", 50))
    await client.declare_queue("stream", rules=to("mill", 50))
    await client.declare_queue("tray", rules=to("desk", 50))
    await client.declare_queue("desk", rules=to("tray", None))


async def work_at_the_desk(client: ringmq.Client, done: dict[bytes, ringmq.Message]) -> None:
    """Rejects each message until it has been here `ROUNDS` times."""
    async with client.consumer("desk", prefetch=20) as consumer:
        while True:
            batch = await consumer.next_batch()
            assert batch is not None
            for message in batch:
                deaths = message.properties.deaths
                rejected = sum(each.count for each in deaths if each.reason == "rejected")
                if rejected < ROUNDS:
                    await consumer.nack(message, requeue=False)
                else:
                    done.setdefault(message.body, message)
                    await consumer.ack(message)


@scenario(deadline_s=90, queue="")
async def test_cycles_end_unless_somebody_rejects_whoever_dies(cluster: Cluster) -> None:
    """A message that only expires comes to each queue of its circle once, and is dropped. One that
    is rejected on the way goes on. The masters of the second queues are killed half way."""
    count = 120
    done: dict[bytes, ringmq.Message] = {}
    async with cluster.client(deadline_s=60) as client:
        await declare_circles(client)
        await with_masters(cluster, mill="a", tray="a", stream="b", desk="b")
        worker = asyncio.ensure_future(work_at_the_desk(client, done))

        async def publish(first: int, last: int) -> None:
            for queue in ("mill", "tray"):
                async with client.publisher(queue) as publisher:
                    await publisher.publish_batch([b"%d" % n for n in range(first, last)])

        async def are_empty(*queues: str) -> bool:
            infos = [await client.queue(queue) for queue in queues]
            return not any(
                info.messages_ready or info.messages_unacknowledged or info.messages_dead_lettering
                for info in infos
            )

        await publish(0, count // 2)
        await until(lambda: are_empty("mill", "stream"), "these circles have ended")
        assert (await client.queue("stream")).dead_letters_dropped_total == count // 2
        assert CLOSES_A_CYCLE in cluster.log("b", 1000)
        await publish(count // 2, count)
        cluster.kill("b")

        def all_have_gone_round() -> bool:
            if worker.done():
                worker.result()
            return len(done) == count

        await until(all_have_gone_round, "all have gone round", within_s=30.0)
        circles = ("mill", "stream", "tray", "desk")
        await until(lambda: are_empty(*circles), "all circles have ended")
        worker.cancel()
        # None has come back: its master has lived on.
        assert (await client.queue("mill")).published_total == count
        await cluster.start("b")
        for queue in circles:
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)
    for message in done.values():
        deaths = {(each.reason, each.queue): each.count for each in message.properties.deaths}
        assert deaths == {("expired", "tray"): ROUNDS + 1, ("rejected", "desk"): ROUNDS}
