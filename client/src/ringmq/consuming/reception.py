"""The deliveries of a consumer's streams on their way to the user, and the answers to its acks.

Written by the stream's events, read by the consumer's calls. Each stream is a *generation*, and
nothing of one survives into the next: batches that the user hasn't taken are dropped, because the
node delivers them again, and callers that wait for acks learn that nobody will know.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ringmq.consuming.settling import AwaitedSettle, Settling
from ringmq.errors import RingMQError
from ringmq.model.messages import Batch
from ringmq.streams.lifetime import Lifetime
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.ranges import Range

T = TypeVar("T")

log = logging.getLogger(__name__)


class Reception:
    """`consumer_tag` is the user's, or empty; from the first stream on, the node's."""

    def __init__(
        self,
        queue: str,
        lifetime: Lifetime,
        settling: Settling,
        consumer_tag: str,
        *,
        auto_ack: bool,
    ) -> None:
        self._queue = queue
        #: The number of the present stream, or the last one; the first is 1.
        self.generation = 0
        #: Whether acks may still go out on it.
        self.live = False
        self.consumer_tag = consumer_tag
        #: What the node allows to be unsettled at a time: messages, bytes.
        self.prefetch = (0, 0)
        #: Whether this consumer is given messages: not while it waits behind a single active one.
        self.active = True
        #: Called when `active` has changed.
        self.on_active: Callable[[bool], None] | None = None
        #: Called with the generation of a stream that has ended, unless the user has closed it.
        self.on_interrupted: Callable[[int], None] | None = None
        self._ended_generation = 0
        #: Why the newest stream broke; None if none did since one was opened.
        self.trouble: RingMQError | None = None
        self._lifetime = lifetime
        self._settling = settling
        self._auto_ack = auto_ack
        self._batches: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._iterating = False
        # The callers that wait for an ack: True when it is safe, False when nobody will know.
        self._answers: dict[AwaitedSettle, asyncio.Future[bool]] = {}

    # --- calls of the consumer ---

    @property
    def has_batches(self) -> bool:
        return bool(self._batches)

    def take_batch(self) -> Batch:
        """The first batch, whose messages are held by the user from now on, unless the node has
        acknowledged them itself."""
        batch = self._batches.popleft()
        if not self._auto_ack:
            # Else nobody would ever settle them, and they would be kept until the stream ends.
            self._settling.hand_out(batch.positions)
        return batch

    async def wait_batch(self) -> None:
        """Returns when there is a batch, or there will be none."""
        if self._iterating:
            raise RuntimeError("a consumer is iterated by one task at a time")
        self._iterating = True
        try:
            # A batch that came may be gone again: its stream broke before this task ran.
            while not self._batches and not self._lifetime.over:
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._iterating = False

    async def wait_settled(self, ranges: Sequence[Range]) -> bool:
        """True when the node has reported `ranges` as safe, False if the stream ended before."""
        awaited = self._settling.wait(ranges)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[awaited] = answer
        try:
            return await answer
        finally:
            del self._answers[awaited]
            self._settling.forget(awaited)

    def end_iteration(self) -> None:
        """The lifetime is over: the task that waits for a batch has to see it."""
        self._batches.clear()
        self._arrived.set()

    # --- events of the stream ---

    def opened(self, consumer_tag: str) -> None:
        self.generation += 1
        self.live = True
        self.consumer_tag = consumer_tag
        self.trouble = None
        # Of a queue with a single active consumer the node says it next.
        self.active = True

    def active_changed(self, *, active: bool) -> None:
        self.active = active
        self._call(self.on_active, active)

    def delivered(self, deliveries: Sequence[broker.Delivery]) -> None:
        # After a close the stream lives on until the acks are written. Its deliveries go back.
        if not self._lifetime.over:
            batch = Batch.from_wire(deliveries, self._queue, self.generation)
            if batch:
                self._batches.append(batch)
                self._arrived.set()

    def settled(self, ranges: Sequence[Range]) -> None:
        self._answer(self._settling.settled(ranges), safe=True)

    def moved(self) -> None:
        """The notes still go out on this stream; an ack from now on would be too late for it."""
        self.live = False

    def stream_ended(self, trouble: RingMQError | None) -> None:
        self.trouble = trouble or self.trouble
        self.live = False
        self._batches.clear()
        self._answer(self._settling.stream_ended(), safe=False)
        # Not for a stream that could not be opened.
        if self._ended_generation != self.generation:
            self._ended_generation = self.generation
            if not self._lifetime.closing:
                self._call(self.on_interrupted, self.generation)

    def _call(self, callback: Callable[[T], None] | None, told: T) -> None:
        if callback is not None:
            try:
                callback(told)
            except Exception:
                # The user's own: the stream has nothing to do with it.
                log.exception("consumer of queue %r: a callback has failed", self._queue)

    def _answer(self, ended: Sequence[AwaitedSettle], *, safe: bool) -> None:
        for awaited in ended:
            answer = self._answers[awaited]
            if not answer.done():
                answer.set_result(safe)
