"""Streams between clients and nodes: in order both ways, cut off at any moment.

A client reaches every node, whatever is cut between the nodes: that is the worst for safety.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ringmq_base.ranges import Range
from ringmq_gm import RingClosedError
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run
from ringmq_node.replica.mastership import Mastership
from ringsim.queues.process import Process

if TYPE_CHECKING:
    from ringsim.queues.clients import Consumer, Producer
    from ringsim.queues.course import QueueCourse

Call = Callable[[], object]


class Stream:
    """The client's end. What is sent is called at the node, in the order in which it was sent."""

    def __init__(self, course: QueueCourse, process: Process | None) -> None:
        self._course = course
        self._clock, self._rng = course.world.clock, course.world.rng
        self.process = process
        self.closed = False
        # Some clients are far away: what they have sent arrives when they have long given it up.
        self._delay_s = self._rng.choice((0.002, 0.002, 0.02, 0.3))
        self._there_at = self._here_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def send(self, call: Call) -> None:
        self._there_at = max(self._clock.now + self._delay_s * self._rng.random(), self._there_at)
        self._clock.at(self._there_at, self._arrive, call)

    def _arrive(self, call: Call) -> None:
        if self.process is not None:
            self.process.run(call)

    def reply(self, call: Call) -> None:
        """The node's end sends something."""
        self._here_at = max(self._clock.now + self._delay_s * self._rng.random(), self._here_at)
        self._clock.at(self._here_at, self._received, call)

    def _received(self, call: Call) -> None:
        if not self.closed:
            call()

    @property
    def is_broken(self) -> bool:
        return self.process is None or self.process.is_dead

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """The node's end begins; `work` ends with the stream."""
        assert self.process is not None
        self._task = self.process.spawn(work)

    def close(self) -> None:
        """The client goes. The node hears of it later, behind all that was sent."""
        if not self.closed:
            self.closed = True
            self.send(lambda: self._task is None or self._task.cancel())


class PublisherDoor:
    """The node's end of a publisher's stream, and its session (`sessions.PublisherSession`)."""

    def __init__(self, course: QueueCourse, stream: Stream, producer: Producer) -> None:
        self._judge = course.judge
        self._stream = stream
        self._producer = producer
        self._id = producer.tag.encode()
        self.batches: asyncio.Queue[tuple[int, list[bytes]]] = asyncio.Queue()

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self._judge.sequences_confirmed(self._id, sequences)
        self._stream.reply(lambda: self._producer.confirmed(self._stream, sequences))

    def moved(self, reason: Reason) -> None:
        self._stream.reply(lambda: self._producer.moved(self._stream))

    async def run(self) -> None:
        process, stream = self._stream.process, self._stream
        assert process is not None
        try:
            mastership = process.replica.serving()
            number, last = await mastership.open_publisher(self, self._id)
        except (BrokerError, RingClosedError):
            stream.reply(lambda: self._producer.refused(stream))
            return
        self._judge.last_sequence_told(self._id, last)
        epoch = mastership.epoch
        stream.reply(lambda: self._producer.opened(stream, last, epoch))
        try:
            while True:
                first, bodies = await self.batches.get()
                try:
                    await mastership.room.wait()
                    mastership.publish(number, self._id, first, bodies, (), transient=False)
                except BrokerError as error:
                    last = first + len(bodies) - 1
                    rejected = self._producer.rejected
                    stream.reply(partial(rejected, stream, first, last, error.reason))
                except RingClosedError:
                    return
        finally:
            mastership.close_publisher(number, self._id)


class ConsumerDoor:
    """The node's end of a consumer's stream, and its session (`sessions.ConsumerSession`)."""

    def __init__(
        self, course: QueueCourse, stream: Stream, consumer: Consumer, number: int
    ) -> None:
        self._world = course.world
        self._judge = course.judge
        self._number = number
        self._stream = stream
        self._consumer = consumer
        self._mastership: Mastership | None = None
        # Removed or requeued.
        self.settlements: asyncio.Queue[tuple[list[Range], list[Range]]] = asyncio.Queue()

    def _epoch(self) -> int:
        assert self._mastership is not None
        return self._mastership.epoch

    def delivered(self, runs: Sequence[Run]) -> None:
        now, counts = self._world.clock.now, self._world.coverage.counts
        self._judge.delivered(runs, self._consumer.tag, self._number, self._epoch(), now)
        for run in runs:
            counts["queue: redelivered" if run.redelivered else "queue: delivered"] += 1
        self._stream.reply(lambda: self._consumer.delivered(self._stream, runs))

    def settled(self, positions: Sequence[Range]) -> None:
        now = self._world.clock.now
        self._judge.settled(positions, self._consumer.tag, self._epoch(), now)

    def active_changed(self, *, active: bool) -> None:
        pass

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        pass

    def ended(self, reason: Reason) -> None:
        self.moved(reason)

    def moved(self, reason: Reason) -> None:
        self._stream.reply(lambda: self._consumer.moved(self._stream))

    async def run(self) -> None:
        process, stream = self._stream.process, self._stream
        assert process is not None
        try:
            mastership = process.replica.serving()
            self._mastership = mastership
            prefetch = self._consumer.prefetch
            number, begin = mastership.open_consumer(self, ConsumerTerms(prefetch, 1 << 20))
        except BrokerError:
            stream.reply(lambda: self._consumer.moved(stream))
            return
        stream.reply(lambda: self._consumer.opened(stream))
        begin()
        try:
            while True:
                removed, requeued = await self.settlements.get()
                try:
                    mastership.subscribers.settle(number, acked=removed, requeued=requeued)
                except BrokerError:
                    stream.reply(lambda: self._consumer.moved(stream))
                    return
        finally:
            mastership.subscribers.close(number)
