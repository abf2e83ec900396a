"""Terms of consumers over a master that is killed: counts, limits, priorities, exclusive and single
active consumers, prefetch, auto-ack, time-outs (rabbitmq.md E.9 requeue, E.15)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of

import ringmq
from ringmq import QueueRules


async def fill(client: ringmq.Client, queue: str, messages: int) -> None:
    async with client.publisher(queue) as publisher:
        await publisher.publish_batch([body_of("p", i, 100) for i in range(messages)])


async def take(consumer: ringmq.Consumer, messages: int) -> list[ringmq.Message]:
    """Exactly so many messages, which stay unsettled."""
    found: list[ringmq.Message] = []
    while len(found) < messages:
        batch = await consumer.next_batch(timeout_s=15.0)
        assert batch is not None, f"{len(found)} of {messages} came"
        found += batch
    assert len(found) == messages
    return found


async def counters(client: ringmq.Client, queue: str) -> tuple[int, int]:
    info = await client.queue(queue)
    return info.messages_ready, info.messages_unacknowledged


@scenario(deadline_s=90, queue="")
async def test_terms_of_consumers_survive_a_killed_master(cluster: Cluster) -> None:
    """Several queues with the same master, so that one failover serves all of them."""
    async with cluster.client() as client:
        plain = {f"{kind}.{name}": QueueRules() for name in CASES for kind in ("well", "killed")}
        queues = await declare(cluster, TERMS | plain)
        await without_a_failover(client)
        await end_cases(client, await begin_cases(client, "well"), redelivered=False)
        for queue in ("q", "limited", "single", "changed"):
            await fill(client, queue, 10)
        await counts_before(client)
        async with (
            client.consumer("q", prefetch=4, exclusive=True) as alone,
            client.consumer("limited", prefetch=2) as limited,
            client.consumer("single", prefetch=3) as active,
            client.consumer("single", prefetch=3) as waiting,
            client.consumer("changed", prefetch=2) as changed,
        ):
            await take(alone, 4)
            with pytest.raises(ringmq.ExclusiveUseError, match="exclusive consumer"):
                async with client.consumer("q"):
                    pass
            assert [m.position for m in await take(limited, 2)] == [2, 3]
            assert [m.position for m in await take(active, 3)] == [0, 1, 2]
            await until(
                lambda: (active.active, waiting.active) == (True, False), "the first is active"
            )
            held = await take(changed, 2)
            await changed.set_prefetch(5)
            held += await take(changed, 3)
            # What is lowered while more is out holds for the next master, too.
            assert await changed.ack(held[0].position, held[2].position, wait=True)
            await changed.set_prefetch(4)
            await until(lambda: changed.prefetch[0] == 4, "the prefetch is lower")
            before_changed = changed.generation
            generations = [each.generation for each in (alone, active, waiting)]
            cases = await begin_cases(client, "killed")
            # Nobody has taken them from the client; the node has sent them all the same.
            for each in cases:
                await until(lambda: has(client, each.queue, (0, 3)), each.queue)  # noqa: B023
            before = [each.generation for each in cases]
            cluster.kill("a")
            await until(
                lambda: all(
                    each.generation > before
                    for each, before in zip((alone, active, waiting), generations, strict=True)
                ),
                "all streams are open again",
            )
            # The master has died: redelivered, and its count is that of before.
            again = await take(alone, 4)
            assert [(m.position, m.redelivered, m.delivery_count) for m in again] == [
                (0, True, 2),
                (1, True, 2),
                (2, True, 0),
                (3, True, 0),
            ]
            with pytest.raises(ringmq.ExclusiveUseError):
                async with client.consumer("q"):
                    pass
            await until(lambda: changed.generation > before_changed, "its stream is open again")
            assert [m.position for m in await take(changed, 4)] == [3, 4, 5, 6]
            await until(lambda: has(client, "changed", (3, 4)), "no more than the prefetch")
            await changed.set_prefetch(6)
            assert [m.position for m in await take(changed, 2)] == [7, 8]
            await at_the_next_master(client)
            await single_goes_on(active, waiting)
            await until(
                lambda: all(each.generation > old for each, old in zip(cases, before, strict=True)),
                "the streams of all cases are open again",
            )
            await end_cases(client, cases, redelivered=True)
        await cluster.start("a")
        for queue in queues:
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)


# Long enough for a consumer to lose its master first, which a busy machine may take a second for.
LATE_MS = 2000


@scenario(deadline_s=60, queue="")
async def test_turns_and_times_at_the_next_master(cluster: Cluster) -> None:
    """Priorities, auto-ack and a time-out: the next master has them from the streams, which are
    opened again with the same terms, and from the queue's rules."""
    async with cluster.client() as client:
        rules = {"turns": QueueRules(), "plain": QueueRules()}
        queues = await declare(cluster, {**rules, "late": QueueRules(consumer_timeout_ms=LATE_MS)})
        async with (
            client.consumer("turns", prefetch=4) as low,
            client.consumer("turns", prefetch=6, priority=9) as high,
            client.consumer("plain", prefetch=3, auto_ack=True) as auto,
            client.consumer("late", prefetch=1) as late,
        ):
            await by_priority(client, low, high)
            await fill(client, "plain", 5)
            await take(auto, 5)
            await until(lambda: is_ready(client, "plain", 0), "acknowledged when sent")
            everyone = (low, high, auto, late)
            before = [each.generation for each in everyone]
            await fill(client, "late", 3)
            assert [m.redelivered for m in await take(late, 1)] == [False]
            cluster.kill("a")
            held = await take(late, 1)
            assert [(m.position, m.redelivered) for m in held] == [(0, True)]
            # The next master counts from its own delivery on, and ends the stream.
            with pytest.raises(ringmq.ConsumerTimeoutError):
                await late.next_batch(timeout_s=20.0)
            await until(lambda: is_ready(client, "late", 3), "what it held is back")
            got = [*await client.get_messages("late", 3, remove=False)]
            assert [m.delivery_count for m in got] == [1, 0, 0]
            await until(
                lambda: all(
                    now.generation > old for now, old in zip(everyone, before, strict=True)
                ),
                "all streams are open again",
            )
            await settle(low, await take(low, 4))
            await settle(high, await take(high, 6))
            await by_priority(client, low, high)
            await fill(client, "plain", 10)
            new, found = {*range(5, 15)}, set[int]()
            while not new <= found:
                batch = await auto.next_batch(timeout_s=15.0)
                assert batch is not None, f"{found} came"
                found |= {message.position for message in batch}
            await until(lambda: is_ready(client, "plain", 0), "acknowledged when sent")
        await cluster.start("a")
        for queue in queues:
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)


