"""How a routed session reaches one queue: streams to its master, one after the other.

`broker.attempts` says where each stream goes. One to another node is a `RemoteStreams`, which the
gRPC door implements on our client. When a stream ends, everything that is unanswered goes out again
on the next one. That is safe: the producer id and the sequences are those of the client, and the
queue knows which of them it has.

A way ends by itself when the queue is deleted, when a newer session has the producer id, and when
it had nothing to do for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ringmq_base.ranges import Range
from ringmq_gm import RingClosedError
from ringmq_node.broker.attempts import Attempts, FindsMasters, may_pass
from ringmq_node.broker.publishing import Publishing
from ringmq_node.broker.routing.targets import SubBatch, TargetBatches
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.replica.sessions import PublisherSession
from ringmq_node.replica.upkeep import FullQueueRefusal
from ringmq_node.resources.flow import Reasons

# A queue is down when no stream to it has brought anything for so long. A failover takes less.
DOWN_AFTER_S = 10.0


class WayEnds(Protocol):
    """The session of a way: it hears the queue's answers. No method may block or raise."""

    def confirmed(self, queue: str, sequences: Sequence[Range]) -> None: ...
    def refused(self, queue: str, first: int, last: int, error: BrokerError) -> None: ...
    def deleted(self, queue: str) -> None: ...
    def down(self, queue: str, *, is_down: bool) -> None:
        """Whether it has taken nothing for `DOWN_AFTER_S`, as it has no master that could."""
        ...

    def held(self, queue: str, *, is_held: bool) -> None:
        """Whether its master holds a batch (`Way.block_reasons` says why)."""
        ...

    def fenced(self, queue: str) -> None:
        """A newer session has this producer."""
        ...

    def way_ended(self, way: Way) -> None:
        """Nothing is on it, and it takes nothing more."""
        ...


class Feed(Protocol):
    """What a stream to a queue's master is given and tells: its way."""

    @property
    def queue(self) -> str: ...
    @property
    def producer_id(self) -> bytes: ...
    @property
    def work(self) -> asyncio.Event:
        """Set when there may be a batch, or it is over."""
        ...

    @property
    def has_sent(self) -> bool: ...
    @property
    def is_over(self) -> bool:
        """Whether the stream is to be ended."""
        ...

    @property
    def ends_producer(self) -> bool:
        """Whether the queue is to hear then that it may forget the producer."""
        ...

    def end_told(self) -> None:
        """The master has heard that."""
        ...

    def next(self) -> SubBatch | None: ...
    def confirmed(self, sequences: Sequence[Range]) -> None: ...
    def refused(self, first: int, last: int, error: BrokerError) -> None: ...
    def held(self, reasons: Reasons) -> None:
        """Why the master holds a batch; empty: it goes on."""
        ...

    def master(self) -> tuple[str, int] | None:
        """The master that this node knows of, and the epoch of its view."""
        ...

    def newer_master(self, node: str, epoch: int) -> str:
        """The address of the master that has followed that one; empty: none is known."""
        ...


class RemoteStreams(Protocol):
    async def run(self, address: str, feed: Feed) -> None:
        """One stream to the master at `address`, to its end. Raises `BrokerError` if the node
        refuses it, has refused a batch that may be sent again, or doesn't answer."""
        ...


class WayHost(FindsMasters, Protocol):
    """The node, as its ways use it."""

    @property
    def remotes(self) -> RemoteStreams: ...
    @property
    def streams(self) -> asyncio.Semaphore:
        """Bounds the streams that are open."""
        ...

    def open_here(
        self, queue: str, session: PublisherSession, producer_id: bytes
    ) -> Awaitable[Publishing]: ...


