"""The timer of many rings: those whose deadlines lie close together share a call of the loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from loops import run
from waiting import until

from ringmq_base.timer import Timer
from ringmq_gm.core.events import Event, Tick
from ringmq_gm.timers import STEP_S, RingTimers

RINGS = 100


class DueRing:
    """A ring as its timers see it: it has one deadline, and none after its `Tick`."""

    def __init__(self, deadline: float | None) -> None:
        self.armed_at: float | None = None
        self.deadline = deadline
        self.ticked_at: list[float] = []

    def next_deadline(self) -> float | None:
        return self.deadline

    def step(self, event: Event) -> None:
        assert isinstance(event, Tick)
        self.deadline = None
        self.ticked_at.append(asyncio.get_running_loop().time())


class LoopTimers:
    """How often a timer of the loop was set, and how often one has run out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sets = self.calls = 0
        fire = Timer._fire

        def counted(timer: Timer) -> None:
            self.calls += 1
            fire(timer)

        monkeypatch.setattr(Timer, "_fire", counted)

    def watch(self, loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        call_at: Callable[..., Any] = loop.call_at

        def counted(at: float, callback: Callable[[], None]) -> Any:
            if getattr(callback, "__self__", None).__class__ is Timer:
                self.sets += 1
            return call_at(at, callback)

        monkeypatch.setattr(loop, "call_at", counted)


def step_ahead(after_s: float) -> float:
    """The beginning of a step of the timer, at least so far in the future."""
    return math.floor((asyncio.get_running_loop().time() + after_s) / STEP_S + 1) * STEP_S


def test_a_hundred_rings_of_one_step_share_a_call_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop_timers = LoopTimers(monkeypatch)

    async def scenario() -> None:
        loop_timers.watch(asyncio.get_running_loop(), monkeypatch)
        timers = RingTimers()
        begins = step_ahead(0.05)
        # Within one step, and not in order.
        rings: list[Any] = [
            DueRing(begins + STEP_S * (0.1 + 0.8 * (number * 37 % RINGS) / RINGS))
            for number in range(RINGS)
        ]
        for ring in rings:
            timers.rearm(ring)
        deadlines = [ring.deadline for ring in rings]
        assert loop_timers.sets == 1
        await until(lambda: all(ring.ticked_at for ring in rings))
        for ring, deadline in zip(rings, deadlines, strict=True):
            assert ring.armed_at is None
            (ticked_at,) = ring.ticked_at
            assert ticked_at >= deadline
        assert (loop_timers.sets, loop_timers.calls) == (1, 1)

    run(scenario())


def test_a_deadline_that_moves_away_touches_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nearly every step of a ring: a turn of the loop has many of them."""
    loop_timers = LoopTimers(monkeypatch)

    async def scenario() -> None:
        loop_timers.watch(asyncio.get_running_loop(), monkeypatch)
        timers = RingTimers()
        begins = step_ahead(0.05)
        rings: list[Any] = [DueRing(begins) for _ in range(RINGS)]
        for turn in range(100):
            for ring in rings:
                ring.deadline = begins + turn * STEP_S / 10
                timers.rearm(ring)
        assert loop_timers.sets == 1
        await until(lambda: all(ring.ticked_at for ring in rings))
        # Once at the first moment, which is none any more, and once at the last.
        assert loop_timers.calls == 2
        for ring in rings:
            assert len(ring.ticked_at) == 1
            assert ring.ticked_at[0] >= begins + 9.9 * STEP_S

    run(scenario())


def test_a_deadline_that_comes_nearer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loop_timers = LoopTimers(monkeypatch)

    async def scenario() -> None:
        loop_timers.watch(asyncio.get_running_loop(), monkeypatch)
        timers = RingTimers()
        late = asyncio.get_running_loop().time() + 3600
        rings: list[Any] = [DueRing(late) for _ in range(RINGS)]
        for ring in rings:
            timers.rearm(ring)
        rings[-1].deadline = step_ahead(0.02)
        timers.rearm(rings[-1])
        await until(lambda: bool(rings[-1].ticked_at))
        assert not any(ring.ticked_at for ring in rings[:-1])
        timers.cancel()

    run(scenario())