async def by_priority(client: ringmq.Client, low: ringmq.Consumer, high: ringmq.Consumer) -> None:
    """Both have room. The high one is given messages as long as it has some, and then the low one;
    so both are full at the end."""
    # One by one: equals would have them in turns.
    for _ in range(6):
        await fill(client, "turns", 1)
    first = await take(high, 6)
    await fill(client, "turns", 4)
    rest = await take(low, 4)
    assert first[-1].position < rest[0].position
    assert await counters(client, "turns") == (0, 10)


async def settle(consumer: ringmq.Consumer, held: list[ringmq.Message]) -> None:
    for message in held:
        assert await consumer.ack(message, wait=True)


TERMS = {
    "q": QueueRules(),
    "plain": QueueRules(),
    "changed": QueueRules(),
    "limited": QueueRules(delivery_limit=1),
    "single": QueueRules(single_active_consumer=True),
    "hasty": QueueRules(consumer_timeout_ms=300),
}


async def declare(cluster: Cluster, rules: dict[str, QueueRules]) -> list[str]:
    """Queues that have the same master, so that one failover serves all of them."""
    for queue, asked in rules.items():
        await cluster.declare(queue, rules=asked)
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != "a":
            await cluster.promote(queue, "a")
    return [*rules]


async def counts_before(client: ringmq.Client) -> None:
    """Positions 0 and 1 of `q` have come back twice, 0 and 1 of `limited` are gone for that.

    Left behind: after a nack they would be here again at once, and be counted twice."""
    for queue in ("q", "limited"):
        for count in range(2):
            async with client.consumer(queue, prefetch=2) as consumer:
                got = await take(consumer, 2)
                assert [(m.position, m.delivery_count) for m in got] == [(0, count), (1, count)]
    await until(lambda: is_ready(client, "q", 10), "requeued")
    await until(lambda: is_ready(client, "limited", 8), "above the delivery limit")


async def is_ready(client: ringmq.Client, queue: str, messages: int) -> bool:
    return await counters(client, queue) == (messages, 0)


@dataclass(frozen=True)
class Case:
    """Three messages are with a consumer; it does something with the first `count` of them."""

    does: str
    count: int
    # Then so many are ready, and unacknowledged.
    counters: tuple[int, int]


# Those of rabbitmq.md E.15 that consumers have, by name. What is requeued comes back at once.
CASES = {
    "subscribe": Case("nothing", 0, (0, 3)),
    "subscribe_and_ack": Case("ack", 1, (0, 2)),
    "subscribe_and_multiple_ack": Case("ack", 3, (0, 0)),
    "subscribe_and_nack": Case("reject", 1, (0, 2)),
    "subscribe_and_multiple_nack": Case("reject", 3, (0, 0)),
    "subscribe_and_requeue_nack": Case("nack", 1, (0, 3)),
    "subscribe_and_requeue_multiple_nack": Case("nack", 3, (0, 3)),
    "consume": Case("close", 0, (3, 0)),
}


