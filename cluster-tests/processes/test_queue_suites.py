"""Cases of queues in RabbitMQ's suites, on three nodes: in both modes, with nothing in the middle,
the master told to stop, and the master killed (`halves`).

The cases have RabbitMQ's names: `queue_parallel_SUITE`, the queues of `backing_queue_SUITE` and
`lazy_queue_SUITE`. Those that get messages without subscribing are in `test_pulls`, lengths in
`test_length_limits`, dead letters in `test_dead_letters`, compaction in `test_store_compaction`.
"""

from __future__ import annotations

import random

import pytest
from halves import (
    EXPIRED,
    EXPIRING,
    MODES,
    Case,
    Outcomes,
    Stories,
    Story,
    bodies_of,
    expiring_bodies,
    in_memory,
    judge,
    narrowed,
    numbered,
    outcomes_of,
    paged_out,
    publish_sequential_expiries,
    take,
    until_it_ends,
)
from nemesis import until

import ringmq
from ringmq import BrowseSource, QueueMode, QueueRules
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS

LETTERS = "letters"
TO_LETTERS = QueueRules(dead_letter_exchange="", dead_letter_routing_key=LETTERS)
HOUR_MS = 3_600_000

# --- queue_parallel_SUITE ---


async def publish(case: Case) -> None:
    """Also while the master goes: each message is there once, and in its order."""
    count = 0
    async with case.client.publisher(case.queue) as publisher:

        async def publish_more() -> None:
            nonlocal count
            count += 3
            await publisher.publish_batch(numbered(3, count - 3))

        await publish_more()
        await case.counts(3)
        await case.middle(publish_more)
        await publish_more()
    await case.counts(count)
    assert await case.bodies(count) == numbered(count)


async def subscribe(case: Case) -> None:
    """The queue knows its consumer, also the next master."""
    async with case.consumer(prefetch=1, consumer_tag="t"):
        await case.middle()

        async def is_known() -> bool:
            return (await case.client.queue(case.queue)).consumers == 1

        await until(is_known, "its consumer")
        (entry,) = await case.client.operator.consumers(case.queue)
        assert (entry.consumer_tag, entry.state) == ("t", ringmq.ConsumerState.UP)
        assert (entry.prefetch_messages, entry.ack_required, entry.exclusive) == (1, True, False)
    await case.publish(b"nobody is there")
    await case.counts(1)


async def subscribe_with_autoack(case: Case) -> None:
    await case.publish(*numbered(5))
    async with case.consumer(auto_ack=True) as consumer:
        assert bodies_of(await take(consumer, 5)) == numbered(5)
        await case.counts(0)
        await case.middle()
        await case.publish(*numbered(5, 5))
        assert bodies_of(await take(consumer, 5)) == numbered(5, 5)
        (entry,) = await case.client.operator.consumers(case.queue)
        assert not entry.ack_required
    await case.counts(0)


def held_and(name: str, does: str) -> Story:
    """Three messages are with a consumer, which does this with the second; another one is ready."""

    async def story(case: Case) -> None:
        await case.publish(*numbered(4))
        async with case.consumer(prefetch=3) as consumer:
            held = await take(consumer, 3)
            assert bodies_of(held) == numbered(3)
            await case.counts(1, 3)
            await case.middle()
            if case.moves:
                held = await take(consumer, 3)
                assert [each.redelivered for each in held] == [True] * 3
            match does:
                case "ack":
                    assert await consumer.ack(held[1], wait=True)
                case "reject":
                    assert await consumer.reject(held[1], wait=True)
                case "nack":
                    await consumer.nack(held[1])
            (again,) = await take(consumer, 1)
            if does == "nack":
                assert (again.body, again.redelivered, again.delivery_count) == (b"00001", True, 1)
            else:
                assert (again.body, again.delivery_count) == (b"00003", 0)
            await case.counts(1 if does == "nack" else 0, 3)
        left = numbered(4) if does == "nack" else [b"00000", b"00002", b"00003"]
        await case.counts(len(left))
        assert await case.bodies() == left

    story.__name__ = name
    return story


