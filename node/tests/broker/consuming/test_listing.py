"""The list of a queue's consumers: what is told of each, in pages, and of nobody who has gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.broker.test_broker import CALLER, Session, reason_of, with_broker

from ringmq_base.limits import MIB
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.model.consumers import (
    CONSUMER_TAG_BYTES_MAX,
    ConsumerInfo,
    ConsumerLabel,
    ConsumerStanding,
)
from ringmq_node.model.reasons import Reason
from ringmq_node.model.rules import QueueRules
from ringmq_node.model.settings import LIST_MAX, PREFETCH_BYTES, PREFETCH_MESSAGES
from ringmq_node.node import Node
from ringmq_node.queue.consumers import ConsumerTerms

PLAIN = ConsumerInfo(
    number=0,
    label=ConsumerLabel(node="a"),
    standing=ConsumerStanding.UP,
    prefetch_messages=PREFETCH_MESSAGES,
    prefetch_bytes=PREFETCH_BYTES,
    priority=0,
    exclusive=False,
    pulls=False,
    is_held=False,
    share=None,
    messages_unacknowledged=0,
    bytes_unacknowledged=0,
)


async def listed(broker: Broker, queue: str = "q") -> list[ConsumerInfo]:
    page = await broker.consumers.page(queue, CALLER, after=0, consumers_max=0)
    assert (page.master, page.next) == ("a", 0)
    assert page.epoch > 0
    return [*page.consumers]


async def standings(broker: Broker, queue: str) -> list[tuple[int, ConsumerStanding, int]]:
    found = await listed(broker, queue)
    return [(each.number, each.standing, each.messages_unacknowledged) for each in found]


async def filled(broker: Broker, queue: str, *bodies: bytes) -> None:
    session = Session()
    publishing = await broker.open_publisher(queue, session)
    publishing.publish(1, bodies, [], transient=False)
    await session.until(lambda: session.sequences == [(1, len(bodies))])
    publishing.close()


def test_terms_and_names_of_each_are_listed_as_they_came(tmp_path: Path) -> None:
    async def work(broker: Broker, _: Node) -> None:
        opening = broker.consuming.open_here
        assert await listed(broker) == []
        label = ConsumerLabel("mine", "b", "ipv4:127.0.0.1:7")
        named = await opening(
            "q", Session(), ConsumerTerms(5, 600, priority=-3), auto_ack=True, label=label
        )
        plain = await opening("q", Session())
        puller = await opening("q", Session(), ConsumerTerms(pulls=True))
        sharer = await opening("q", Session(), ConsumerTerms(shares_window=True))
        sharer.change_share(7, 70)
        plain.hold(True)

        def numbered(each: Consuming, info: ConsumerInfo) -> ConsumerInfo:
            tag = info.label.tag or f"a.{each.number}"
            return replace(info, number=each.number, label=replace(info.label, tag=tag))

        assert await listed(broker) == [
            numbered(
                named,
                replace(
                    PLAIN,
                    label=replace(label, auto_ack=True),
                    prefetch_messages=5,
                    prefetch_bytes=600,
                    priority=-3,
                ),
            ),
            numbered(plain, replace(PLAIN, is_held=True)),
            numbered(puller, replace(PLAIN, pulls=True)),
            numbered(sharer, replace(PLAIN, share=(7, 70))),
        ]
        plain.change_prefetch(9, MIB)
        assert (await listed(broker))[1].prefetch_messages == 9
        await broker.declare("x", QueueArguments(), CALLER)
        await opening("x", Session(), ConsumerTerms(exclusive=True))
        assert [each.exclusive for each in await listed(broker, "x")] == [True]

    with_broker(tmp_path, work)


def test_each_has_the_messages_that_it_has_not_settled(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        await filled(broker, "q", b"one", b"three", b"five", b"seven")
        session, other = Session(), Session()
        first = await broker.consuming.open_here("q", session, ConsumerTerms(prefetch_messages=3))
        second = await broker.consuming.open_here("q", other)
        first.begin()
        await session.until(lambda: len(session.bodies) == 3)
        second.begin()
        await other.until(lambda: len(other.bodies) == 1)
        assert [
            (each.messages_unacknowledged, each.bytes_unacknowledged)
            for each in await listed(broker)
        ] == [(3, 12), (1, 5)]
        first.cancel()
        first.settle(acked=[(0, 0)], requeued=[(1, 1)])
        await other.until(lambda: len(other.bodies) == 2)
        # It keeps what it has; what it put back is another one's now.
        assert await standings(broker, "q") == [
            (first.number, ConsumerStanding.CANCELLED, 1),
            (second.number, ConsumerStanding.UP, 2),
        ]
        info = await broker.queue_info("q", CALLER)
        assert info.messages_unacknowledged == 3
        first.close()
        second.close()
        assert await listed(broker) == []

    with_broker(tmp_path, work)


def test_one_is_the_single_active_consumer_and_the_others_wait(tmp_path: Path) -> None:
    async def work(broker: Broker, _: Node) -> None:
        rules = QueueRules(single_active_consumer=True)
        await broker.declare("s", QueueArguments(rules=rules), CALLER)
        await filled(broker, "s", b"one", b"two")
        sessions = [Session(), Session()]
        one, two = [await broker.consuming.open_here("s", each) for each in sessions]
        puller = await broker.consuming.open_here("s", Session(), ConsumerTerms(pulls=True))
        active, waiting = ConsumerStanding.SINGLE_ACTIVE, ConsumerStanding.WAITING
        # Neither has begun.
        assert [each for _, each, _ in await standings(broker, "s")][:2] == [waiting, waiting]
        for each in (one, two, puller):
            each.begin()
        await sessions[0].until(lambda: len(sessions[0].bodies) == 2)
        assert await standings(broker, "s") == [
            (one.number, active, 2),
            (two.number, waiting, 0),
            (puller.number, ConsumerStanding.UP, 0),
        ]
        one.close()
        await sessions[1].until(lambda: len(sessions[1].bodies) == 2)
        assert (await standings(broker, "s"))[0] == (two.number, active, 2)

    with_broker(tmp_path, work)


def test_thousands_are_listed_in_pages(tmp_path: Path) -> None:
    async def work(broker: Broker, _: Node) -> None:
        count = 2 * LIST_MAX + 500
        opened = [await broker.consuming.open_here("q", Session()) for _ in range(count)]
        found: list[int] = []
        after = pages = 0
        while pages == 0 or after:
            # More than the most is the most.
            page = await broker.consumers.page(
                "q", CALLER, after=after, consumers_max=[0, 10 * LIST_MAX][pages % 2]
            )
            assert len(page.consumers) <= LIST_MAX
            found += [each.number for each in page.consumers]
            if not pages:
                # Some leave while the list is read, before and behind its place.
                opened[5].close()
                opened[LIST_MAX + 5].close()
                opened[LIST_MAX - 1].close()
            pages, after = pages + 1, page.next
        assert pages == 3
        gone = opened[LIST_MAX + 5].number
        assert found == [each.number for each in opened if each.number != gone]
        small = await broker.consumers.page("q", CALLER, after=0, consumers_max=2)
        assert small.next == small.consumers[-1].number == opened[1].number
        whole = await broker.consumers.page("q", CALLER, after=found[-3], consumers_max=2)
        assert (len(whole.consumers), whole.next) == (2, 0)
        beyond = await broker.consumers.page("q", CALLER, after=2**64 - 1, consumers_max=2**32 - 1)
        assert (beyond.consumers, beyond.next) == ((), 0)

    with_broker(tmp_path, work)


@pytest.mark.parametrize("end", ["close", "replaced", "deleted"])
def test_nothing_is_known_of_a_consumer_that_has_gone(tmp_path: Path, end: str) -> None:
    async def work(broker: Broker, node: Node) -> None:
        terms = ConsumerTerms(identity=b"i")
        consumer = await broker.consuming.open_here("q", Session(), terms, label=ConsumerLabel("t"))
        subscribers = node.broker._locator.replica_of("q").serving().subscribers
        assert subscribers.label(consumer.number).tag == "t"
        if end == "close":
            consumer.close()
        elif end == "replaced":
            other = await broker.consuming.open_here("q", Session(), terms)
            assert [each.number for each in await listed(broker)] == [other.number]
            assert [*subscribers._labels] == [other.number]
            other.close()
        else:
            await broker.delete_by_force("q", CALLER)
            assert await reason_of(listed(broker)) is Reason.QUEUE_NOT_FOUND
        # Nor if its name comes late.
        subscribers.set_label(consumer.number, ConsumerLabel("late"))
        assert not subscribers._labels
        consumer.close()

    with_broker(tmp_path, work)


def test_a_tag_has_a_limit_and_a_queue_has_to_be_there(tmp_path: Path) -> None:
    async def work(broker: Broker, _: Node) -> None:
        for tag, is_right in (("é" * 127, True), ("é" * 128, False)):
            assert (len(tag.encode()) <= CONSUMER_TAG_BYTES_MAX) is is_right
            opening = broker.consuming.open_here("q", Session(), label=ConsumerLabel(tag))
            if is_right:
                await opening
            else:
                assert await reason_of(opening) is Reason.BAD_REQUEST
        assert [each.label.tag for each in await listed(broker)] == ["é" * 127]
        assert await reason_of(listed(broker, "nowhere")) is Reason.QUEUE_NOT_FOUND

    with_broker(tmp_path, work)
