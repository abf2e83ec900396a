"""The node's budget of publishes: who is held, who has the next turn, and that nobody starves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loops import run

from ringmq_node.model.flow import BlockReason
from ringmq_node.resources.budget import SHARE, PublishBudget, in_no_alarm

LIMIT = 1000


class Rings:
    """The copies and the store of a node, which grow as batches are published."""

    def __init__(self) -> None:
        self.budget = PublishBudget(LIMIT, lambda: sum(ring.cached_bytes for ring in self.rings))
        self.rings: list[Ring] = []
        self.order: list[str] = []

    def ring(self, name: str) -> Ring:
        self.rings.append(Ring(name, self))
        return self.rings[-1]


class Ring:
    def __init__(self, name: str, rings: Rings) -> None:
        self.name = name
        self.cached_bytes = 0
        self._rings = rings

    async def publish(
        self, size_bytes: int, passes_alarms: Callable[[], bool] = in_no_alarm
    ) -> None:
        budget = self._rings.budget
        if not budget.admits(self, passes_alarms):
            await budget.wait(self, size_bytes, passes_alarms)
        self.cached_bytes += size_bytes
        self._rings.order.append(self.name)

    def trim(self, size_bytes: int) -> None:
        self.cached_bytes -= size_bytes
        self._rings.budget.freed()


def story(work: Callable[[Rings], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work(Rings())

    run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_batches_are_held_while_the_budget_is_used_up_and_go_on_in_order() -> None:
    async def work(rings: Rings) -> None:
        ring = rings.ring("a")
        for _ in range(8):
            await ring.publish(100)
        others = [rings.ring(name) for name in "bcd"]
        waiting = [asyncio.create_task(other.publish(300)) for other in others]
        await turns()
        # 200 bytes were left: b took them, and a bit more than that.
        assert rings.order[8:] == ["b"]
        assert rings.budget.held_bytes == 600
        ring.trim(300)
        await turns()
        assert rings.order[8:] == ["b", "c"]
        ring.trim(500)
        await asyncio.gather(*waiting)
        assert rings.order[8:] == ["b", "c", "d"]
        assert rings.budget.held_bytes == 0

    story(work)


def test_rings_that_are_stuck_leave_room_for_the_others() -> None:
    async def work(rings: Rings) -> None:
        stuck = [rings.ring(f"stuck {index}") for index in range(5)]
        tasks = [asyncio.create_task(ring.publish(10)) for _ in range(200) for ring in stuck]
        await turns()
        used = sum(ring.cached_bytes for ring in stuck)
        assert used < LIMIT
        # Each has about the share that it may have of what is left.
        assert all(ring.cached_bytes > SHARE * (LIMIT - used) - 50 for ring in stuck)
        live = rings.ring("live")
        for _ in range(1000):
            await live.publish(10)
            live.trim(10)
        assert all(not task.done() for task in tasks[-5:])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert rings.budget.held_bytes == 0
        assert rings.budget.waiting == 0

    story(work)


def test_everybody_is_held_while_the_disk_is_far_behind() -> None:
    async def work(rings: Rings) -> None:
        ring = rings.ring("a")
        rings.budget.is_crowded = True
        task = asyncio.create_task(ring.publish(10))
        await turns()
        assert not task.done()
        rings.budget.is_crowded = False
        rings.budget.freed()
        await task

    story(work)


def test_a_turn_that_is_not_taken_goes_to_the_next() -> None:
    async def work(rings: Rings) -> None:
        ring = rings.ring("a")
        await ring.publish(LIMIT)
        first, second = (asyncio.create_task(ring.publish(LIMIT)) for _ in range(2))
        await turns()
        ring.trim(LIMIT)
        # Its turn comes with the next turn of the loop, in which its stream ends.
        rings.budget._look()
        first.cancel()
        await second
        assert rings.order == ["a", "a"]
        assert rings.budget.held_bytes == 0

    story(work)


def test_doors_stop_reading_when_they_hold_as_much_as_the_budget() -> None:
    async def work(rings: Rings) -> None:
        ring = rings.ring("a")
        await ring.publish(LIMIT)
        held = [asyncio.create_task(ring.publish(LIMIT // 2)) for _ in range(2)]
        await turns()
        reading = [
            asyncio.create_task(rings.budget.wait_readable(each))
            for each in (None, rings.ring("b"))
        ]
        await turns()
        assert not any(map(asyncio.Task.done, reading))
        ring.trim(LIMIT)
        await asyncio.gather(*reading)
        ring.trim(LIMIT // 2)
        await asyncio.gather(*held)

    story(work)


def test_a_queue_has_a_share_of_what_the_doors_hold() -> None:
    async def work(rings: Rings) -> None:
        budget, a, b = rings.budget, rings.ring("a"), rings.ring("b")
        budget.park(a, 800)
        assert budget.is_readable(a)
        budget.park(a, 1)
        assert not budget.is_readable(a)
        assert budget.is_readable(b)
        assert budget.is_readable()
        # What others hold makes the share smaller, but nobody without anything is kept out by it.
        budget.park(a, -401)
        budget.park(b, 501)
        assert not budget.is_readable(a)
        assert not budget.is_readable(b)
        assert budget.is_readable(rings.ring("c"))
        reading = {
            name: asyncio.create_task(budget.wait_readable(ring))
            for name, ring in (("a", a), ("again", a), ("b", b))
        }
        await turns()
        reading.pop("again").cancel()
        budget.park(b, -1)
        await turns()
        # 400 of a, 500 of b, 100 left: a has just its share.
        assert {name for name, task in reading.items() if task.done()} == {"a"}
        budget.park(b, -500)
        await reading["b"]
        budget.park(a, -400)
        assert (budget.held_bytes, budget._held_of, budget._readable) == (0, {}, {})

    story(work)


def test_what_passes_alarms_goes_by_those_that_wait_for_their_end() -> None:
    async def work(rings: Rings) -> None:
        rings.budget.set_alarms(frozenset({BlockReason.DISK}))
        a, b = rings.ring("a"), rings.ring("b")
        held = asyncio.create_task(a.publish(100))
        await turns()
        passes = False
        letters = asyncio.create_task(b.publish(100, lambda: passes))
        await turns()
        assert rings.order == []
        passes = True
        rings.budget.freed()
        await letters
        await turns()
        assert rings.order == ["b"]
        rings.budget.set_alarms(frozenset())
        await held

    story(work)
