"""A call of the client as one that waits, for the clients without asyncio."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ringmq.calls.loop_thread import run_on_loop

R = TypeVar("R")
P = ParamSpec("P")
Calls = TypeVar("Calls")
Calls_co = TypeVar("Calls_co", covariant=True)


class CallsThatWait(Protocol[Calls_co]):
    """It has the same calls, and its own wait."""

    @property
    def calls(self) -> Calls_co: ...


def waiting(
    call: Callable[Concatenate[Calls, P], Coroutine[object, object, R]],
) -> Callable[Concatenate[CallsThatWait[Calls], P], R]:
    """The same call with the same arguments, which returns when it is done."""

    def waits(self: CallsThatWait[Calls], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_on_loop(call(self.calls, *args, **kwargs))

    return functools.update_wrapper(waits, call)
