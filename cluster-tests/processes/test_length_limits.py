"""`queue_length_limits_SUITE` on three nodes: in both modes, with nothing in the middle, the master
told to stop, and the master killed (`halves`). Each case has its name in RabbitMQ.
"""

from __future__ import annotations

from functools import partial

import pytest
from halves import Case, Outcomes, Stories, Story, judge, outcomes_of
from nemesis import until

import ringmq
from ringmq import Overflow, QueueRules

DROP_HEAD = Overflow.DROP_HEAD
REJECT = Overflow.REJECT_PUBLISH
# Each body is as long: as many bytes as one of them.
BODY_BYTES = 5


async def refused(case: Case, *bodies: bytes) -> tuple[tuple[int, int], ...]:
    """Publishes all at once; returns which of them the queue had no room for."""
    try:
        await case.publish(*bodies)
    except ringmq.QueueFullError as error:
        return error.failed
    return ()


async def is_full(case: Case) -> None:
    """Both of a batch are refused."""
    assert await refused(case, b"in vain", b"too") == ((0, 1),)


async def has(case: Case, *bodies: bytes) -> None:
    """Until these are ready, and the queue's counter says as many."""

    async def so() -> bool:
        counted = (await case.client.queue(case.queue)).messages_ready
        return (await case.bodies(10), counted) == ([*bodies], len(bodies))

    await until(so, f"{case.queue} has {bodies}")


async def taken(case: Case) -> bytes:
    (message,) = await case.client.get_messages(case.queue, 1, remove=True)
    return message.body


async def drops_head(case: Case) -> None:
    """The newest stays, and all are confirmed."""
    assert await refused(case, b"msg-1", b"msg-2", b"msg-3") == ()
    await has(case, b"msg-3")

    async def goes_on() -> None:
        assert await refused(case, b"msg-1", b"msg-2", b"msg-3") == ()

    await case.middle(goes_on)
    await has(case, b"msg-3")
    assert await refused(case, b"msg-4") == ()
    await has(case, b"msg-4")
    assert await refused(case, b"msg-5", b"msg-6") == ()
    await has(case, b"msg-6")


async def rejects_confirm(case: Case) -> None:
    """The first is confirmed, the others are refused; after a get there is room again."""
    assert await refused(case, b"msg-1") == ()
    assert await refused(case, b"msg-2") == ((0, 0),)
    assert await refused(case, b"msg-3") == ((0, 0),)
    await case.middle(partial(is_full, case))
    assert await refused(case, b"msg-4") == ((0, 0),)
    assert await taken(case) == b"msg-1"
    assert await refused(case, b"msg-5") == ()
    assert await refused(case, b"msg-6") == ((0, 0),)
    await has(case, b"msg-5")


async def drops_publish(case: Case) -> None:
    """Nobody has to wait for the answer: the first stays."""
    assert await refused(case, b"msg-1", b"msg-2", b"msg-3") == ((1, 2),)
    await has(case, b"msg-1")
    await case.middle(partial(is_full, case))
    await has(case, b"msg-1")
    assert await taken(case) == b"msg-1"
    assert await refused(case, b"msg-4", b"msg-5") == ((1, 1),)
    await has(case, b"msg-4")


async def drops_publish_requeue(case: Case) -> None:
    """What comes back is not subject to the limit: both stay, in their order."""
    assert await refused(case, b"msg-1") == ()
    async with case.client.consumer(case.queue, prefetch=1) as consumer:
        batch = await consumer.next_batch(timeout_s=10.0)
        assert batch is not None
        assert batch[0].body == b"msg-1"
        assert await refused(case, b"msg-2") == ()
        await case.middle(partial(is_full, case))
    await has(case, b"msg-1", b"msg-2")
    assert await refused(case, b"msg-3") == ((0, 0),)
    assert await taken(case) == b"msg-1"
    # There is still one, which is as many as may be.
    assert await refused(case, b"msg-4") == ((0, 0),)


RULES: dict[str, tuple[Story, QueueRules]] = {
    "max_length_default": (drops_head, QueueRules(max_length=1)),
    "max_length_bytes_default": (drops_head, QueueRules(max_length_bytes=BODY_BYTES)),
    "max_length_drop_head": (drops_head, QueueRules(max_length=1, overflow=DROP_HEAD)),
    "max_length_bytes_drop_head": (
        drops_head,
        QueueRules(max_length_bytes=BODY_BYTES, overflow=DROP_HEAD),
    ),
    "max_length_reject_confirm": (rejects_confirm, QueueRules(max_length=1, overflow=REJECT)),
    "max_length_bytes_reject_confirm": (
        rejects_confirm,
        QueueRules(max_length_bytes=BODY_BYTES, overflow=REJECT),
    ),
    "max_length_drop_publish": (drops_publish, QueueRules(max_length=1, overflow=REJECT)),
    "max_length_bytes_drop_publish": (
        drops_publish,
        QueueRules(max_length_bytes=BODY_BYTES, overflow=REJECT),
    ),
    "max_length_drop_publish_requeue": (
        drops_publish_requeue,
        QueueRules(max_length=1, overflow=REJECT),
    ),
}


def named(name: str, story: Story) -> Story:
    async def told(case: Case) -> None:
        await story(case)

    told.__name__ = name
    return told


CASES = [named(name, story) for name, (story, _) in RULES.items()]

outcomes = outcomes_of(Stories(CASES, rules={name: rules for name, (_, rules) in RULES.items()}))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("story", CASES, ids=lambda story: story.__name__)
def test_length_limits_of_rabbitmqs_suite(outcomes: Outcomes, story: Story) -> None:
    judge(outcomes, story)