class _Here:
    """The session of a stream that stays on this node."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.reason: Reason | None = None

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self._way.confirmed(sequences)

    def moved(self, reason: Reason) -> None:
        self.reason = reason
        self._way.work.set()


class Way:
    """`run` once, in a task of its own."""

    def __init__(self, queue: str, producer_id: bytes, host: WayHost, ends: WayEnds) -> None:
        self.queue = queue
        self.producer_id = producer_id
        self.work = asyncio.Event()
        self.is_over = self.ends_producer = False
        # The queue has to hear of the producer's end yet, over another stream if there is none now.
        self._owes_word = False
        # On the loop's clock.
        self.used_at = 0.0
        self._host = host
        self._ends = ends
        self._batches = TargetBatches()
        self._attempts = Attempts(queue, host)
        self._has_progress = False
        # Since when streams have brought nothing, on the loop's clock.
        self._failing_since: float | None = None
        self._is_down = False
        # Why the queue's master holds a batch; None: it doesn't.
        self._why_held: Callable[[], Reasons] | None = None

    # --- what its session asks for ---

    def give(self, batch: SubBatch) -> None:
        self.used_at = asyncio.get_running_loop().time()
        self._batches.add(batch)
        self.work.set()

    @property
    def is_idle(self) -> bool:
        return self._batches.is_idle

    def block_reasons(self) -> Reasons:
        """Empty while its master holds nothing."""
        return self._why_held() if self._why_held is not None else ()

    def end(self, *, ends_producer: bool, is_last: bool = False) -> None:
        """It has nothing to do, and will be given nothing more. `ends_producer`: nobody will repeat
        what was sent to this queue. `is_last`: no other way of this producer follows, so this one
        may open a stream to say so. That stream would fence the one of a way that follows."""
        assert self.is_idle
        self.is_over, self.ends_producer = True, ends_producer
        self._owes_word = ends_producer and is_last
        self.work.set()

    # --- what its streams tell (`Feed`) ---

    @property
    def has_sent(self) -> bool:
        return self._batches.has_sent

    def next(self) -> SubBatch | None:
        return self._batches.next()

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self._progress()
        self._batches.answered(sequences)
        self._ends.confirmed(self.queue, sequences)

    def refused(self, first: int, last: int, error: BrokerError) -> None:
        self._progress()
        self._batches.answered([(first, last)])
        self._ends.refused(self.queue, first, last, error)

    def held(self, reasons: Reasons) -> None:
        self._hold((lambda: reasons) if reasons else None)

    def _hold(self, why: Callable[[], Reasons] | None) -> None:
        changes = (why is None) is not (self._why_held is None)
        self._why_held = why
        if changes:
            self._ends.held(self.queue, is_held=why is not None)

    def end_told(self) -> None:
        self._owes_word = False

    def _progress(self) -> None:
        self._has_progress = True
        self._failing_since = None
        if self._is_down:
            self._is_down = False
            self._ends.down(self.queue, is_down=False)

    def _note_failure(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._is_down and now >= self._failing_since + DOWN_AFTER_S:
            self._is_down = True
            self._ends.down(self.queue, is_down=True)

    def master(self) -> tuple[str, int] | None:
        return self._host.master_of(self.queue)

    def newer_master(self, node: str, epoch: int) -> str:
        return self._host.newer_master(self.queue, node, epoch)

    # --- its life ---

    async def run(self) -> None:
        attempts = self._attempts
        while not self._is_done:
            self._has_progress = False
            try:
                async with self._host.streams:
                    try:
                        await attempts.stream(self._stream_here, self._stream_there)
                    finally:
                        self._hold(None)
            except RingClosedError:
                pass  # It is known by now where the queue went.
            except BrokerError as error:
                if not self._may_go_on(error):
                    return
            self._batches.stream_ended()
            if self._is_done:
                break
            if self._has_progress:
                attempts.succeeded()
            elif not self.is_idle:
                self._note_failure()
            await attempts.pause()
        self._ends.way_ended(self)

    @property
    def _is_done(self) -> bool:
        return self.is_over and not self._owes_word

    def _may_go_on(self, error: BrokerError) -> bool:
        """Whether to try again; if not, everything is answered."""
        if self.is_over:
            # A newer way to this queue has ended its last stream, for example. Then, or if the
            # queue is gone, there is nobody to tell.
            self._owes_word = self._owes_word and may_pass(error)
            return True
        if may_pass(error):
            return True
        left = self._batches.take_all()
        self.is_over = True
        if error.reason is Reason.QUEUE_NOT_FOUND:
            self._ends.deleted(self.queue)
        elif error.reason is Reason.PRODUCER_FENCED:
            self._ends.fenced(self.queue)
        else:
            for first, last in left:
                self._ends.refused(self.queue, first, last, error)
        self._ends.way_ended(self)
        return False

    async def _stream_there(self, address: str) -> None:
        await self._host.remotes.run(address, self)

    async def _stream_here(self) -> None:
        session = _Here(self)
        publishing = await self._host.open_here(self.queue, session, self.producer_id)
        try:
            while session.reason is None and not self.is_over:
                batch = self._batches.next()
                if batch is None:
                    self.work.clear()
                    await self.work.wait()
                    continue
                if not publishing.has_room:
                    self._hold(publishing.block_reasons)
                    await publishing.wait_room(batch.size_bytes)
                    self._hold(None)
                if session.reason is not None:
                    break
                try:
                    publishing.publish(
                        batch.first,
                        batch.bodies,
                        batch.properties,
                        transient=batch.transient,
                        message_id=batch.message_id,
                        ttl_ms=batch.ttl_ms,
                        priority=batch.priority,
                    )
                except FullQueueRefusal as error:
                    # The others are in the queue, and will be confirmed.
                    for first, last in error.sequences:
                        self.refused(first, last, error)
                except BrokerError as error:
                    if error.retryable:
                        raise
                    self.refused(batch.first, batch.last, error)
        finally:
            publishing.close(has_ended=self.ends_producer)
        if self.ends_producer and session.reason is None:
            self.end_told()
        if session.reason in (Reason.QUEUE_NOT_FOUND, Reason.PRODUCER_FENCED):
            raise BrokerError(session.reason, f"queue {self.queue!r}: {session.reason.name}")
