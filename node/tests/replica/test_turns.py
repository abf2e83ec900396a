"""Turns of catching up: a few at a time, bodies first, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

from loops import run

from ringmq_node.replica.turns import CatchUpTurns, TakeOverTurns

QUEUES = 200


async def yield_often() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_more_queues_catch_up_at_once_than_there_are_turns() -> None:
    """A node that came back with 2 000 queues fetched 2 000 states at once."""
    turns = CatchUpTurns(4)
    fetching = most = 0

    async def catch_up() -> None:
        nonlocal fetching, most
        for turn in (turns.state, turns.bodies, turns.bodies):
            async with turn():
                fetching += 1
                most = max(most, fetching)
                await yield_often()
                fetching -= 1

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(QUEUES):
                tasks.create_task(catch_up())
        assert most == 4
        assert turns.waiting == 0

    run(main())


def test_queues_that_have_begun_are_done_before_others_begin() -> None:
    turns = CatchUpTurns(1)
    story: list[str] = []

    async def catch_up(name: str) -> None:
        for step, turn in (("state", turns.state), ("bodies", turns.bodies)):
            async with turn():
                story.append(f"{name} {step}")
                await yield_often()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in "ab":
                tasks.create_task(catch_up(name))
            await asyncio.sleep(0)
        assert story == ["a state", "a bodies", "b state", "b bodies"]

    run(main())


def test_who_is_cancelled_while_it_waits_takes_no_turn_along() -> None:
    async def main() -> None:
        turns = CatchUpTurns(1)

        async def wait() -> None:
            async with turns.state():
                pass

        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        async with turns.state():
            pending = [asyncio.create_task(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            pending[0].cancel()
            await asyncio.sleep(0)
        # Given its turn and cancelled in the same moment.
        pending[1].cancel()
        await asyncio.gather(*waiting, *pending, return_exceptions=True)
        async with asyncio.timeout(1), turns.bodies():
            assert turns.waiting == 0

    run(main())


def test_a_few_queues_are_taken_over_in_each_turn_of_the_loop() -> None:
    """A node learned a hundred views at once, and took all of these queues over in one turn: that
    was 83 ms of the loop on a slow machine."""
    turns = TakeOverTurns(4)
    now = 0
    taken: list[tuple[int, int]] = []

    async def take_over(queue: int) -> None:
        await turns.turn()
        taken.append((now, queue))

    async def main() -> None:
        nonlocal now
        tasks = [asyncio.create_task(take_over(queue)) for queue in range(QUEUES)]
        # Its replica is closed while it waits.
        left_out = tasks[10]
        asyncio.get_running_loop().call_soon(left_out.cancel)
        while len(taken) < QUEUES - 1:
            now += 1
            assert now < QUEUES
            await asyncio.sleep(0)
        await asyncio.wait(tasks)
        await take_over(QUEUES)

    run(main())
    assert [queue for _, queue in taken] == [at for at in range(QUEUES + 1) if at != 10]
    assert max(Counter(turn for turn, _ in taken).values()) == 4
