"""When a queue shows the state `flow`, and when a held publisher is told that it is. Pure.

A busy cluster holds batches for milliseconds all the time: that is how publishers go at the pace of
the slowest disk. So a publisher is told only if one batch was held for `TOLD_AFTER_S`, and told the
end once none was held for `LINGER_S`. An alarm is told at once, and its end at once: nothing
that the publisher could do makes it shorter.

`flow`, for operators, is shown from the first held batch on and lingers for `LINGER_S`: who looks
now and then would see it by luck alone.

Times are in seconds, of one clock that rises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ringmq_node.model.flow import ALARMS, BlockReason

LINGER_S = 1.0
TOLD_AFTER_S = 1.0
# While a publisher is held, its reasons may change.
LOOK_S = 1.0

Reasons = tuple[BlockReason, ...]


class FlowGauge:
    """Of one queue: how many streams have a batch that is held, and why the last one was."""

    __slots__ = ("_clock", "_ended_at", "_held", "_reasons")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held = 0
        self._reasons: Reasons = ()
        self._ended_at = float("-inf")

    def began(self, reasons: Reasons) -> None:
        self._held += 1
        self._reasons = reasons

    def ended(self) -> None:
        assert self._held > 0
        self._held -= 1
        self._ended_at = self._clock()

    @property
    def is_shown(self) -> bool:
        return self._held > 0 or self._clock() < self._ended_at + LINGER_S

    @property
    def reasons(self) -> Reasons:
        """Why, while it is shown. May be empty all the same: others have their turn first."""
        return self._reasons if self.is_shown else ()


class BlockNotices:
    """Of one publish stream. After each event the caller tells what `look` returns, and looks
    again at `next_look`."""

    __slots__ = ("_since", "_told", "_told_at", "held")

    def __init__(self) -> None:
        self.held = False
        # When it was held, or released.
        self._since = 0.0
        self._told: Reasons = ()
        self._told_at = 0.0

    def hold(self, now: float) -> None:
        """A batch is held, or the stream isn't read for lack of room."""
        assert not self.held
        self.held = True
        self._since = now

    def release(self, now: float) -> None:
        assert self.held
        self.held = False
        self._since = now

    def look(self, reasons: Collection[BlockReason], now: float) -> Reasons | None:
        """What the publisher is told: why it is blocked, or, empty, that it isn't any more.

        None: nothing new. `reasons`: those that hold it now, in any order.
        """
        if self.held:
            why = tuple(sorted(reasons, key=lambda reason: reason.value))
            if not why or why == self._told or not self._is_due(why, now):
                return None
            self._told = why
            self._told_at = now
            return why
        if self._told and now >= self._since + self._linger_s:
            self._told = ()
            return ()
        return None

    def _is_due(self, why: Reasons, now: float) -> bool:
        if ALARMS.intersection(why) != ALARMS.intersection(self._told):
            return True
        # The other reasons come and go with every batch.
        return now >= (self._told_at + LOOK_S if self._told else self._since + TOLD_AFTER_S)

    @property
    def _linger_s(self) -> float:
        return 0.0 if ALARMS.issuperset(self._told) else LINGER_S

    def next_look(self, now: float) -> float | None:
        """When to look, without another event; None: there is nothing to wait for."""
        if self.held:
            due = self._since + TOLD_AFTER_S
            return due if now < due else now + LOOK_S
        return self._since + self._linger_s if self._told else None
