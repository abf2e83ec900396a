"""The store's threads and clock, worked by hand.

In `by_hand` nothing of a store runs unless the test says so: each piece of work that would
go to a thread waits in `Hand.waiting` until it is let go, its news is heard at the next turn
of the loop, and timers fire when the clock is moved. So every interleaving can be had, and
the same steps give the same run.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from ringmq_node.storage import background, rounds
from ringmq_node.storage.disk import threads

_ENGINE = "ringmq_node.storage."
_TURNS_MAX = 20_000


class HandLoop(asyncio.SelectorEventLoop):
    """Its clock is moved by the test."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@dataclass(eq=False)
class Waiting:
    worker: str
    task: threads.Task
    loop: asyncio.AbstractEventLoop
    done: Callable[[], None]


@dataclass
class Hand:
    """The work that waits to be let go, in the order in which it came."""

    loop: HandLoop = field(default_factory=HandLoop)
    waiting: list[Waiting] = field(default_factory=list)
    # What callbacks of the loop have raised.
    raised: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop.set_exception_handler(self._note)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "exception" in context:
            self.raised.append(context["exception"])
        else:
            loop.default_exception_handler(context)

    def turn(self) -> None:
        """One turn of the loop. Raises what a callback has raised: a loop would only log it, and a
        check of the model would be passed over."""
        self.loop.run_until_complete(asyncio.sleep(0))
        if self.raised:
            raise self.raised.pop(0)

    def let_go(self, item: Waiting) -> None:
        """Does a piece of work; one thread does its own in order."""
        first = next(other for other in self.waiting if other.worker == item.worker)
        self.waiting.remove(first)
        if not first.task.is_done:
            first.task.run()
        if not first.loop.is_closed():
            first.loop.call_soon(first.done)

    def step(self, rng: random.Random) -> bool:
        """One turn, then one piece of work; returns whether there was any."""
        self.turn()
        if not self.waiting:
            return False
        self.let_go(rng.choice(self.waiting))
        return True

    def settle(self) -> None:
        """Until nothing moves."""
        quiet = 0
        for _ in range(_TURNS_MAX):
            self.turn()
            if self.waiting:
                self.let_go(self.waiting[0])
                quiet = 0
            else:
                quiet += 1
            # A callback may ask for a callback that asks for work.
            if quiet > 4:
                return
        raise AssertionError(f"still at work after {_TURNS_MAX} turns")

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, and lets the timers fire that are due."""
        self.loop.now += seconds
        self.turn()
        self.turn()

    def drop(self) -> None:
        """The process is gone: the waiting work is never done."""
        self.waiting.clear()


@contextmanager
def by_hand(*, segment_positions: int | None = None) -> Iterator[Hand]:
    """All stores that are made within are worked by hand."""
    hand = Hand()

    class HandTask(threads.Task):
        def wait(self) -> None:
            """As if the thread came to it just now."""
            item = next((item for item in hand.waiting if item.task is self), None)
            while not self.is_done:
                assert item is not None, "waits for a task that no thread was given"
                hand.let_go(item)

    class HandWorker:
        def __init__(self, name: str) -> None:
            self.name = name

        def submit(
            self,
            task: threads.Task,
            loop: asyncio.AbstractEventLoop,
            done: Callable[[], None],
        ) -> None:
            hand.waiting.append(Waiting(self.name, task, loop, done))

        def close(self, *, until: float) -> bool:
            for item in [item for item in hand.waiting if item.worker == self.name]:
                hand.let_go(item)
            return True

    with pytest.MonkeyPatch.context() as patch:
        for module in (rounds, background):
            patch.setattr(module, "Task", HandTask)
            patch.setattr(module, "Worker", HandWorker)
            patch.setattr(module, "monotonic", hand.loop.time)
        if segment_positions is not None:
            for module in _modules_with("SEGMENT_POSITIONS"):
                patch.setattr(module, "SEGMENT_POSITIONS", segment_positions)
        try:
            yield hand
        finally:
            hand.loop.close()


def _modules_with(name: str) -> list[ModuleType]:
    """The modules of the engine that have imported `name`, or define it."""
    modules = [module for key, module in sys.modules.items() if key.startswith(_ENGINE)]
    return [module for module in modules if name in vars(module)]
