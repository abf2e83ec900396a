"""Publishing to one queue: the shell around `publisher_core`.

A call hands its bodies to the core and waits for one future; the writer task of
the stream takes what has gathered. Nothing here is per message except where the
user calls per message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from types import TracebackType

import grpc.aio

from ringmq.calls.channels import Channels, Node, Route
from ringmq.calls.requests import request_of
from ringmq.calls.status import from_reason
from ringmq.errors import (
    BadRequestError,
    ClosedError,
    MessageTooLargeError,
    OutcomeUnknownError,
    ProtocolError,
    RingMQError,
    TimedOutError,
    UnavailableError,
    WindowFullError,
)
from ringmq.model import Properties
from ringmq.publishing.core import NO_LIMITS, Flight, Limits, PublisherCore, Ticket
from ringmq.streams.keeper import Keeper, Owner
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_base.timer import Timer

PRODUCER_ID_BYTES = 16
#: How long the stream may take to say goodbye when a publisher is closed.
CLOSE_S = 5.0

Future = asyncio.Future[None]
WireProperties = Sequence[common.Properties]


def _wire_properties(
    properties: Properties | Sequence[Properties] | None, count: int
) -> WireProperties:
    if properties is None:
        return ()
    if isinstance(properties, Properties):
        return (properties.to_wire(),)
    if len(properties) != count:
        raise BadRequestError(
            f"{len(properties)} properties for {count} bodies: give none, one, or one for each",
            metadata={"field": "properties"},
        )
    return [each.to_wire() for each in properties]


class Publisher:
    """Made by `Client.publisher`; an async context manager.

    Leaving the context waits for all confirms (as `flush` does), unless it is left
    with an exception: then what is unconfirmed fails with `OutcomeUnknownError`.
    """

    def __init__(
        self,
        channels: Channels,
        queue: str,
        *,
        window_messages: int,
        window_bytes: int,
        producer_id: bytes | None,
        deadline_s: float,
        on_close: Callable[[Publisher], None],
    ) -> None:
        if window_messages < 1 or window_bytes < 1:
            raise BadRequestError("a window is at least one message and one byte")
        if producer_id is not None and not 1 <= len(producer_id) <= PRODUCER_ID_BYTES_MAX:
            raise BadRequestError(
                f"a producer id has 1 to {PRODUCER_ID_BYTES_MAX} bytes, not {len(producer_id)}",
                metadata={"field": "producer_id"},
            )
        self.queue = queue
        self.deadline_s = deadline_s
        self._core: PublisherCore[Future] = PublisherCore(
            new_id=lambda: os.urandom(PRODUCER_ID_BYTES),
            window_messages=window_messages,
            window_bytes=window_bytes,
            producer_id=producer_id,
        )
        self._channels = channels
        self._limits = NO_LIMITS
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        stream = _Stream(self)
        stream.open_request()  # What is wrong with it is said now.
        self._keeper = Keeper(stream, Route(channels, queue), f"ringmq-publisher-{queue}")
        self._runner: asyncio.Task[None] | None = None
        self._ready: Future = self._loop.create_future()
        self._closing = False
        self._dead: RingMQError | None = None
        self._refused: RingMQError | None = None
        self._timer = Timer(self._on_timer)
        self._room: list[Future] = []
        # The first failure of a `submit` or `publish_nowait`, which `flush` reports.
        self._detached_failure: BaseException | None = None

    # --- life ---

    async def __aenter__(self) -> Publisher:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    async def open(self) -> None:
        """Opens the stream; raises why it can't be within the deadline."""
        assert self._runner is None, "a publisher is opened once"
        self._runner = self._loop.create_task(self._run(), name=f"ringmq-publisher-{self.queue}")
        try:
            async with asyncio.timeout(self.deadline_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            trouble = self._core.trouble
            await self.close(flush=False)
            raise trouble or TimedOutError(
                f"queue {self.queue!r}: no stream within {self.deadline_s:g} s"
            ) from None
        except BaseException:
            await self.close(flush=False)
            raise

    async def close(self, *, flush: bool = True) -> None:
        """Waits for what is on its way (with `flush`), then ends the stream. Idempotent."""
        if self._runner is None or self._closing:
            return
        try:
            if flush:
                await self.flush()
        finally:
            self._closing = True
            self._fail_everything(ClosedError("the publisher has been closed"))
            self._keeper.stop()
            _, late = await asyncio.wait([self._runner], timeout=CLOSE_S)
            if late:
                self._runner.cancel()
                await asyncio.wait([self._runner])
            self._on_close(self)

    async def _run(self) -> None:
        try:
            await self._keeper.run()
        except asyncio.CancelledError:
            self._dead = ClosedError("the publisher has been closed")
            raise
        except BaseException as bug:
            # Every caller is told; the task's own exception has been taken by this.
            self._dead = ProtocolError(f"the publisher failed: {bug!r}")
            self._dead.__cause__ = bug
        finally:
            if self._dead is not None:
                self._fail_everything(self._dead)

    # --- publishing ---

    async def publish(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        transient: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Returns when the message is confirmed; raises if it is not within the deadline.

        Cancelling it does not take the message back.
        """
        await self._submit((body,), properties, transient, deadline_s)

    async def publish_batch(
        self,
        bodies: Iterable[bytes],
        properties: Properties | Sequence[Properties] | None = None,
        *,
        transient: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Publishes in order, and returns when all are confirmed.

        Any number of bodies: the window is kept full with them. `properties`: none,
        the same for all, or one for each. On failure `error.failed` has the index
        ranges of the bodies that are not confirmed.
        """
        listed = list(bodies)
        if listed:
            await self._submit(listed, properties, transient, deadline_s)

    def publish_nowait(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        transient: bool = False,
        deadline_s: float | None = None,
    ) -> asyncio.Future[None]:
        """A future that is done when the message is confirmed; `WindowFullError` without room.

        One need not await it: `flush` reports failures, too.
        """
        if not self._core.room:
            raise WindowFullError(
                f"queue {self.queue!r}: {self._core.outstanding_messages} messages are unconfirmed"
            )
        return self._detach(self._submit((body,), properties, transient, deadline_s))

    async def submit(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        transient: bool = False,
        deadline_s: float | None = None,
    ) -> asyncio.Future[None]:
        """Like `publish_nowait`, but waits for room in the window (within the deadline)."""
        if not self._core.room:
            await self._wait_room(self.deadline_s if deadline_s is None else deadline_s)
        return self._detach(self._submit((body,), properties, transient, deadline_s))

    async def flush(self) -> None:
        """Waits until everything handed over before is confirmed or has failed.

        Raises the first failure of a `submit` or `publish_nowait` since the last flush.
        """
        waiting = [future for future in self._core.outstanding() if not future.done()]
        if waiting:
            await asyncio.wait(waiting)
        failure, self._detached_failure = self._detached_failure, None
        if failure is not None:
            raise failure

    # --- what is going on ---

    @property
    def producer_id(self) -> bytes:
        """Changes when the node refuses a message for good, or has forgotten the old one."""
        return self._core.producer_id

    @property
    def last_sequence(self) -> int:
        """What the queue had of this producer when the stream was last opened.

        With a `producer_id` of one's own, kept over a restart: how many of its messages
        have been enqueued. New messages are numbered from there.
        """
        return self._core.last_sequence

    @property
    def outstanding_messages(self) -> int:
        """Handed over, and neither confirmed nor failed."""
        return self._core.outstanding_messages

    @property
    def node_address(self) -> str:
        """The node that the stream goes to."""
        return self._keeper.peer

    # --- inside ---

    def _submit(
        self,
        bodies: Sequence[bytes],
        properties: Properties | Sequence[Properties] | None,
        transient: bool,
        deadline_s: float | None,
    ) -> Future:
        if self._closing or self._dead is not None or self._runner is None:
            raise self._dead or ClosedError("the publisher is not open")
        if len(bodies) == 1:
            if type(bodies[0]) is not bytes:
                raise TypeError(f"a body is bytes, not {type(bodies[0]).__name__}")
            largest = len(bodies[0])
        else:
            strange = set(map(type, bodies)) - {bytes}
            if strange:
                raise TypeError(f"a body is bytes, not {strange.pop().__name__}")
            largest = max(map(len, bodies))
        if largest > self._limits.message_bytes_max:
            raise self._too_large(bodies, largest)
        future = self._loop.create_future()
        deadline = self._loop.time() + (self.deadline_s if deadline_s is None else deadline_s)
        wire = () if properties is None else _wire_properties(properties, len(bodies))
        self._core.submit(bodies, wire, transient, deadline, future)
        self._timer.set_by(deadline)
        if self._refused is not None:
            self._refused = None
            self._keeper.retry()
        self._keeper.wake()
        return future

    def _too_large(self, bodies: Sequence[bytes], largest: int) -> MessageTooLargeError:
        index = next(i for i, body in enumerate(bodies) if len(body) == largest)
        limit = self._limits.message_bytes_max
        error = MessageTooLargeError(
            f"a body of {largest} bytes (index {index}); queue {self.queue!r} takes {limit}",
            metadata={"size_bytes": str(largest), "limit_bytes": str(limit), "index": str(index)},
        )
        error.failed = ((0, len(bodies) - 1),)
        return error

    def _detach(self, future: Future) -> Future:
        future.add_done_callback(self._detached_done)
        return future

    def _detached_done(self, future: Future) -> None:
        if not future.cancelled() and (failure := future.exception()) is not None:
            self._detached_failure = self._detached_failure or failure

    async def _wait_room(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                while not self._core.room:
                    if self._closing or self._dead is not None:
                        return
                    waiter = self._loop.create_future()
                    self._room.append(waiter)
                    await waiter
        except TimeoutError:
            raise self._core.trouble or UnavailableError(
                f"queue {self.queue!r}: the window was full for {deadline_s:g} s"
            ) from None

    def _settle(self) -> None:
        """Tells those whose messages have ended, and those who wait for room."""
        for ticket in self._core.take_finished():
            future = ticket.handle
            if future.done():
                continue  # cancelled by its caller
            if ticket.error is None:
                future.set_result(None)
            else:
                future.set_exception(_error_of(ticket))
        if self._room and self._core.room:
            waiters, self._room = self._room, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _fail_everything(self, error: RingMQError) -> None:
        unknown = OutcomeUnknownError(f"not confirmed: {error}", reason=error.reason)
        self._core.fail_all(error, maybe_error=unknown)
        self._settle()
        for waiter in self._room:
            if not waiter.done():
                waiter.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody need be waiting
        self._timer.cancel()

    def _on_timer(self) -> None:
        self._core.expire(self._loop.time())
        self._settle()
        self._timer.set_at(self._core.next_deadline())


class _Stream(Owner[broker.PublishRequest, broker.PublishResponse]):
    """What goes over a publisher's stream: from responses to the core's events, and back."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._pause_s = 0.0

    def start_call(
        self, node: Node
    ) -> grpc.aio.StreamStreamCall[broker.PublishRequest, broker.PublishResponse]:
        return node.broker.Publish()

    def open_request(self) -> broker.PublishRequest:
        opening = request_of(
            broker.PublishOpen,
            queue=self._publisher.queue,
            producer_id=self._publisher._core.identity(),
        )
        return broker.PublishRequest(open=opening)

    def opened(self, response: broker.PublishResponse) -> int:
        if response.WhichOneof("response") != "opened":
            raise ProtocolError(f"expected PublishOpened, got {response.WhichOneof('response')}")
        opened = response.opened
        self._publisher._limits = Limits(
            opened.message_bytes_max or NO_LIMITS.message_bytes_max,
            opened.batch_bytes_max or NO_LIMITS.batch_bytes_max,
            opened.batch_messages_max or NO_LIMITS.batch_messages_max,
        )
        self._publisher._core.opened(opened.last_sequence, self._publisher._limits)
        if not self._publisher._ready.done():
            self._publisher._ready.set_result(None)
        return opened.heartbeat_ms

    def received(self, response: broker.PublishResponse) -> bool:
        if response.HasField("confirmed"):
            for sequences in response.confirmed.sequences:
                self._publisher._core.confirmed(sequences.first, sequences.last)
            self._publisher._settle()
            self._publisher._keeper.wake()
            return True
        if response.HasField("rejected"):
            rejected = response.rejected
            retry_s = rejected.retry_after_ms / 1000
            error = from_reason(rejected.reason, rejected.message, retry_after_s=retry_s)
            self._publisher._core.rejected(
                rejected.sequences.first, rejected.sequences.last, rejected.retryable, error
            )
            if rejected.retryable:
                self._pause_s = max(self._pause_s, retry_s)
            self._publisher._settle()
            self._publisher._keeper.wake()
        return False

    def next_request(self) -> broker.PublishRequest | None:
        flight = self._publisher._core.next_flight()
        return None if flight is None else _request_of(flight)

    def heartbeat(self) -> broker.PublishRequest:
        return broker.PublishRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        self._publisher._core.moved()

    @property
    def finishing(self) -> bool:
        return self._publisher._core.finishing or self._publisher._closing

    def ended(self, trouble: RingMQError | None) -> float:
        self._publisher._core.ended(trouble)
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def refused(self, error: RingMQError) -> None:
        self._publisher._refused = error
        self._publisher._fail_everything(error)


def _error_of(ticket: Ticket[Future]) -> RingMQError:
    """Each caller gets an exception of its own, or tracebacks would grow together."""
    assert ticket.error is not None
    error = ticket.error.copy()
    error.failed = tuple(sorted(ticket.failed))
    return error


def _request_of(flight: Flight[Future]) -> broker.PublishRequest:
    request = broker.PublishRequest()
    batch = request.batch
    batch.first_sequence = flight.first
    batch.transient = flight.transient
    runs = flight.runs
    if len(runs) == 1:
        run = runs[0]
        batch.bodies.extend(run.bodies[run.start : run.stop])
        if run.properties:
            one_each = len(run.properties) > 1
            batch.properties.extend(
                run.properties[run.start : run.stop] if one_each else run.properties
            )
        return request
    batch.bodies.extend(chain.from_iterable(run.bodies[run.start : run.stop] for run in runs))
    if any(run.properties for run in runs):
        empty = common.Properties()
        for run in runs:
            if len(run.properties) > 1:
                batch.properties.extend(run.properties[run.start : run.stop])
            else:
                each = run.properties[0] if run.properties else empty
                batch.properties.extend([each] * run.count)
    return request
