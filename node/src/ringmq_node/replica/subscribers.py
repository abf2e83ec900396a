"""The consume sessions of one mastership, and the clock of its consumers.

What the queue's core decides of consumers is carried out here: deliveries, settlements, who is
active, whose stream ends. Calls of an ended mastership do nothing or raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ringmq_base.ranges import Range
from ringmq_base.window import Share
from ringmq_gm import Ring, Role
from ringmq_node.model.consumers import ConsumerLabel
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.consumers import (
    ConsumerTerms,
    NotAloneError,
    NotOutstandingError,
    PrefetchUsedError,
)
from ringmq_node.queue.effects import Effect, EndReason
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.run import Run
from ringmq_node.replica.refusals import not_serving
from ringmq_node.replica.sessions import ConsumerSession

# The queue's clock, if it has a consumer time-out: ticks in a time-out, and their bounds.
TICKS = 10
TICK_S_MIN = 0.05
TICK_S_MAX = 10.0

_UNLABELLED = ConsumerLabel()
_END_REASONS = {
    EndReason.REPLACED: Reason.CONSUMER_REPLACED,
    EndReason.TIMED_OUT: Reason.CONSUMER_TIMEOUT,
}


class Subscribers:
    """Sessions by the number that the mastership gave them."""

    def __init__(
        self,
        name: str,
        queue: QueueMaster,
        *,
        ring: Ring,
        carry_out: Callable[[list[Effect]], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._name = name
        self._queue = queue
        self._ring = ring
        self._carry_out = carry_out
        self._spawn = spawn
        self._sessions: dict[int, ConsumerSession] = {}
        # Of these sessions, as far as they have one.
        self._labels: dict[int, ConsumerLabel] = {}
        self._ended = False
        self._ticks = False

    def end(self, reason: Reason) -> None:
        """The mastership is over: tells every session that the queue has moved."""
        self._ended = True
        # A session that is told may close itself at once: it must not find itself registered.
        sessions, self._sessions = self._sessions, {}
        self._labels.clear()
        # The mastership's and the replica's: no cycle, which would stay in memory.
        del self._carry_out, self._spawn
        for session in sessions.values():
            session.moved(reason)

    def _check_serving(self) -> None:
        if self._ended or self._ring.role is not Role.MASTER:
            raise not_serving(self._name, self._ring.role)

    # --- calls of the broker ---

    def open(self, number: int, session: ConsumerSession, terms: ConsumerTerms) -> None:
        """Its deliveries start with `begin`. Raises `BrokerError`."""
        self._check_serving()
        try:
            effects = self._queue.consumer_opened(number, terms)
        except NotAloneError as error:
            raise BrokerError(
                Reason.EXCLUSIVE_CONSUMER, f"queue {self._name!r}: {error}", queue=self._name
            ) from None
        self._sessions[number] = session
        self._carry_out(effects)

    def set_label(self, number: int, label: ConsumerLabel) -> None:
        """What operators know it by."""
        if number in self._sessions:
            self._labels[number] = label

    def label(self, number: int) -> ConsumerLabel:
        return self._labels.get(number, _UNLABELLED)

    def begin(self, number: int) -> None:
        if self._is_open(number):
            self._carry_out(self._queue.consumer_begun(number))

    def settle(
        self,
        number: int,
        *,
        acked: Sequence[Range] = (),
        rejected: Sequence[Range] = (),
        requeued: Sequence[Range] = (),
    ) -> None:
        self._check_serving()
        try:
            self._carry_out(
                self._queue.settle(number, acked=acked, rejected=rejected, requeued=requeued)
            )
        except NotOutstandingError as error:
            raise BrokerError(
                Reason.UNKNOWN_DELIVERY,
                str(error),
                queue=self._name,
                first=error.first,
                last=error.last,
            ) from error

    def change_prefetch(self, number: int, messages: int, size_bytes: int) -> None:
        self._check_serving()
        if self._is_open(number):
            self._carry_out(self._queue.prefetch_changed(number, messages, size_bytes))

    def change_share(self, number: int, share: Share) -> None:
        self._check_serving()
        if self._is_open(number):
            self._queue.consumers.change_share(number, share)
            self._carry_out(self._queue.deliver_more())

    def pull(self, number: int, messages_max: int, bytes_max: int) -> list[Run]:
        """For a consumer that pulls. Raises `BrokerError` if its prefetch is used up."""
        self._check_serving()
        if not self._is_open(number):
            return []
        try:
            runs, effects = self._queue.pull(number, messages_max, bytes_max)
        except PrefetchUsedError as error:
            raise BrokerError(
                Reason.LIMIT_EXCEEDED,
                f"queue {self._name!r}: {error}, and the prefetch has no room for more",
                queue=self._name,
                limit="prefetch",
            ) from None
        self._carry_out(effects)
        return runs

    def cancel(self, number: int) -> None:
        if self._is_open(number):
            self._carry_out(self._queue.consumer_cancelled(number))

    def hold(self, number: int, *, held: bool) -> None:
        if self._is_open(number):
            self._carry_out(self._queue.consumer_held(number, held=held))

    def close(self, number: int) -> None:
        self._sessions.pop(number, None)
        self._labels.pop(number, None)
        if self._is_open(number):
            self._carry_out(self._queue.consumer_closed(number))

    def _is_open(self, number: int) -> bool:
        return not self._ended and number in self._queue.consumers

    # --- effects of the core ---

    def delivered(self, number: int, runs: Sequence[Run]) -> None:
        self._sessions[number].delivered(runs)

    def settled(self, number: int, positions: Sequence[Range]) -> None:
        session = self._sessions.get(number)
        if session is not None:
            session.settled(positions)

    def tell_active(self, number: int, *, active: bool) -> None:
        session = self._sessions.get(number)
        if session is not None:
            session.active_changed(active=active)

    def tell_short(self, number: int, *, short: bool, needs_bytes: int) -> None:
        session = self._sessions.get(number)
        if session is not None:
            session.share_short(short=short, needs_bytes=needs_bytes)

    def end_one(self, number: int, reason: EndReason) -> None:
        session = self._sessions.pop(number, None)
        self._labels.pop(number, None)
        if session is not None:
            session.ended(_END_REASONS[reason])

    # --- time ---

    def keep_time(self) -> None:
        """If the queue has a consumer time-out: its clock runs from now on."""
        if self._queue.consumer_timeout_ms is not None and not self._ticks and not self._ended:
            self._ticks = True
            self._spawn(self._tick(), f"consumer time-out of {self._name}")

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._ended and (timeout_ms := self._queue.consumer_timeout_ms) is not None:
                await asyncio.sleep(min(max(timeout_ms / 1000 / TICKS, TICK_S_MIN), TICK_S_MAX))
                if not self._ended:
                    self._carry_out(self._queue.tick(int(loop.time() * 1000)))
        finally:
            self._ticks = False
