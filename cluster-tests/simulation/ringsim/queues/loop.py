"""An event loop in virtual time, so that the shipped replica can be simulated as it is.

It has what asyncio's futures, tasks, events and time-outs ask of a loop, and nothing that meets an
operating system. Each life of a process has one. What the process had begun ends with it: a loop
that is dead makes no call any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any, cast

from ringsim.simulator.clock import Clock


class VirtualLoop:
    """`run` makes one call of the process, now or when it stands still no more.

    Not derived from `AbstractEventLoop`, of which it lacks most. `loop` is itself, as asyncio's.
    """

    def __init__(self, clock: Clock, run: Callable[[Callable[[], object]], None]) -> None:
        self.loop = cast(asyncio.AbstractEventLoop, self)
        self._clock = clock
        self._run_call = run
        self.is_dead = False
        # The calls that come next, in their order.
        self._soon: deque[asyncio.Handle] = deque()
        # What a call of this loop has raised; nobody else would tell.
        self.errors: list[BaseException] = []

    def time(self) -> float:
        return self._clock.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.loop, context)
        self._soon.append(handle)
        if not self.is_dead:
            self._clock.at(self._clock.now, self._run_soon)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self.loop, context)
        self._clock.at(when, self._run, timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.loop)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.loop, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self.is_dead:
            self.errors.append(error)

    def wind_up(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Has these tasks cancelled and unwound, out of time: nothing of a dead process may be
        collected later, in the middle of another run."""
        self.is_dead = True
        for task in tasks:
            task.cancel()
        while self._soon:
            self._next_soon()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Its time comes all the same, and finds it cancelled."""

    def _run_soon(self) -> None:
        self._run_call(self._next_soon)

    def _next_soon(self) -> None:
        handle = self._soon.popleft()
        if not handle.cancelled():
            handle._run()

    def _run(self, handle: asyncio.Handle) -> None:
        # It may be cancelled while the process stands still.
        self._run_call(lambda: None if handle.cancelled() else handle._run())