async def begin_cases(client: ringmq.Client, kind: str) -> list[ringmq.Consumer]:
    begun: list[ringmq.Consumer] = []
    for name in CASES:
        queue = f"{kind}.{name}"
        await fill(client, queue, 3)
        consumer = client.consumer(queue, prefetch=3)
        await consumer.open()
        begun.append(consumer)
    return begun


async def end_cases(
    client: ringmq.Client, begun: list[ringmq.Consumer], *, redelivered: bool
) -> None:
    for case, consumer in zip(CASES.values(), begun, strict=True):
        got = await take(consumer, 3)
        assert [each.position for each in got] == [0, 1, 2]
        assert [each.redelivered for each in got] == [redelivered] * 3
        last = got[case.count - 1].position
        match case.does:
            case "ack":
                assert await consumer.ack(0, last, wait=True)
            case "reject":
                assert await consumer.reject(0, last, wait=True)
            case "nack":
                assert await consumer.nack(0, last)
                again = await take(consumer, case.count)
                assert [each.position for each in again] == [*range(case.count)]
                assert all(each.redelivered and each.delivery_count == 1 for each in again)
            case "close":
                await consumer.close()
        await until(lambda: has(client, consumer.queue, case.counters), consumer.queue)  # noqa: B023
        await consumer.close()


async def has(client: ringmq.Client, queue: str, wanted: tuple[int, int]) -> bool:
    return await counters(client, queue) == wanted


async def at_the_next_master(client: ringmq.Client) -> None:
    """Its list has the consumers that have opened their streams there, with their terms."""
    (alone,) = await client.operator.consumers("q")
    assert (alone.exclusive, alone.prefetch_messages, alone.messages_unacknowledged) == (True, 4, 4)
    single = await client.operator.consumers("single")
    assert [each.state for each in single] == [
        ringmq.ConsumerState.SINGLE_ACTIVE,
        ringmq.ConsumerState.WAITING,
    ]
    assert [each.prefetch_messages for each in single] == [3, 3]
    (changed,) = await client.operator.consumers("changed")
    assert (changed.prefetch_messages, changed.messages_unacknowledged) == (6, 6)


async def single_goes_on(one: ringmq.Consumer, other: ringmq.Consumer) -> None:
    """After the failover one of the two is active; when it goes, the other one is."""
    await until(lambda: one.active != other.active, "one of them is active")
    active, waiting = (one, other) if one.active else (other, one)
    got = await take(active, 3)
    assert [m.position for m in got] == [0, 1, 2]
    await active.ack(got[0], wait=True)
    await active.close()
    got = await take(waiting, 3)
    assert waiting.active
    # In order; 3 had been on its way to the other one, which had room for it.
    assert [m.position for m in got] == [1, 2, 3]
    assert [m.delivery_count for m in got[:2]] == [1, 1]


async def without_a_failover(client: ringmq.Client) -> None:
    """A prefetch that is changed, rejects, auto-ack, a time-out."""
    await fill(client, "plain", 30)
    async with client.consumer("plain", prefetch=2) as consumer:
        got = await take(consumer, 2)
        await consumer.set_prefetch(5)
        got += await take(consumer, 3)
        await until(lambda: consumer.prefetch[0] == 5, "the prefetch is higher")
        assert await counters(client, "plain") == (25, 5)
        await consumer.reject(got[0].position, got[1].position, wait=True)
        await consumer.set_prefetch(1)
        await until(lambda: consumer.prefetch[0] == 1, "the prefetch is lower")
    await until(lambda: is_ready(client, "plain", 28), "requeued")
    async with client.consumer("plain", auto_ack=True, prefetch=3) as consumer:
        assert len(await take(consumer, 28)) == 28
        with pytest.raises(ringmq.BadRequestError):
            await consumer.ack(29)
    await until(lambda: is_ready(client, "plain", 0), "acknowledged when sent")
    await fill(client, "hasty", 3)
    with pytest.raises(ringmq.ConsumerTimeoutError):
        await hold(client, "hasty")
    await until(lambda: is_ready(client, "hasty", 3), "what it held is back")
    got = [*await client.get_messages("hasty", 3, remove=False)]
    assert [m.delivery_count for m in got] == [1, 0, 0]
    async with (
        client.consumer("plain", prefetch=10) as low,
        client.consumer("plain", prefetch=6, priority=9) as high,
    ):
        await fill(client, "plain", 10)
        assert len(await take(high, 6)) == 6
        assert len(await take(low, 4)) == 4


async def hold(client: ringmq.Client, queue: str) -> None:
    """Takes a message and does nothing with it."""
    async with client.consumer(queue, prefetch=1) as consumer:
        while await consumer.next_batch() is not None:
            pass
