"""Pulls of a stream: one after the other, held while its client reads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from loops import run
from waiting import until

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import PULLS_WAITING_MAX
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.broker.peers import Got
from ringmq_node.doors.grpc.pulls import Pulls
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import WireMessage


class Played:
    """A consumer whose pulls are answered when `answer` is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answer: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        self.has_moved = False
        self.got: list[broker.Pulled] = []
        self.pulls = Pulls(cast(Consuming, self))

    def check_pulls(self) -> None:
        pass

    def put(self, answer: WireMessage, has_messages: bool) -> None:
        pulled = broker.ConsumeResponse.FromString(bytes(answer)).pulled
        assert bool(pulled.deliveries) == has_messages
        self.got.append(pulled)

    async def pull(self, messages_max: int, bytes_max: int) -> Got:
        self.asked.append((messages_max, bytes_max))
        return await self.answer


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def answered(pulls: Pulls) -> None:
    await until(lambda: not pulls.waiting)


def played(work: Callable[[Played], Awaitable[None]]) -> None:
    async def main() -> None:
        consumer = Played()
        async with asyncio.timeout(30):
            answering = asyncio.create_task(consumer.pulls.run(consumer.put))
            try:
                await work(consumer)
            finally:
                answering.cancel()

    run(main())


def test_a_pull_waits_while_too_much_waits_to_be_sent() -> None:
    async def work(consumer: Played) -> None:
        pulls = consumer.pulls
        pulls.hold(True)
        pulls.ask(broker.Pull(messages_max=3, bytes_max=5))
        await turns()
        assert (pulls.waiting, consumer.asked) == (1, [])
        pulls.hold(False)
        # And again, before it has had a turn.
        pulls.hold(True)
        await turns()
        assert consumer.asked == []
        pulls.hold(False)
        await turns()
        assert consumer.asked == [(3, 5)]
        consumer.answer.set_result(Got((), 7))
        await answered(pulls)
        assert not pulls.waiting
        assert consumer.got == [broker.Pulled(messages_ready=7)]

    played(work)


def test_each_waits_for_those_before_it_and_no_more_wait_than_may() -> None:
    async def work(consumer: Played) -> None:
        pulls = consumer.pulls
        for messages in range(1, PULLS_WAITING_MAX + 1):
            pulls.ask(broker.Pull(messages_max=messages))
        await turns()
        assert consumer.asked == [(1, 0)]
        with pytest.raises(BrokerError) as caught:
            pulls.ask(broker.Pull())
        assert caught.value.reason is Reason.LIMIT_EXCEEDED
        consumer.answer.set_result(Got((), 7))
        await answered(pulls)
        assert consumer.asked == [(each, 0) for each in range(1, PULLS_WAITING_MAX + 1)]
        assert len(consumer.got) == PULLS_WAITING_MAX

    played(work)


def test_a_refusal_is_an_answer_and_behind_moved_comes_none() -> None:
    async def work(consumer: Played) -> None:
        error = BrokerError(Reason.REPAIRING, "in a moment")
        consumer.answer.set_exception(error)
        consumer.pulls.ask(broker.Pull())
        await answered(consumer.pulls)
        (answer,) = consumer.got
        assert (answer.reason, answer.message) == (common.REASON_REPAIRING, "in a moment")
        consumer.has_moved = True
        consumer.pulls.ask(broker.Pull())
        await answered(consumer.pulls)
        assert len(consumer.got) == 1

    played(work)


def test_behind_the_end_of_its_stream_comes_no_answer() -> None:
    async def work(consumer: Played) -> None:
        consumer.pulls.ask(broker.Pull())
        await turns()
        consumer.pulls.end()
        consumer.answer.set_result(Got((), 7))
        await answered(consumer.pulls)
        assert consumer.got == []

    played(work)