async def subscribe_and_multiple_ack(case: Case) -> None:
    await case.publish(*numbered(10))
    async with case.consumer(prefetch=10) as consumer:
        held = await take(consumer, 10)
        assert await consumer.ack(held[5], wait=True)
        assert await consumer.ack(held[0].position, held[3].position, wait=True)
        await case.counts(0, 5)
        await case.middle()
        if case.moves:
            # The stream has ended: held messages come again.
            held = await take(consumer, 5)
            assert bodies_of(held) == [numbered(5)[4], *numbered(4, 6)]
            assert all(each.redelivered for each in held)
        else:
            held = [held[4], *held[6:]]
        for message in held:
            assert await consumer.ack(message, wait=True)
    await case.counts(0)


async def subscribe_and_requeue_multiple_nack(case: Case) -> None:
    """basic_recover: all that is held comes again, marked."""
    await case.publish(*numbered(6))
    async with case.consumer(prefetch=6) as consumer:
        held = await take(consumer, 6)
        await consumer.nack(held[0].position, held[5].position)
        held = await take(consumer, 6)
        assert bodies_of(held) == numbered(6)
        assert all(each.redelivered for each in held)
        await case.middle()
        if case.moves:
            held = await take(consumer, 6)
        await consumer.nack(held[0].position, held[5].position)
        held = await take(consumer, 6)
        assert bodies_of(held) == numbered(6)
        assert all(each.redelivered for each in held)
    await case.counts(6)


async def subscribe_and_multiple_nack(case: Case) -> None:
    """Rejected for good, without an exchange for them: they are gone."""
    await case.publish(*numbered(8))
    async with case.consumer(prefetch=4) as consumer:
        held = await take(consumer, 4)
        assert await consumer.reject(held[0].position, held[2].position, wait=True)
    await case.counts(5)
    await case.middle()
    async with case.consumer(prefetch=4) as consumer:
        held = await take(consumer, 4)
        assert bodies_of(held) == numbered(4, 3)
        assert await consumer.reject(held[0].position, held[3].position, wait=True)
        assert bodies_of(await take(consumer, 1)) == numbered(1, 7)
    await case.counts(1)


async def purge(case: Case) -> None:
    """variable_queue_purge: held messages stay."""
    await case.publish(*numbered(6))
    async with case.consumer(prefetch=2) as consumer:
        await take(consumer, 2)
        await case.counts(4, 2)
        assert await case.client.purge_queue(case.queue) == 4
        await case.counts(0, 2)
        await case.middle()
        await case.publish(*numbered(3, 6))
        await case.counts(3, 2)
        assert await case.client.purge_queue(case.queue) == 3
    await case.counts(2)
    assert await case.bodies() == numbered(2)


async def delete_immediately(case: Case) -> None:
    """With a consumer that holds messages: it is told, and the queue is nowhere."""
    await case.publish(*numbered(5))
    async with case.consumer(prefetch=2) as consumer:
        await take(consumer, 2)
        await case.middle()
        with pytest.raises(ringmq.QueueInUseError):
            await case.client.delete_queue(case.queue, if_unused=True)
        assert await case.client.delete_queue(case.queue) == 5
        with pytest.raises(ringmq.QueueNotFoundError):
            await until_it_ends(consumer)

    async def is_nowhere() -> bool:
        # Not at once: a client whose stream has ended asks another node than before.
        return case.queue not in [info.queue for info in await case.client.queues()]

    await until(is_nowhere, f"{case.queue} is listed no more")


# --- backing_queue_SUITE ---


async def variable_queue_requeue(case: Case) -> None:
    """Every second one goes back, from the end: all are in their places."""
    await case.publish(*numbered(20))
    async with case.consumer(prefetch=20) as consumer:
        held = await take(consumer, 20)
        for message in reversed(held[::4]):
            await consumer.nack(message)
        await case.counts(0, 20)
        await case.middle()
    await case.counts(20)
    async with case.consumer(prefetch=20) as consumer:
        held = await take(consumer, 20)
        assert bodies_of(held) == numbered(20)
        for message in reversed(held[::2]):
            assert await consumer.ack(message, wait=True)
    await case.counts(10)
    assert await case.bodies() == numbered(20)[1::2]


async def variable_queue_ack_limiting(case: Case) -> None:
    """Half of the messages are with a consumer: neither these nor the others are in memory, at the
    next master either, and all can be acked there."""
    await case.publish(*numbered(1024))
    async with case.consumer(prefetch=512) as consumer:
        held = await take(consumer, 512)
        await case.counts(512, 512)
        await paged_out(case)
        await case.middle()
        if case.moves:
            held = await take(consumer, 512)
            await paged_out(case)
        assert bodies_of(held) == numbered(512)
        assert await consumer.ack(held[0].position, held[-1].position, wait=True)
        held = await take(consumer, 512)
        assert bodies_of(held) == numbered(512, 512)
        assert await consumer.ack(held[0].position, held[-1].position, wait=True)
    await case.counts(0)


