"""A timer that is set over and over and seldom reached.

Why not the loop's own handle: `asyncio.TimerHandle.when` is asyncio's, not every loop's. uvloop
returns a plain `Handle` without `when` for a moment that has already passed, so code that asks a
handle for its time works in every test on asyncio and raises in production. A `Timer` keeps the
time itself and asks the handle for nothing but `cancel`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `action` once, at the earliest of the moments that it was set to.

    Moments are on the running loop's clock, in seconds. After the call, or after `cancel`, the
    timer is unset and can be set again; `action` may set it.
    """

    __slots__ = ("_action", "_at", "_handle")

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._at = 0.0
        self._handle: asyncio.Handle | None = None

    @property
    def at(self) -> float | None:
        """The moment of the next call; None while the timer is unset."""
        return None if self._handle is None else self._at

    def set_by(self, at: float) -> None:
        """Makes sure that `action` is called at `at` or earlier."""
        if self._handle is not None:
            if self._at <= at:
                return
            self._handle.cancel()
        self._at = at
        self._handle = asyncio.get_running_loop().call_at(at, self._fire)

    def set_at(self, at: float | None) -> None:
        """Forgets every moment set so far; `action` is called at `at`, or not at all."""
        if self._handle is not None and self._at == at:
            return
        self.cancel()
        if at is not None:
            self.set_by(at)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def end(self) -> None:
        """As `cancel`, for good: it lets go of `action`, and of its owner by that."""
        self.cancel()
        self._action = _nothing

    def _fire(self) -> None:
        self._handle = None
        self._action()


def _nothing() -> None: ...
