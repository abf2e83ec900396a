"""Events for all rings of a group: told in pieces, and before anything that comes after them."""

from __future__ import annotations

import asyncio
from typing import Any

from loops import run
from waiting import until

from ringmq_gm.broadcasts import Broadcasts
from ringmq_gm.core.events import Event, LinkDown, LinkUp, Tick
from ringmq_gm.core.views import MemberId
from ringmq_gm.timers import RingTimers


class SlowRing:
    """As much of a `Ring` as broadcasts see; each event takes it some time."""

    def __init__(self, broadcasts: Broadcasts, work: int) -> None:
        self.broadcasts = broadcasts
        self.broadcasts_taken = broadcasts.count
        self.closed = False
        self.taken: list[object] = []
        self.work = work

    def take(self, event: object) -> None:
        sum(range(self.work))
        self.taken.append(event)

    def step(self, event: object) -> None:
        """As `Ring.step` does it."""
        if self.broadcasts_taken != self.broadcasts.count:
            self.broadcasts.catch_up(self)  # type: ignore[arg-type]
        self.take(event)


def rings_of(count: int, work: int) -> tuple[Broadcasts, dict[str, Any]]:
    rings: dict[str, Any] = {}
    broadcasts = Broadcasts(rings)
    rings.update({f"r{at}": SlowRing(broadcasts, work) for at in range(count)})
    return broadcasts, rings


DOWN: Event = LinkDown("b")
UP: Event = LinkUp(MemberId("b", 1))


def test_the_loop_goes_on_while_thousands_of_rings_are_told() -> None:
    async def main() -> None:
        # Some 0.3 s of work.
        broadcasts, rings = rings_of(3000, 10_000)
        broadcasts.add(DOWN)
        turns = 0
        while rings["r2999"].taken != [DOWN]:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5

    run(main())


def test_a_ring_hears_of_a_link_before_it_takes_a_frame_of_it() -> None:
    async def main() -> None:
        broadcasts, rings = rings_of(2, 10)
        broadcasts.add(DOWN)
        broadcasts.add(UP)
        rings["r1"].step("frame")
        assert rings["r1"].taken == [DOWN, UP, "frame"]
        assert rings["r0"].taken == []
        rings["new"] = SlowRing(broadcasts, 10)
        await until(lambda: rings["r0"].taken == [DOWN, UP], "the rest is told")
        broadcasts.add(DOWN)
        await until(lambda: rings["new"].taken == [DOWN], "the next event is told to all")
        assert [ring.taken for ring in rings.values()] == [
            [DOWN, UP, DOWN],
            [DOWN, UP, "frame", DOWN],
            [DOWN],
        ]

    run(main())


def test_an_event_that_comes_while_rings_are_told_reaches_all_in_order() -> None:
    async def main() -> None:
        broadcasts, rings = rings_of(1000, 10_000)
        broadcasts.add(DOWN)
        await asyncio.sleep(0)
        assert rings["r0"].taken == [DOWN]
        assert rings["r999"].taken == []
        broadcasts.add(UP)
        del rings["r500"]
        await until(lambda: rings["r999"].taken == [DOWN, UP], "the last ring is told")
        assert all(ring.taken == [DOWN, UP] for ring in rings.values())

    run(main())


def test_ticks_of_thousands_of_rings_come_in_pieces_and_each_once() -> None:
    """They came all in one turn; and in the first repair each piece looked at all of them again."""

    class DueRing(SlowRing):
        armed_at: float | None = None
        looks = 0

        def next_deadline(self) -> float | None:
            self.looks += 1
            return None if self.taken else 0.0

    async def main() -> None:
        broadcasts = Broadcasts({})
        rings: list[Any] = [DueRing(broadcasts, 10_000) for _ in range(2000)]
        timers = RingTimers()
        for ring in rings:
            timers.rearm(ring)
        turns = 0
        while not all(ring.taken for ring in rings):
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        assert all(ring.taken == [Tick()] for ring in rings)
        assert max(ring.looks for ring in rings) <= 3

    run(main())