async def variable_queue_requeue_ram_beta(case: Case) -> None:
    """Half of the held messages go back, all are paged out, and the rest go back one by one."""
    await case.publish(*numbered(600))
    async with case.consumer(prefetch=600) as consumer:
        held = await take(consumer, 600)
        await narrowed(consumer)
        await consumer.nack(held[0].position, held[299].position)
        await case.counts(300, 300)
        await paged_out(case, most=300)
        await case.middle()
        if case.moves:
            # The consumer has asked for one at a time since.
            held = await take(consumer, 1)
        else:
            held = held[300:]
        for message in reversed(held):
            await consumer.nack(message)
    await case.counts(600)
    async with case.consumer(prefetch=600) as consumer:
        held = await take(consumer, 600)
        assert bodies_of(held) == numbered(600)
        assert await consumer.ack(held[0].position, held[-1].position, wait=True)
    await case.counts(0)


async def variable_queue_mode_change(case: Case) -> None:
    """The mode is drawn after each step; messages that go back one by one have their places all the
    same."""
    # One seed for each play, as each has other deaths.
    chance = random.Random(str(case.play))

    async def switch() -> None:
        await case.client.set_queue_mode(case.queue, chance.choice(MODES))

    await case.publish(*numbered(200))
    await switch()
    async with case.consumer(prefetch=40) as consumer:
        held = await take(consumer, 40)
        await switch()
        await case.publish(*numbered(3, 200))
        await switch()
        await case.middle()
        if case.moves:
            held = await take(consumer, 40)
        await narrowed(consumer)
        for at in (*range(0, 40, 2), *range(1, 40, 2)):
            await consumer.nack(held[at])
            if at % 8 == 0:
                await switch()
    await case.counts(203)
    await switch()
    taken = await case.client.get_messages(case.queue, 203, remove=True)
    assert [each.body for each in taken] == numbered(203)
    assert [each.redelivered for each in taken][:40] == [True] * 40
    await case.counts(0)


async def variable_queue_fold_msg_on_disk(case: Case) -> None:
    """A message that a consumer holds is on disk alone, and is read there by its position."""
    await case.publish(*numbered(3))
    reader = case.client.reader(case.queue)
    async with case.consumer(prefetch=2) as consumer:
        await take(consumer, 2)
        await paged_out(case)
        await case.middle()
        if case.moves:
            await take(consumer, 2)
            await paged_out(case)
        await case.counts(1, 2)
        found: list[bytes] = []
        async for batch in reader.browse(0, 3, source=BrowseSource.MASTER):
            found += [message.body for message in batch.messages]
        assert found == numbered(3)
    await case.counts(3)


async def variable_queue_fold(case: Case) -> None:
    """A look at the first n, at and around the length; nothing is taken."""
    await case.publish(*numbered(12))

    async def look() -> None:
        for most in (1, 2, 6, 11, 12, 13, 24):
            assert await case.bodies(most) == numbered(min(most, 12))

    await look()
    await case.middle(look)
    await look()
    await case.counts(12)


async def variable_queue_batch_publish_delivered(case: Case) -> None:
    """A consumer waits already: messages go to it, and none is ready in between."""
    async with case.consumer(prefetch=100) as consumer:
        await case.publish(*numbered(50))
        held = await take(consumer, 50)
        assert bodies_of(held) == numbered(50)
        await case.counts(0, 50)
        assert await consumer.ack(held[0].position, held[-1].position, wait=True)
        await case.middle()
        await case.publish(*numbered(50, 50))
        assert bodies_of(await take(consumer, 50)) == numbered(50, 50)
        await case.counts(0, 50)
    await case.counts(50)


