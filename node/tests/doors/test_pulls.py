"""Pulls of a stream: one at a time, held while its client reads nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from loops import run

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.consuming import Consuming
from ringmq_node.broker.peers import Got
from ringmq_node.doors.grpc.pulls import Pulls
from ringmq_node.model.reasons import BrokerError, Reason


class Played:
    """A consumer whose pulls are answered when `answer` is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answer: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        self.has_moved = False
        self.got: list[broker.Pulled] = []
        self.pulls = Pulls(cast(Consuming, self), self.got.append)

    async def pull(self, messages_max: int, bytes_max: int) -> Got:
        self.asked.append((messages_max, bytes_max))
        return await self.answer


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def played(work: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work(Played())

    run(main())


def test_a_pull_waits_while_too_much_waits_to_be_sent() -> None:
    async def work(consumer: Played) -> None:
        pulls = consumer.pulls
        pulls.hold(True)
        pulls.ask(broker.Pull(messages_max=3, bytes_max=5))
        await turns()
        assert (pulls.in_hand, consumer.asked) == (True, [])
        pulls.hold(False)
        # And again, before it has had a turn.
        pulls.hold(True)
        await turns()
        assert consumer.asked == []
        pulls.hold(False)
        await turns()
        assert consumer.asked == [(3, 5)]
        consumer.answer.set_result(Got((), 7))
        await pulls.wait()
        assert not pulls.in_hand
        assert consumer.got == [broker.Pulled(messages_ready=7)]

    played(work)


def test_a_refusal_is_an_answer_and_behind_moved_comes_none() -> None:
    async def work(consumer: Played) -> None:
        error = BrokerError(Reason.REPAIRING, "in a moment")
        consumer.answer.set_exception(error)
        consumer.pulls.ask(broker.Pull())
        await consumer.pulls.wait()
        (answer,) = consumer.got
        assert (answer.reason, answer.message) == (common.REASON_REPAIRING, "in a moment")
        consumer.has_moved = True
        consumer.pulls.ask(broker.Pull())
        await consumer.pulls.wait()
        assert len(consumer.got) == 1

    played(work)


def test_what_ends_with_its_stream_answers_nobody() -> None:
    async def work(consumer: Played) -> None:
        consumer.pulls.ask(broker.Pull())
        await turns()
        waits = asyncio.create_task(consumer.pulls.wait())
        await turns()
        waits.cancel()
        await turns()
        # Who waited has gone; the pull is there.
        assert consumer.pulls.in_hand
        assert not consumer.answer.cancelled()
        consumer.pulls.close()
        await turns()
        assert consumer.answer.cancelled()
        assert consumer.got == []

    played(work)
