"""What a node holds for its clients: sums, turns, and who is given nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from loops import run

from ringmq_node.resources.buffers import ByteBudget, UnsentBytes


def test_a_consumer_that_reads_nothing_has_half_and_others_have_room() -> None:
    budget = ByteBudget(1000)
    told: list[tuple[str, bool]] = []
    dead = UnsentBytes(budget, lambda held: told.append(("dead", held)))
    live = UnsentBytes(budget, lambda held: told.append(("live", held)))
    for _ in range(20):
        if not dead.is_held:
            dead.put(100)
    assert told == [("dead", True)]
    assert dead.size_bytes == 600
    for _ in range(10):
        live.put(150)
        live.taken(150)
    assert told == [("dead", True)]
    dead.taken(500)
    assert told == [("dead", True)]
    dead.taken(100)
    assert told == [("dead", True), ("dead", False)]
    assert budget.used_bytes == 0


def test_a_stream_that_ends_gives_back_all_and_tells_nobody() -> None:
    budget = ByteBudget(100)
    told: list[bool] = []
    unsent = UnsentBytes(budget, told.append)
    unsent.put(90)
    unsent.end()
    assert (told, budget.used_bytes) == ([True], 0)


def test_gets_wait_for_their_turn_in_order() -> None:
    async def main() -> None:
        budget, order = ByteBudget(100), list[str]()
        release = {name: asyncio.Event() for name in "abcd"}

        async def get(name: str, size: int) -> None:
            async with budget.reserved(size):
                order.append(name)
                await release[name].wait()

        tasks = {"a": asyncio.create_task(get("a", 500))}
        await asyncio.sleep(0)
        # One alone passes, however large it is. c would fit with d, but b came before them.
        for name, size in (("b", 60), ("c", 60), ("d", 40)):
            tasks[name] = asyncio.create_task(get(name, size))
            await asyncio.sleep(0)
        assert order == ["a"]
        release["a"].set()
        await tasks["a"]
        await asyncio.sleep(0)
        assert order == ["a", "b"]
        tasks["c"].cancel()
        release["b"].set()
        await tasks["b"]
        release["d"].set()
        await tasks["d"]
        assert order == ["a", "b", "d"]
        assert budget.used_bytes == 0

    run(main())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-300, 300)), max_size=80))
def test_unsent_bytes_are_the_sum_and_bounded(steps: list[tuple[int, int]]) -> None:
    budget = ByteBudget(1000)
    held: dict[int, bool] = {}

    def hold(at: int) -> Callable[[bool], None]:
        return lambda on: held.update({at: on})

    streams = [UnsentBytes(budget, hold(at)) for at in range(4)]
    for at, change in steps:
        stream = streams[at]
        if change > 0 and not held.get(at, False):
            stream.put(change)
        elif change < 0:
            stream.taken(min(-change, stream.size_bytes))
        assert budget.used_bytes == sum(each.size_bytes for each in streams)
        # A message more of each.
        assert budget.used_bytes <= 1000 + 4 * 300
        assert all(each.is_held == held.get(at, False) for at, each in enumerate(streams))
        assert not any(each.is_held and not each.size_bytes for each in streams)