async def variable_queue_dropwhile_restart(case: Case) -> None:
    """Ten thousand expire one after the other: five have, and the rest is there, in order."""
    bodies = expiring_bodies()
    await publish_sequential_expiries(case.client, case.queue, bodies)
    await case.counts(EXPIRING - EXPIRED)
    # Others expire behind them meanwhile.
    await case.middle(lambda: case.publish(b"brief", ttl_ms=1))
    await case.counts(EXPIRING - EXPIRED)
    async with case.consumer(prefetch=EXPIRING) as consumer:
        held = await take(consumer, EXPIRING - EXPIRED)
        assert bodies_of(held) == bodies[EXPIRED:]
        assert await consumer.ack(held[0].position, held[-1].position, wait=True)
    await case.counts(0)


async def variable_queue_dropfetchwhile(case: Case) -> None:
    """Expired ones go from the middle, too; requeued messages expire as well."""
    await case.publish(b"stays")
    await case.publish(*numbered(3), ttl_ms=700)
    await case.publish(b"stays as well")
    async with case.consumer(prefetch=3) as consumer:
        # As many as haven't expired by now.
        held = await consumer.next_batch(timeout_s=20.0)
        assert held is not None
        assert held[0].body == b"stays"
    await case.middle()
    await case.counts(2)
    assert await case.bodies() == [b"stays", b"stays as well"]


async def variable_queue_dynamic_duration_change(case: Case) -> None:
    """No message may be in memory, then new ones may, again and again, while they come and go."""
    await case.publish(*numbered(300))
    for first in range(0, 400, 50):
        is_lazy = bool(first % 100)
        await paged_out(case) if is_lazy else await in_memory(case)
        taken = await case.client.get_messages(case.queue, 50, remove=True)
        assert [each.body for each in taken] == numbered(50, first)
        await case.publish(*numbered(50, 300 + first))
        if not is_lazy:
            assert (await case.storage()).messages_in_memory >= 50
        if first == 200:
            await case.middle()
    await case.counts(300)
    assert await case.bodies() == numbered(300, 400)


async def variable_queue_partial_segments_delta_thing(case: Case) -> None:
    """Two segments and a half are on disk: the second is folded. One message more is in memory; all
    come in order."""
    count = SEGMENT_POSITIONS * 5 // 2
    # A quiet queue has its journal flushed to segments if that has a MiB.
    bodies = [body.ljust(32) for body in numbered(count + 1)]
    for first in range(0, count, 4096):
        await case.publish(*bodies[:count][first : first + 4096])
    await paged_out(case)

    async def is_folded() -> bool:
        return (await case.storage()).messages_delta == SEGMENT_POSITIONS

    await until(is_folded, "the second segment is a delta", poll_s=0.2)
    await in_memory(case)
    await case.publish(bodies[count])
    storage = await case.storage()
    assert (storage.messages_in_memory, storage.messages_delta) == (1, SEGMENT_POSITIONS)
    await case.middle()
    async with case.consumer(prefetch=count + 1, auto_ack=True) as consumer:
        assert bodies_of(await take(consumer, count + 1)) == bodies
    await case.counts(0)


async def varying_ram_duration(case: Case) -> int:
    """The queue looks for what has expired while all that stays is on disk, then while the newest
    are in memory, on either side of the middle and in it: of what may live for an hour, a look
    takes nothing, and reads nothing back. Returns how many looks there were: one message has
    expired at each."""
    looks = 0

    async def publish_brief() -> None:
        nonlocal looks
        looks += 1
        await case.publish(b"one look", ttl_ms=1)

    async def look(*, leaves_in_memory: int) -> None:
        before = (await case.client.queue(case.queue)).expired_total
        await publish_brief()

        async def has_looked() -> bool:
            info = await case.client.queue(case.queue)
            # A letter is in memory until it has arrived.
            return info.expired_total == before + 1 and not info.messages_dead_lettering

        await until(has_looked, f"{case.queue} has looked")
        assert (await case.storage()).messages_in_memory == leaves_in_memory

    for first in (0, 10):
        await in_memory(case)
        await case.publish(*numbered(5, first), ttl_ms=HOUR_MS)
        await case.publish(*numbered(5, first + 5), ttl_ms=HOUR_MS, transient=True)
        await paged_out(case)
        await look(leaves_in_memory=0)
        await in_memory(case)
        # As RabbitMQ's case has it: one message more, and not persistent.
        await case.publish(b"%05d more" % first, ttl_ms=HOUR_MS, transient=True)
        await look(leaves_in_memory=1)
        if first == 0:
            await case.middle(publish_brief)
            # So that the next look is the only one.
            await case.counts(11)
    bodies = [*numbered(10), b"00000 more", *numbered(10, 10), b"00010 more"]
    await case.counts(len(bodies))
    assert await case.bodies() == bodies
    return looks


