"""Consuming from one queue: batches in, acks out as ranges.

A delivery belongs to the stream that it came on. Each stream that this consumer
opens is a *generation*; after a break (a failover, a restart) what was not settled
comes again on the next one, with `redelivered` set, and an ack of a batch of an
older generation does nothing but return False. What had come and was not yet
handed to the user when the stream broke is dropped: it comes again anyway.

`ack` and `nack` only note the positions; the writer sends what has gathered since
the last write as one Settle with merged ranges.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Literal

import grpc.aio

from ringmq.calls.channels import Channels, Node, Route
from ringmq.calls.requests import request_of
from ringmq.calls.status import from_reason
from ringmq.errors import (
    BadRequestError,
    ClosedError,
    ProtocolError,
    RingMQError,
    TimedOutError,
    UnknownDeliveryError,
)
from ringmq.model import Batch, Message
from ringmq.streams.keeper import Keeper, Owner
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import Range, RangeSet

#: How long the last acks and the end of the stream may take when a consumer is closed.
CLOSE_S = 5.0

Verb = Literal["ack", "requeue", "discard"]


class _Settling:
    """Positions whose `Settled` somebody waits for."""

    __slots__ = ("done", "left")

    def __init__(self, ranges: Iterable[Range], done: asyncio.Future[bool]) -> None:
        self.left = RangeSet(ranges)
        self.done = done


class Consumer:
    """Made by `Client.consumer`; an async context manager and an async iterator of `Batch`.

    Leaving the context sends the acks that are waiting and ends the stream; what is
    not settled goes back to the queue.
    """

    def __init__(
        self,
        channels: Channels,
        queue: str,
        *,
        prefetch: int,
        prefetch_bytes: int,
        consumer_tag: str,
        deadline_s: float,
        on_close: Callable[[Consumer], None],
    ) -> None:
        if prefetch < 0 or prefetch_bytes < 0:
            raise BadRequestError("a prefetch is 0 (the node's default) or more")
        self.queue = queue
        self.deadline_s = deadline_s
        self.consumer_tag = consumer_tag
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        stream = _Stream(self)
        stream.open_request()  # What is wrong with it is said now.
        self._keeper = Keeper(stream, Route(channels, queue), f"ringmq-consumer-{queue}")
        self._runner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._trouble: RingMQError | None = None
        self._over: RingMQError | None = None
        self._closing = self._cancel_sent = False
        #: The number of the present stream, or the last one; the first is 1.
        self.generation = 0
        self._live = False
        self._batches: deque[Batch] = deque()
        self._wanted: asyncio.Future[None] | None = None
        # Handed to the user on this stream and not settled.
        self._held = RangeSet()
        self._outbox: dict[Verb, RangeSet] = {
            "ack": RangeSet(),
            "requeue": RangeSet(),
            "discard": RangeSet(),
        }
        self._settling: list[_Settling] = []

    # --- life ---

    async def __aenter__(self) -> Consumer:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Opens the stream; raises why it can't be within the deadline."""
        assert self._runner is None, "a consumer is opened once"
        self._runner = self._loop.create_task(self._run(), name=f"ringmq-consumer-{self.queue}")
        try:
            async with asyncio.timeout(self.deadline_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise self._trouble or TimedOutError(
                f"queue {self.queue!r}: no stream within {self.deadline_s:g} s"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Sends what is noted, ends the stream. Iteration ends. Idempotent."""
        if self._runner is None or self._closing:
            return
        self._closing = True
        self._end(ClosedError("the consumer has been closed"))
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
            self._end(ClosedError("the consumer has been closed"))
            raise
        except BaseException as bug:
            error = ProtocolError(f"the consumer failed: {bug!r}")
            error.__cause__ = bug
            self._end(error)
        finally:
            # Also if the keeper could not say that the stream is over.
            self._stream_over()

    def _end(self, error: RingMQError) -> None:
        """No more batches: the iterator raises `error`, or just ends if it was closed."""
        if self._over is None:
            self._over = error
        self._batches.clear()
        self._wake_reader()
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody need be waiting

    # --- batches ---

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """The next batch; None when the consumer is closed, or nothing came in `timeout_s`."""
        if not self._batches:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wait_batch()
            except TimeoutError:
                return None
        if self._over is not None:
            if isinstance(self._over, ClosedError):
                return None
            raise self._over.copy()
        batch = self._batches.popleft()
        for first, last in batch.positions:
            self._held.add(first, last)
        return batch

    async def _wait_batch(self) -> None:
        while not self._batches and self._over is None:
            if self._wanted is not None:
                raise RuntimeError("a consumer is iterated by one task at a time")
            self._wanted = self._loop.create_future()
            try:
                await self._wanted
            finally:
                self._wanted = None

    def _wake_reader(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    # --- settling ---

    async def ack(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        """Takes messages off the queue: a batch, a slice of one, a message, or `first, last`.

        Returns True if the acks go out on the stream that the messages came on, and
        False if that stream has ended: then they are delivered again. With `wait`,
        True means that the acks are as safe as a confirmed message, and False that
        the stream ended before that was known: they may be delivered again. If it isn't
        known within `deadline_s` (default: the consumer's) it raises `TimedOutError`: so it
        does while fewer replicas than `min_insync` are synchronised. The acks have gone out.

        Bare positions mean messages of the present stream. Raises
        `UnknownDeliveryError` for what was settled before or never handed out.
        """
        return await self._settle("ack", what, last, wait, deadline_s)

    async def nack(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        requeue: bool = True,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        """Puts messages back in their places, or with `requeue=False` discards them.

        As `ack` otherwise. Requeues can't be waited for: nodes don't report them.
        """
        if requeue and wait:
            raise BadRequestError("a requeue is not reported, so it can't be waited for")
        verb: Verb = "requeue" if requeue else "discard"
        return await self._settle(verb, what, last, wait, deadline_s)

    async def _settle(
        self,
        verb: Verb,
        what: Batch | Message | int,
        last: int | None,
        wait: bool,
        deadline_s: float | None,
    ) -> bool:
        generation = self.generation
        if isinstance(what, Batch):
            ranges = what.positions
            generation = what.generation
        elif isinstance(what, Message):
            ranges = [(what.position, what.position)]
            generation = what.generation
        else:
            ranges = [(what, what if last is None else last)]
        if self._closing or generation != self.generation or not self._live:
            return False
        for first, end in ranges:
            if not 0 <= first <= end or not self._held.contains_all(first, end):
                raise UnknownDeliveryError(
                    f"queue {self.queue!r}: positions {first}..{end} are settled already, "
                    f"or not of this stream (generation {self.generation})"
                )
        outbox = self._outbox[verb]
        for first, end in ranges:
            self._held.remove(first, end)
            outbox.add(first, end)
        self._keeper.wake()
        if not wait or not ranges:
            return True
        settling = _Settling(ranges, self._loop.create_future())
        self._settling.append(settling)
        wait_s = self.deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(wait_s):
                return await settling.done
        except TimeoutError:
            raise TimedOutError(
                f"queue {self.queue!r}: not known after {wait_s:g} s whether the {verb} is safe: "
                "these messages may be delivered again"
            ) from None
        finally:
            if settling in self._settling:
                self._settling.remove(settling)

    def _stream_over(self) -> None:
        """What was not settled comes again on the next stream, if there is one."""
        self._live = False
        self._batches.clear()
        self._held.clear()
        for ranges in self._outbox.values():
            ranges.clear()
        settling, self._settling = self._settling, []
        for each in settling:
            if not each.done.done():
                each.done.set_result(False)

    # --- what is going on ---

    @property
    def unsettled_messages(self) -> int:
        """Handed out on the present stream, and neither acked nor nacked."""
        return len(self._held)

    @property
    def node_address(self) -> str:
        """The node that the stream goes to."""
        return self._keeper.peer


class _Stream(Owner[broker.ConsumeRequest, broker.ConsumeResponse]):
    """What goes over a consumer's stream."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def start_call(
        self, node: Node
    ) -> grpc.aio.StreamStreamCall[broker.ConsumeRequest, broker.ConsumeResponse]:
        return node.broker.Consume()

    def open_request(self) -> broker.ConsumeRequest:
        opening = request_of(
            broker.ConsumeOpen,
            queue=self._consumer.queue,
            prefetch_messages=self._consumer._prefetch,
            prefetch_bytes=self._consumer._prefetch_bytes,
            consumer_tag=self._consumer.consumer_tag,
        )
        return broker.ConsumeRequest(open=opening)

    def opened(self, response: broker.ConsumeResponse) -> int:
        kind = response.WhichOneof("response")
        if kind == "cancelled":
            raise from_reason(response.cancelled.reason)
        if kind != "opened":
            raise ProtocolError(f"expected ConsumeOpened, got {kind}")
        self._consumer.generation += 1
        self._consumer._live = True
        self._consumer._trouble = None
        self._consumer.consumer_tag = response.opened.consumer_tag or self._consumer.consumer_tag
        if not self._consumer._ready.done():
            self._consumer._ready.set_result(None)
        return response.opened.heartbeat_ms

    def received(self, response: broker.ConsumeResponse) -> bool:
        kind = response.WhichOneof("response")
        if kind == "deliveries":
            if self._consumer._over is None:
                batch = Batch.from_wire(response.deliveries.deliveries, self._consumer.generation)
                if batch:
                    self._consumer._batches.append(batch)
                    self._consumer._wake_reader()
        elif kind == "settled":
            self._on_settled(response.settled.positions)
        elif kind == "cancelled" and not self._consumer._closing:
            raise from_reason(
                response.cancelled.reason or common.REASON_QUEUE_NOT_FOUND,
                f"queue {self._consumer.queue!r}: the node has cancelled this consumer",
            )
        return True

    def _on_settled(self, positions: Iterable[common.Range]) -> None:
        if not self._consumer._settling:
            return
        ranges = [(each.first, each.last) for each in positions]
        for settling in self._consumer._settling:
            settling.left.subtract(ranges)
            if not settling.left and not settling.done.done():
                settling.done.set_result(True)
        self._consumer._settling = [each for each in self._consumer._settling if each.left]

    def next_request(self) -> broker.ConsumeRequest | None:
        outbox = self._consumer._outbox
        if outbox["ack"] or outbox["requeue"] or outbox["discard"]:
            request = broker.ConsumeRequest()
            settle = request.settle
            for ranges, field in (
                (outbox["ack"], settle.ack),
                (outbox["requeue"], settle.requeue),
                (outbox["discard"], settle.discard),
            ):
                field.extend([common.Range(first=first, last=last) for first, last in ranges])
                ranges.clear()
            return request
        if self._consumer._closing and not self._consumer._cancel_sent:
            self._consumer._cancel_sent = True
            return broker.ConsumeRequest(cancel=broker.ConsumeCancel())
        return None

    def heartbeat(self) -> broker.ConsumeRequest:
        return broker.ConsumeRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        # What is noted still goes out; what is acked from now on would be too late.
        self._consumer._live = False

    @property
    def finishing(self) -> bool:
        return self._consumer._closing or not self._consumer._live

    def ended(self, trouble: RingMQError | None) -> float:
        self._consumer._trouble = trouble or self._consumer._trouble
        self._consumer._stream_over()
        return 0.0

    def refused(self, error: RingMQError) -> None:
        self._consumer._end(error)
        self._consumer._keeper.stop()
