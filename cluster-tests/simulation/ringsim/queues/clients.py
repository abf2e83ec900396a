"""Producers and consumers of a simulated queue.

A producer is the shipped `PublisherCore` under an id of its own, with a program around it whose
nth message has sequence n: it may die and come back, and goes on behind what it is told. A consumer
acks most of what it gets, gives some back, and sits on some until its stream ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from history import records as history

from ringmq.errors import ProducerForgottenError, RingMQError, UnavailableError
from ringmq.publishing.answers import Limits, Origin, PublishRefusal
from ringmq.publishing.core import PublisherCore, PublisherPhase
from ringmq.publishing.tickets import PERSISTENT
from ringmq_base.ranges import Range
from ringmq_node.model.reasons import Reason
from ringmq_node.queue.run import Run
from ringsim.queues.judge import QUEUE, body_of
from ringsim.queues.streams import ConsumerDoor, PublisherDoor, Stream

if TYPE_CHECKING:
    from ringsim.queues.course import QueueCourse
    from ringsim.queues.process import Process

LIMITS = Limits(1000, 10_000, 3)
FAR = 1e9
LOOK_S = 0.3
# A stream that brings nothing for so long is given up, and another node is tried.
PATIENCE_S = 1.5
RETRY_S = 0.1

REFUSALS = {
    Reason.SEQUENCE_GAP: PublishRefusal.GAP,
    Reason.UNKNOWN_PRODUCER: PublishRefusal.FORGOTTEN,
}


class Client:
    """Keeps a stream to the node that it takes for the master; else to any."""

    def __init__(self, course: QueueCourse, tag: str) -> None:
        self.tag = tag
        self._course = course
        self._clock, self._rng = course.world.clock, course.world.rng
        self._stream: Stream | None = None
        self._node = ""
        self._heard_at = 0.0
        self.is_gone = True

    @property
    def waits(self) -> bool:
        """Whether it is owed an answer."""
        return True

    def come(self) -> None:
        self.is_gone = False
        self._connect()
        self._clock.after(LOOK_S * self._rng.random(), self._look)

    def go(self) -> None:
        self.is_gone = True
        self._drop()

    def _connect(self) -> None:
        if self.is_gone or self._stream is not None:
            return
        names = tuple(self._course.world.machines)
        if not self._node or self._rng.random() < 0.3:
            self._node = self._rng.choice(names)
        self._heard_at = self._clock.now
        machine = self._course.world.machines[self._node]
        stream = self._stream = Stream(self._course, machine.process)
        if machine.process is not None:
            self._open(stream)

    def _open(self, stream: Stream) -> None:
        raise NotImplementedError

    def _look(self) -> None:
        if self.is_gone:
            return
        stream = self._stream
        silent = self.waits and self._clock.now > self._heard_at + PATIENCE_S
        if stream is not None and (stream.is_broken or silent):
            self._again()
        self._clock.after(LOOK_S, self._look)

    def _heard(self, stream: Stream) -> bool:
        """Whether this is said on the present stream."""
        if stream is not self._stream:
            return False
        self._heard_at = self._clock.now
        return True

    def _again(self) -> None:
        """Another stream, to any node."""
        self._drop()
        self._node = ""
        self._clock.after(RETRY_S * self._rng.random(), self._connect)

    def cut(self) -> None:
        """The stream breaks, between the client and a node that both go on."""
        if self._stream is not None:
            self._drop()
            self._connect()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class Producer(Client):
    """See the module."""

    def __init__(self, course: QueueCourse, tag: str) -> None:
        super().__init__(course, tag)
        # How many messages there are to be published, and the number of the next one. It is known
        # once the queue has told how far this producer is.
        self.wanted = 0
        self._next: int | None = None
        self._door: PublisherDoor | None = None
        self._opened_by = (0, "")
        # The queue doesn't know it any more, and it may not go on under its id.
        self.is_forgotten = False
        self._core = self._new_core()

    @property
    def producer_id(self) -> bytes:
        return self.tag.encode()

    def is_served_by(self, process: Process) -> bool:
        """Whether it has a stream there, on which it has been answered."""
        stream = self._stream
        is_open = self._core.phase is PublisherPhase.OPEN
        return is_open and stream is not None and stream.process is process

    def _new_core(self) -> PublisherCore[int, bytes]:
        window = self._rng.choice((2, 10))
        return PublisherCore(producer_id=self.producer_id, is_own_id=True, window_messages=window)

    @property
    def waits(self) -> bool:
        return self._core.phase is not PublisherPhase.OPEN or self._core.has_sent

    @property
    def is_done(self) -> bool:
        """Whether all that it has to publish is confirmed."""
        idle = self._next == self.wanted and not self._core.outstanding_messages
        return idle or self.is_forgotten or not self.wanted

    def publish(self, count: int) -> None:
        self.wanted += count
        self._submit()

    def restart(self) -> None:
        """The program dies, and knows nothing when it is there again."""
        for number in self._core.outstanding():
            self._note(history.Unknown(self._clock.now, QUEUE, self.tag, number, number, "died"))
        self._drop()
        self._core = self._new_core()
        self._next = None
        self._connect()

    def _note(self, record: history.Record) -> None:
        self._course.judge.note(record)

    def _open(self, stream: Stream) -> None:
        door = self._door = PublisherDoor(self._course, stream, self)
        stream.send(lambda: stream.serve(door.run()))

    def _drop(self) -> None:
        if self._core.phase is not PublisherPhase.CLOSED:
            self._core.ended()
        super()._drop()

    # --- what the node says ---

    def refused(self, stream: Stream) -> None:
        if self._heard(stream):
            self._again()

    def opened(self, stream: Stream, last: int, epoch: int) -> None:
        if not self._heard(stream) or self.is_gone:
            return
        if self._next is None and last < self._course.judge.sequence_of(self.tag):
            # It has come back, and would send again what is enqueued.
            self._forgotten()
            return
        try:
            self._core.opened(last, LIMITS, Origin(QUEUE, epoch))
        except UnavailableError:
            self._again()
            return
        except ProducerForgottenError:
            self._forgotten()
            return
        self._opened_by = (epoch, self._node)
        if self._next is None:
            self._next = last
        self._submit()

    def _forgotten(self) -> None:
        self._course.producer_forgotten(self)
        self.is_forgotten = True
        self.go()

    def confirmed(self, stream: Stream, sequences: Sequence[Range]) -> None:
        if self._heard(stream):
            for first, last in sequences:
                self._core.confirmed(first, last)
            self._go_on()

    def rejected(self, stream: Stream, first: int, last: int, reason: Reason) -> None:
        if not self._heard(stream):
            return
        refusal = REFUSALS.get(reason, PublishRefusal.RETRY)
        self._core.rejected(first, last, refusal, RingMQError(reason.name))
        self._course.world.coverage.counts[f"queue: refused: {reason.name}"] += 1
        self._again()

    def moved(self, stream: Stream) -> None:
        if self._heard(stream):
            self._core.moved()
            self._again()

    # --- going on ---

    def _submit(self) -> None:
        if self._next is None or self.is_gone:
            return
        while self._next < self.wanted and self._core.room:
            number, self._next = self._next, self._next + 1
            self._note(history.Publish(self._clock.now, QUEUE, self.tag, number, number))
            self._core.submit([body_of(self.tag, number)], (), (), PERSISTENT, FAR, number)
        self._go_on()

    def _go_on(self) -> None:
        core, stream = self._core, self._stream
        core.check()
        finished = core.take_finished()
        for ticket in finished:
            assert ticket.error is None, ticket.error
            epoch, master = self._opened_by
            number = ticket.handle
            self._note(
                history.Confirm(self._clock.now, QUEUE, self.tag, number, number, epoch, master)
            )
        if stream is None or self._door is None:
            return
        door = self._door
        while (flight := core.next_flight()) is not None:
            bodies = [body for part in flight.slices for body in part.bodies]
            batch = (flight.first, bodies)
            stream.send(partial(door.batches.put_nowait, batch))
        if finished:
            self._submit()


class Consumer(Client):
    """See the module."""

    def __init__(self, course: QueueCourse, tag: str) -> None:
        super().__init__(course, tag)
        self.prefetch = self._rng.choice((1, 3, 100))
        # From some time on it acks everything at once.
        self.is_diligent = False
        self._streams = 0
        self._door: ConsumerDoor | None = None

    @property
    def waits(self) -> bool:
        # It looks for the master again now and then, as it can't know whether messages are there.
        return self._rng.random() < 0.3

    def become_diligent(self) -> None:
        if not self.is_diligent:
            self.is_diligent = True
            # What it has forgotten about comes again.
            self._again()

    def _open(self, stream: Stream) -> None:
        self._streams += 1
        door = self._door = ConsumerDoor(self._course, stream, self, self._streams)
        stream.send(lambda: stream.serve(door.run()))

    def opened(self, stream: Stream) -> None:
        self._heard(stream)

    def moved(self, stream: Stream) -> None:
        if self._heard(stream):
            self._again()

    def delivered(self, stream: Stream, runs: Sequence[Run]) -> None:
        if not self._heard(stream):
            return
        for run in runs:
            for position in range(run.first_position, run.last_position + 1):
                self._clock.after(self._pause_s(), self._settle, stream, position)

    def _pause_s(self) -> float:
        return 0.0 if self.is_diligent else 0.2 * self._rng.random()

    def _settle(self, stream: Stream, position: int) -> None:
        door = self._door
        if stream is not self._stream or door is None:
            return
        chance = 0.0 if self.is_diligent else self._rng.random()
        if chance > 0.95:
            return  # It forgets about this one.
        part = [(position, position)]
        settlement = ([], part) if chance > 0.85 else (part, [])
        self._course.judge.acked.update(settlement[0])
        stream.send(lambda: door.settlements.put_nowait(settlement))