async def variable_queue_dropwhile_varying_ram_duration(case: Case) -> None:
    """What expires is dropped."""
    await varying_ram_duration(case)


async def variable_queue_fetchwhile_varying_ram_duration(case: Case) -> None:
    """What expires is fetched, as it becomes a dead letter; each has one."""
    looks = await varying_ram_duration(case)

    async def all_arrived() -> bool:
        return (await case.client.queue(LETTERS)).messages_ready == looks

    await until(all_arrived, "a letter for each look")
    letters = await case.client.get_messages(LETTERS, looks)
    assert {(each.body, each.properties.deaths[0].reason) for each in letters} == {
        (b"one look", "expired")
    }


async def variable_queue_delete_msg_store_files_callback(case: Case) -> None:
    """A purge while a consumer holds two bodies of a file of the message store: each node moves
    them to another file, deletes that one, and can read them."""
    # Of 16 MiB each. Others have up to 10 MB in the first: of the second, these two are all that
    # is left.
    large = [body + bytes(1_000_000) for body in numbered(34)]
    await case.publish(*large)
    async with case.consumer(prefetch=20, prefetch_bytes=32_000_000) as consumer:
        taken = await take(consumer, 20)
        await narrowed(consumer)
        await consumer.ack(taken[0].position, taken[17].position, wait=True)
        await paged_out(case)
        assert await case.client.purge_queue(case.queue) == 14
        await case.counts(0, 2)
        await until(lambda: all(map(case.has_moved_bodies, case.cluster.nodes)), "they are moved")
        await case.middle()
    await case.counts(2)
    assert await case.bodies() == large[18:20]


# --- lazy_queue_SUITE ---


async def publish_consume(case: Case) -> None:
    """The mode changes with messages in the queue; they are all there, in order."""

    async def change(mode: QueueMode, first: int) -> None:
        await case.client.set_queue_mode(case.queue, mode)
        await case.publish(*numbered(100, first))
        assert (await case.client.queue(case.queue)).mode is mode

    await change(QueueMode.LAZY, 0)
    await change(QueueMode.DEFAULT, 100)
    await change(QueueMode.LAZY, 200)

    async def to_and_fro() -> None:
        for mode in MODES:
            await case.client.set_queue_mode(case.queue, mode)

    await case.middle(to_and_fro)
    assert (await case.client.queue(case.queue)).mode is QueueMode.LAZY
    await change(QueueMode.DEFAULT, 300)
    async with case.consumer(prefetch=400) as consumer:
        held = await take(consumer, 400)
        assert bodies_of(held) == numbered(400)
        assert await consumer.ack(held[0].position, held[-1].position, wait=True)
    await case.counts(0)


CASES = (
    publish,
    subscribe,
    subscribe_with_autoack,
    held_and("subscribe_and_ack", "ack"),
    subscribe_and_multiple_ack,
    held_and("subscribe_and_requeue_nack", "nack"),
    subscribe_and_requeue_multiple_nack,
    held_and("subscribe_and_nack", "reject"),
    subscribe_and_multiple_nack,
    purge,
    delete_immediately,
    variable_queue_ack_limiting,
    variable_queue_requeue,
    variable_queue_requeue_ram_beta,
    variable_queue_mode_change,
    variable_queue_fold,
    variable_queue_fold_msg_on_disk,
    variable_queue_batch_publish_delivered,
    variable_queue_dropwhile_restart,
    variable_queue_dropfetchwhile,
    variable_queue_dynamic_duration_change,
    variable_queue_partial_segments_delta_thing,
    variable_queue_dropwhile_varying_ram_duration,
    variable_queue_fetchwhile_varying_ram_duration,
    variable_queue_delete_msg_store_files_callback,
    publish_consume,
)

outcomes = outcomes_of(
    Stories(
        CASES,
        deleted=[delete_immediately.__name__],
        rules={variable_queue_fetchwhile_varying_ram_duration.__name__: TO_LETTERS},
        others=[LETTERS],
    )
)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("story", CASES, ids=lambda story: story.__name__)
def test_cases_of_rabbitmqs_suites(outcomes: Outcomes, story: Story) -> None:
    judge(outcomes, story)
