"""Publishing to one queue: the client's shell around the core.

A call hands its bodies to the core and waits for one future. The stream's writer task takes all
bodies that have gathered since its last write. So the work is per call and per write, and per
message only if the user makes a call per message.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Unpack

from ringmq.calls.arguments import check_argument, checked
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.route import AnyNode, Route
from ringmq.errors import (
    BadRequestError,
    MessageTooLargeError,
    OutcomeUnknownError,
    RingMQError,
    TimedOutError,
    UnavailableError,
    WindowFullError,
    WrongTypeError,
)
from ringmq.model.messages import Properties
from ringmq.model.queues import ALARMS, BlockReason
from ringmq.publishing.asked import (
    MessageOptions,
    attributes_of,
    check_bodies,
    check_target,
    encoded_properties,
    listed_bodies,
)
from ringmq.publishing.core import PublisherCore
from ringmq.publishing.epochs import SeenEpoch
from ringmq.publishing.stream import Core, Future, PublisherSpeaker
from ringmq.publishing.tickets import Attributes, Ticket
from ringmq.streams.keeper import Keeper
from ringmq.streams.lifetime import Lifetime
from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_base.notifier import Notifier
from ringmq_base.timer import Timer

log = logging.getLogger(__name__)

PRODUCER_ID_BYTES = 16


class Publisher:
    """Made by `Client.publisher`; an async context manager.

    Leaving the context waits for all confirms (as `flush` does), unless it is left with an
    exception: then messages that are on their way fail with `OutcomeUnknownError`, and those that
    were not sent with `ClosedError`.
    """

    def __init__(
        self,
        nodes: KnownNodes,
        queue: str,
        seen: SeenEpoch | None,
        *,
        exchange: str | None = None,
        vhost: str = "",
        first_sequence: int | None = None,
        window_messages: int,
        window_bytes: int,
        producer_id: bytes | None,
        deadline_s: float,
        on_open: Callable[[Publisher], None],
        on_close: Callable[[Publisher], None],
        on_blocked: Callable[[tuple[BlockReason, ...]], None] | None = None,
        on_unblocked: Callable[[], None] | None = None,
    ) -> None:
        if window_messages < 1 or window_bytes < 1:
            raise BadRequestError(
                f"a window of {window_messages} messages and {window_bytes} bytes takes nothing: "
                "give at least 1 of each"
            )
        if producer_id is not None and not 1 <= len(producer_id) <= PRODUCER_ID_BYTES_MAX:
            raise BadRequestError(
                f"a producer id has 1 to {PRODUCER_ID_BYTES_MAX} bytes, not {len(producer_id)}",
                metadata={"field": "producer_id"},
            )
        check_target(queue, exchange, producer_id, first_sequence)
        self.queue = queue
        #: None: it publishes to a queue.
        self.exchange = exchange
        #: The name of either.
        self.target = queue if exchange is None else exchange
        self._what = _said(queue, exchange)
        self.deadline_s = deadline_s
        self._core: Core = PublisherCore(
            window_messages=window_messages,
            window_bytes=window_bytes,
            producer_id=os.urandom(PRODUCER_ID_BYTES) if producer_id is None else producer_id,
            is_own_id=producer_id is not None,
            seen=seen,
            is_routed=exchange is not None,
            first_sequence=first_sequence or 1,
        )
        self._on_open, self._on_close = on_open, on_close
        self._on_blocked, self._on_unblocked = on_blocked, on_unblocked
        self._blocked_by: tuple[BlockReason, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._name = f"ringmq-publisher-{self.target}"
        self._lifetime = Lifetime(f"publisher of {self._what}", self._fail_everything)
        speaker = PublisherSpeaker(
            self._core,
            self._lifetime,
            queue,
            exchange=exchange,
            vhost=vhost or nodes.vhost,
            ends_producer=producer_id is None,
            on_answer=self._answered,
            on_refusal=self._refused,
            on_block=self._block_told,
        )
        speaker.open_request()  # A fault in it is said now.
        route = Route(nodes, queue, vhost) if exchange is None else AnyNode(nodes)
        self._keeper = Keeper(speaker, route, self._name)
        self._timer = Timer(self._on_timer)
        self._room = Notifier()
        # Of `submit` and `publish_nowait`: those on their way, and the first failure, for `flush`.
        self._detached: set[Future] = set()
        self._detached_failure: RingMQError | None = None

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
        self._on_open(self)
        self._lifetime.start(self._keeper, self._name)
        try:
            await self._lifetime.wait_opened(self.deadline_s)
        except TimeoutError:
            trouble = self._core.why_waiting
            await self.close(flush=False)
            raise trouble or TimedOutError(
                f"{self._what}: no stream within {self.deadline_s:g} s"
            ) from None
        except BaseException:
            await self.close(flush=False)
            raise

    @checked
    async def close(self, *, flush: bool = True) -> None:
        """Waits for the messages on their way (with `flush`), then ends the stream. Idempotent."""
        try:
            if flush and not self._lifetime.closing:
                await self.flush()
        finally:
            # Also if the flush failed or was cancelled: the task and its stream must not outlive
            # the publisher.
            # A node reads nothing behind a batch that it holds, and an alarm may last for days: no
            # goodbye would be heard.
            is_held = not ALARMS.isdisjoint(self._blocked_by)
            if self._lifetime.close():
                self._fail_everything(self._lifetime.reason)
                await self._lifetime.end(self._keeper, at_once=is_held)
                # Also of an alarm, which may last: it holds nothing of this publisher.
                self._block_told(())
                self._on_close(self)

    # --- publishing ---

    async def publish(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Returns when the message is confirmed; raises if it is not within the deadline.

        Cancelling it does not take the message back.
        """
        await self.publishing(body, properties, deadline_s=deadline_s, **options)

    def publishing(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[None]:
        """What `publish` awaits: the message may wait for room in the window."""
        return self._submit((body,), properties, self._attributes(options), deadline_s)

    async def publish_batch(
        self,
        bodies: Iterable[bytes],
        properties: Properties | Sequence[Properties] | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Publishes in order, and returns when all are confirmed.

        Any number of bodies: the window is kept full with them. `properties`: none,
        the same for all, or one for each. On failure `error.failed` has the index
        ranges of the bodies that are not confirmed.
        """
        await self.publishing_batch(
            listed_bodies(bodies), properties, deadline_s=deadline_s, **options
        )

    def publishing_batch(
        self,
        bodies: Sequence[bytes],
        properties: Properties | Sequence[Properties] | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[None]:
        """What `publish_batch` awaits: its place in the order is that of this call. `bodies` may
        not change until it is done."""
        check_bodies(bodies)
        if bodies:
            return self._submit(bodies, properties, self._attributes(options), deadline_s)
        nothing: Future = self._loop.create_future()
        nothing.set_result(None)
        return nothing

    def publish_nowait(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[None]:
        """A future that is done when the message is confirmed; `WindowFullError` without room.

        One need not await it: `flush` reports failures, too.
        """
        if not self._core.room:
            raise WindowFullError(f"{self._window_full()}; `submit` waits for room")
        sent = self.publishing(body, properties, deadline_s=deadline_s, **options)
        self._detached.add(sent)
        return sent

    async def submit(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[None]:
        """Like `publish_nowait`, but waits for room in the window (within the deadline)."""
        if not self._core.room:
            await self._wait_room(self.deadline_s if deadline_s is None else deadline_s)
        sent = self.publishing(body, properties, deadline_s=deadline_s, **options)
        self._detached.add(sent)
        return sent

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

    # --- its state ---

    @property
    def producer_id(self) -> bytes:
        """The user's own, or a random one, which ends with the publisher. It never changes."""
        return self._core.producer_id

    @property
    def last_sequence(self) -> int:
        """The highest sequence of this producer in the queue when the stream was last opened.

        With a `producer_id` of one's own, kept over a restart, it is the number of its messages
        that have been enqueued. New messages are numbered from there.
        """
        return self._core.last_sequence

    @property
    def outstanding_messages(self) -> int:
        """Handed over, and neither confirmed nor failed."""
        return self._core.outstanding_messages

    @property
    def blocked_by(self) -> tuple[BlockReason, ...]:
        """Why the node holds our messages; empty: it doesn't, or not for longer than a second."""
        return self._blocked_by

    @property
    def properties_bytes_max(self) -> int:
        """The largest properties of a message, encoded, that the node takes."""
        return self._core.limits.properties_bytes_max

    @property
    def node_address(self) -> str:
        """The node that the stream goes to."""
        return self._keeper.peer

    # --- inside ---

    def _attributes(self, options: MessageOptions) -> Attributes:
        return attributes_of(options, is_routed=self.exchange is not None)

    def _submit(
        self,
        bodies: Sequence[bytes],
        properties: Properties | Sequence[Properties] | None,
        attributes: Attributes,
        deadline_s: float | None,
    ) -> Future:
        if deadline_s is not None:
            check_argument("deadline_s", deadline_s, float)
        if len(bodies) == 1:
            if type(bodies[0]) is not bytes:
                raise _no_body(type(bodies[0]))
            largest = len(bodies[0])
        else:
            strange = set(map(type, bodies)) - {bytes}
            if strange:
                raise _no_body(strange.pop())
            largest = max(map(len, bodies))
        encoded = () if properties is None else encoded_properties(properties, len(bodies))
        if not self._lifetime.usable:
            # A copy, or the tracebacks of all callers would grow together.
            raise self._lifetime.reason.copy()
        if largest > self._core.limits.message_bytes_max:
            raise self._too_large(bodies, largest)
        sizes = [*map(len, encoded)]
        if sizes and max(sizes) > self._core.limits.properties_bytes_max:
            raise self._properties_too_large(sizes, len(bodies))
        future = self._loop.create_future()
        deadline = self._loop.time() + (self.deadline_s if deadline_s is None else deadline_s)
        self._core.submit(bodies, encoded, sizes, attributes, deadline, future)
        self._timer.set_by(deadline)
        self._keeper.wake()
        return future

    def _too_large(self, bodies: Sequence[bytes], largest: int) -> MessageTooLargeError:
        index = next(i for i, body in enumerate(bodies) if len(body) == largest)
        limit = self._core.limits.message_bytes_max
        return _over_limit(
            f"a body of {largest} bytes (index {index}); {self._what} takes {limit}",
            len(bodies),
            size_bytes=largest,
            limit_bytes=limit,
            index=index,
        )

    def _properties_too_large(self, sizes: Sequence[int], count: int) -> MessageTooLargeError:
        """Said here: a node refuses a request whole, with the messages of other calls in it."""
        largest = max(sizes)
        index = sizes.index(largest)
        limit = self._core.limits.properties_bytes_max
        return _over_limit(
            f"properties of {largest} bytes (index {index}); {self._what} takes {limit}",
            count,
            size_bytes=largest,
            limit_bytes=limit,
            index=index,
            field="properties",
        )

    async def _wait_room(self, deadline_s: float) -> None:
        check_argument("deadline_s", deadline_s, float)
        try:
            async with asyncio.timeout(deadline_s):
                # Again after each wake-up: another waiter may have taken the room.
                while not self._core.room and not self._lifetime.over:
                    await self._room.wait()
        except TimeoutError:
            trouble = self._core.why_waiting
            if trouble is None or isinstance(trouble, OutcomeUnknownError):
                # Of this message it is known: it was never sent.
                raise UnavailableError(f"{self._window_full()} after {deadline_s:g} s") from None
            raise trouble.copy() from None

    def _window_full(self) -> str:
        core = self._core
        return (
            f"{self._what}: the window of {core.window_messages} messages and "
            f"{core.window_bytes} bytes is full: {core.outstanding_messages} are unconfirmed"
        )

    def _answered(self) -> None:
        self._settle()
        # The window may have room for the next batch.
        self._keeper.wake()

    def _refused(self, error: RingMQError) -> None:
        """No node will have the stream. The next message is the reason to try again."""
        self._fail_everything(error)

    def _block_told(self, reasons: tuple[BlockReason, ...]) -> None:
        # Each time: the core forgets it when a stream ends.
        self._core.blocked = None
        if reasons:
            why = ", ".join(reason.text for reason in reasons)
            self._core.blocked = UnavailableError(f"{self._what}: publishers are blocked: {why}")
        if reasons == self._blocked_by:
            return
        self._blocked_by = reasons
        try:
            if reasons and self._on_blocked is not None:
                self._on_blocked(reasons)
            elif not reasons and self._on_unblocked is not None:
                self._on_unblocked()
        except Exception:
            # The user's own: the stream has nothing to do with it.
            log.exception("publisher of %s: a callback has failed", self._what)

    def _settle(self) -> None:
        """Tells the callers of ended tickets, and those that wait for room."""
        for ticket in self._core.take_finished():
            future = ticket.handle
            is_detached = future in self._detached
            self._detached.discard(future)
            if future.done():
                continue  # cancelled by its caller
            if ticket.error is None:
                future.set_result(None)
                continue
            failure = _error_of(ticket, ticket.error)
            future.set_exception(failure)
            if is_detached:
                # Now: a callback of the future would come behind a `flush` that runs next.
                self._detached_failure = self._detached_failure or failure
                future.exception()  # asyncio logs those that nobody has asked for
        if self._core.room:
            self._room.notify()

    def _fail_everything(self, error: RingMQError) -> None:
        unknown = OutcomeUnknownError(f"not confirmed: {error}", reason=error.reason)
        self._core.fail_all(error, unknown=unknown)
        self._settle()
        self._lifetime.not_opened(error)
        self._timer.cancel()

    def _on_timer(self) -> None:
        self._core.expire(self._loop.time())
        self._settle()
        self._timer.set_at(self._core.next_deadline())


def _over_limit(text: str, count: int, **facts: object) -> MessageTooLargeError:
    """Of a call with `count` bodies, none of which is sent."""
    error = MessageTooLargeError(text, metadata={name: str(fact) for name, fact in facts.items()})
    error.failed = ((0, count - 1),)
    return error


def _no_body(kind: type) -> WrongTypeError:
    return WrongTypeError(f"a body is bytes, not {kind.__name__}", metadata={"field": "body"})


def _said(queue: str, exchange: str | None) -> str:
    if exchange is None:
        return f"queue {queue!r}"
    return f"exchange {exchange!r}" if exchange else "the default exchange"


def _error_of(ticket: Ticket[Future, bytes], error: RingMQError) -> RingMQError:
    """Each caller gets an exception of its own, or tracebacks would grow together."""
    own = error.copy()
    own.failed = tuple(sorted(ticket.failed))
    return own
