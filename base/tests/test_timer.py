"""A timer calls its action once, at the earliest moment it was set to, on the product's loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from loops import LOOPS, LoopFactory, run

from ringmq_base.timer import Timer

on_both_loops = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


class Recorder:
    def __init__(self) -> None:
        self.calls: list[float] = []
        self.called = asyncio.Event()
        self.timer = Timer(self._called)

    def _called(self) -> None:
        self.calls.append(asyncio.get_running_loop().time())
        self.called.set()


@on_both_loops
def test_a_moment_that_has_passed_can_be_set_again_before_its_call(loop: LoopFactory) -> None:
    """uvloop's handle for such a moment has no `when`: this raised AttributeError in every node."""

    async def scenario() -> None:
        recorder = Recorder()
        now = asyncio.get_running_loop().time()
        recorder.timer.set_by(now - 1)
        recorder.timer.set_by(now - 2)
        recorder.timer.set_by(now + 60)
        await recorder.called.wait()
        assert len(recorder.calls) == 1
        assert recorder.timer.at is None

    run(scenario(), on=loop)


@on_both_loops
def test_the_earliest_moment_counts(loop: LoopFactory) -> None:
    async def scenario() -> None:
        recorder = Recorder()
        now = asyncio.get_running_loop().time()
        recorder.timer.set_by(now + 60)
        recorder.timer.set_by(now + 0.01)
        recorder.timer.set_by(now + 30)
        assert recorder.timer.at == now + 0.01
        await recorder.called.wait()
        assert len(recorder.calls) == 1

    run(scenario(), on=loop)


@on_both_loops
def test_set_at_forgets_the_moment_before(loop: LoopFactory) -> None:
    async def scenario() -> None:
        recorder = Recorder()
        now = asyncio.get_running_loop().time()
        recorder.timer.set_by(now)
        recorder.timer.set_at(now + 0.01)
        await recorder.called.wait()
        assert recorder.calls[0] >= now + 0.009
        recorder.timer.set_by(now)
        recorder.timer.set_at(None)
        assert recorder.timer.at is None

    run(scenario(), on=loop)


@on_both_loops
def test_a_timer_that_has_ended_calls_and_keeps_nothing(loop: LoopFactory) -> None:
    async def scenario() -> None:
        recorder = Recorder()
        calls = recorder.calls
        gone = weakref.ref(recorder)
        recorder.timer.set_by(asyncio.get_running_loop().time())
        recorder.timer.end()
        gc.disable()
        try:
            del recorder
            assert gone() is None
        finally:
            gc.enable()
        await asyncio.sleep(0)
        assert not calls

    run(scenario(), on=loop)
