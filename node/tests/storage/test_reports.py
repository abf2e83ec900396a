"""Reports of durable queues: once in a turn, in pieces, and past a queue whose owner raises."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from loops import run

from ringmq_node.storage.queue.queue_store import QueueStore
from ringmq_node.storage.reports import DurableReports


def queues(count: int) -> list[QueueStore]:
    return [cast(QueueStore, f"q{number}") for number in range(count)]


def test_queues_are_told_once_in_a_turn_and_in_order() -> None:
    told: list[QueueStore] = []

    async def main() -> None:
        reports = DurableReports(told.append)
        first, second = queues(2)
        reports.add(first)
        await asyncio.sleep(0)
        assert told == []
        reports.start(asyncio.get_running_loop())
        reports.add(second)
        reports.add(first)
        await asyncio.sleep(0)
        assert told == [first, second]
        reports.add(second)
        reports.stop()
        await asyncio.sleep(0)
        assert told == [first, second, second]

    run(main())


def test_thousands_of_queues_are_told_in_pieces() -> None:
    told: list[QueueStore] = []

    def slow(queue: QueueStore) -> None:
        told.append(queue)
        time.sleep(0.0005)

    async def main() -> None:
        reports = DurableReports(slow)
        reports.start(asyncio.get_running_loop())
        many = queues(200)
        for queue in many:
            reports.add(queue)
        turns = 0
        while len(told) < len(many):
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        assert told == many

    run(main())


def test_a_queue_whose_owner_raises_keeps_no_other_one_waiting() -> None:
    told: list[QueueStore] = []
    faults: list[dict[str, Any]] = []

    def tell(queue: QueueStore) -> None:
        if str(queue) == "q1":
            raise RuntimeError("a bug")
        told.append(queue)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        reports = DurableReports(tell)
        reports.start(loop)
        for queue in queues(4):
            reports.add(queue)
        for _ in range(3):
            await asyncio.sleep(0)

    run(main())
    assert [str(queue) for queue in told] == ["q0", "q2", "q3"]
    assert [str(fault["exception"]) for fault in faults] == ["a bug"]
