"""Messages that a client asks for, and settles later: RabbitMQ's `basic.get`, on three nodes, and
again with the master killed half way. The cases have the names of `queue_parallel_SUITE` and
`backing_queue_SUITE`.
"""

from __future__ import annotations

import pytest
from halves import Case, Outcomes, Stories, Story, bodies_of, judge, numbered, outcomes_of

import ringmq


async def pull(consumer: ringmq.Consumer, count: int) -> list[ringmq.Message]:
    """Exactly so many, of one answer."""
    found = [*await consumer.pull(count)]
    assert len(found) == count
    return found


async def consume(case: Case) -> None:
    """What a client held is in its place again when it goes, and marked."""
    await case.publish(*numbered(3))
    async with case.puller() as puller:
        assert bodies_of(await pull(puller, 2)) == numbered(2)
        await case.counts(1, 2)
        # It is no consumer.
        assert (await case.client.queue(case.queue)).consumers == 0
        await case.middle()
        if case.moves:
            # All of it comes again, on the stream to the next master.
            await case.counts(3)
            assert bodies_of(await pull(puller, 2)) == numbered(2)
    await case.counts(3)
    async with case.puller() as puller:
        again = await pull(puller, 3)
    assert bodies_of(again) == numbered(3)
    assert [each.redelivered for each in again[:2]] == [True, True]


async def consume_first_empty(case: Case) -> None:
    """And consume_from_empty_queue."""
    async with case.puller() as puller:

        async def nothing_is_there() -> None:
            assert not [*await puller.pull(10)]

        await nothing_is_there()
        await case.middle(nothing_is_there)
        await nothing_is_there()
        await case.publish(b"first", b"second")
        assert bodies_of(await pull(puller, 1)) == [b"first"]
        await case.counts(1, 1)
        assert bodies_of([*await puller.pull(10)]) == [b"second"]
        assert not [*await puller.pull()]


async def consume_and_autoack(case: Case) -> None:
    await case.publish(*numbered(4))
    taken = await case.client.get_messages(case.queue, 2, remove=True)
    assert [each.body for each in taken] == numbered(2)
    await case.counts(2)
    await case.middle()
    await case.counts(2)
    taken = await case.client.get_messages(case.queue, 2, remove=True)
    assert [each.body for each in taken] == numbered(2, 2)
    await case.counts(0)


async def basic_recover(case: Case) -> None:
    """What has just been put back comes first, and comes marked."""
    await case.publish(*numbered(6))
    async with case.puller() as puller:
        held = await pull(puller, 4)
        await case.middle()
        if case.moves:
            assert not await puller.ack(held[0])
            await case.counts(6)
            held = await pull(puller, 4)
        await puller.nack(held[0].position, held[3].position)
        again = await pull(puller, 6)
        assert bodies_of(again) == numbered(6)
        assert all(each.redelivered for each in again[:4])


async def prefetch_is_used_up(case: Case) -> None:
    """An error, and not an empty answer; the stream, and what it holds, stay."""
    await case.publish(*numbered(5))
    async with case.client.consumer(case.queue, pulls=True, prefetch=2) as puller:
        held = await pull(puller, 2)
        with pytest.raises(ringmq.LimitExceededError, match="2 messages of 10 bytes"):
            await puller.pull()
        await case.middle()
        if case.moves:
            await case.counts(5)
            held = [*await puller.pull(1000)]
            assert bodies_of(held) == numbered(2)
        assert await puller.ack(held[0], wait=True)
        assert bodies_of(await pull(puller, 1)) == numbered(1, 2)
        with pytest.raises(ringmq.LimitExceededError):
            await puller.pull()
        with pytest.raises(ringmq.BadRequestError, match="only when it asks"):
            await puller.next_batch()
    await case.counts(4)


async def beside_an_exclusive_consumer(case: Case) -> None:
    """Which takes what nobody holds."""
    async with case.puller() as before, case.consumer(exclusive=True, prefetch=1) as alone:
        await case.publish(*numbered(4))
        first = await alone.next_batch(timeout_s=10.0)
        assert first is not None
        assert bodies_of([*await before.pull(2)]) == numbered(2, 1)
        with pytest.raises(ringmq.BadRequestError, match="unasked"):
            await alone.pull()
        await case.counts(1, 3)
        await case.middle()
        async with case.puller() as behind:
            assert len([*await behind.pull(1)]) == 1
    await case.counts(4)


def held_and(does: str, count: int) -> Story:
    """Three messages are with a client; it does this with the first ones."""

    async def story(case: Case) -> None:
        await case.publish(*numbered(5))
        async with case.puller() as puller:
            held = await pull(puller, 3)
            await case.counts(2, 3)
            await case.middle()
            if case.moves:
                # They are back, and nothing of the old stream counts.
                await case.counts(5)
                assert not await puller.ack(held[0])
                held = await pull(puller, 3)
                assert [each.redelivered for each in held] == [True] * 3
            assert bodies_of(held) == numbered(3)
            first, last = held[0].position, held[count - 1].position
            match does:
                case "ack":
                    assert await puller.ack(first, last, wait=True)
                case "reject":
                    assert await puller.reject(first, last, wait=True)
                case "nack":
                    assert await puller.nack(first, last)
            back = count if does == "nack" else 0
            await case.counts(2 + back, 3 - count)
            with pytest.raises(ringmq.UnknownDeliveryError):
                await puller.ack(first)
            if back:
                again = await pull(puller, back)
                assert bodies_of(again) == numbered(back)
                assert all(each.redelivered and each.delivery_count == 1 for each in again)
        await case.counts(5 - count + back)

    return story


async def variable_queue_drop(case: Case) -> None:
    """Taken and put back, then taken for good; a look into the empty queue after each."""
    await case.publish(b"the only one")
    async with case.puller() as puller:
        (held,) = await puller.pull()
        await case.counts(0, 1)
        assert not [*await puller.pull()]
        await puller.nack(held)
        await case.counts(1)
        await case.middle()
    (taken,) = await case.client.get_messages(case.queue, 1, remove=True)
    assert (taken.body, taken.redelivered) == (b"the only one", True)
    assert not await case.client.get_messages(case.queue, 1, remove=True)
    await case.counts(0)


CASES: list[Story] = [consume, consume_first_empty, consume_and_autoack, basic_recover]
CASES += [prefetch_is_used_up, beside_an_exclusive_consumer, variable_queue_drop]
for _name, _does, _count in (
    ("consume_and_ack", "ack", 1),
    ("consume_and_multiple_ack", "ack", 3),
    ("consume_and_requeue_nack", "nack", 1),
    ("consume_and_requeue_multiple_nack", "nack", 3),
    ("consume_and_nack", "reject", 1),
    ("consume_and_multiple_nack", "reject", 3),
):
    _story = held_and(_does, _count)
    _story.__name__ = _name
    CASES.append(_story)

outcomes = outcomes_of(Stories(CASES))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("story", CASES, ids=lambda story: story.__name__)
def test_cases_of_rabbitmqs_gets(outcomes: Outcomes, story: Story) -> None:
    judge(outcomes, story)
