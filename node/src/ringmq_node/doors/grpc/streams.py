"""The publish and consume streams, on the node that is the queue's master."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import HEARTBEATS_MISSED_MAX, PRODUCER_ID_BYTES_MAX
from ringmq_base.ranges import Range
from ringmq_gm import Refusal, RingClosedError
from ringmq_node.broker.deleting import check_not_deleting
from ringmq_node.doors.grpc.service import Context, Outbox, parse
from ringmq_node.model.reasons import BrokerError
from ringmq_node.queue.run import Run
from ringmq_node.replica.replica import Replica

BATCH_BYTES_MAX = 1024 * 1024
BATCH_MESSAGES_MAX = 8192
PREFETCH_MESSAGES = 1000
PREFETCH_MESSAGES_MAX = 1_000_000
PREFETCH_BYTES = 16 * 1024 * 1024
PREFETCH_BYTES_MAX = 1024 * 1024 * 1024
# How long a client that does not read may hold up the end of its stream.
LAST_WRITE_S = 5.0


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a node tells its clients when they open a stream."""

    node: str
    message_bytes_max: int
    properties_bytes_max: int
    heartbeat_s: float
    locate: Callable[[str], tuple[str, str]]


class Stream:
    """What both kinds of stream have in common: reading, writing, heartbeats, the end."""

    def __init__(self, context: Context, replica: Replica, limits: StreamLimits) -> None:
        self.replica = replica
        self.limits = limits
        self.outbox = Outbox(context, self.ranges_response)
        self._context = context
        self._heard = True
        # What was read last waits for the ring; nothing more is read meanwhile.
        self._held_back = False

    async def run(self) -> None:
        """Until the client ends it, the replica stops serving, or either falls silent."""
        reader = asyncio.create_task(self._read(), name="stream reader")
        writer = asyncio.create_task(self.outbox.run(), name="stream writer")
        tasks = [reader, writer, asyncio.create_task(self._keep_alive(), name="stream heartbeat")]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                with suppress(RingClosedError):  # the client has been told by then
                    task.result()
            if reader in done:
                # The client will send no more; what it has been answered still goes out.
                self.outbox.close()
                await asyncio.wait([writer], timeout=self.limits.heartbeat_s)
        finally:
            self.closed()
            # A status can't be sent while a message is being written: gRPC refuses that,
            # and the client would hear nothing at all.
            self.outbox.drop()
            await asyncio.wait([writer], timeout=LAST_WRITE_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            data: Any = await self._context.read()
            if data is grpc.aio.EOF:
                return
            self._heard = True
            await self.outbox.wait_room()
            self._held_back = True
            while self.replica.ring.refusal() is Refusal.FULL:
                await self.replica.ring.wait_writable()
            self._held_back = False
            self.received(data)

    async def _keep_alive(self) -> None:
        silent = 0
        while silent < HEARTBEATS_MISSED_MAX:
            written = self.outbox.written
            await asyncio.sleep(self.limits.heartbeat_s)
            progress = self.outbox.written != written
            # Whom this end does not read can't be heard. If that is because the peer doesn't
            # read its answers, reading some is the only sign of life that there can be.
            alive = self._heard or self._held_back or (self.outbox.full and progress)
            silent = 0 if alive else silent + 1
            self._heard = False
            if not progress and self.outbox.empty:
                self.outbox.put(self.heartbeat())

    def moved(self, reason: common.Reason.ValueType) -> None:
        """The replica does not serve any more."""
        node, address = self.limits.locate(self.replica.record.name)
        self.outbox.put(
            self.moved_response(broker.Moved(node=node, address=address, reason=reason))
        )
        self.outbox.close()

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Takes one request."""

    @abstractmethod
    def closed(self) -> None: ...

    @abstractmethod
    def ranges_response(
        self, ranges: Sequence[Range]
    ) -> broker.PublishResponse | broker.ConsumeResponse:
        """What says that these are confirmed, or settled."""

    @abstractmethod
    def heartbeat(self) -> broker.PublishResponse | broker.ConsumeResponse: ...

    @abstractmethod
    def moved_response(
        self, moved: broker.Moved
    ) -> broker.PublishResponse | broker.ConsumeResponse: ...


class PublishStream(Stream):
    """Batches in, confirms out."""

    def __init__(
        self, context: Context, replica: Replica, limits: StreamLimits, opening: broker.PublishOpen
    ) -> None:
        super().__init__(context, replica, limits)
        if len(opening.producer_id) > PRODUCER_ID_BYTES_MAX:
            raise BrokerError(
                common.REASON_BAD_REQUEST,
                f"a producer id has at most {PRODUCER_ID_BYTES_MAX} bytes",
                field="producer_id",
            )
        self._producer_id = opening.producer_id
        self._number, last_sequence = replica.open_publisher(self, opening.producer_id)
        opened = broker.PublishOpened(
            last_sequence=last_sequence,
            message_bytes_max=limits.message_bytes_max,
            batch_bytes_max=BATCH_BYTES_MAX,
            batch_messages_max=BATCH_MESSAGES_MAX,
            heartbeat_ms=round(limits.heartbeat_s * 1000),
            node=limits.node,
            epoch=replica.view.epoch,
        )
        self.outbox.put(broker.PublishResponse(opened=opened))

    def received(self, data: bytes) -> None:
        request = parse(broker.PublishRequest, data)
        match request.WhichOneof("request"):
            case "batch":
                self._batch(request.batch)
            case "heartbeat":
                pass
            case _:
                raise BrokerError(
                    common.REASON_BAD_REQUEST, "after Open come batches", field="request"
                )

    def _batch(self, batch: broker.PublishBatch) -> None:
        bodies = batch.bodies
        try:
            self._check(batch)
            properties = [entry.SerializeToString() for entry in batch.properties]
            self._check_properties(properties)
            check_not_deleting(self.replica)
            self.replica.publish(
                self._number,
                self._producer_id,
                batch.first_sequence,
                bodies,
                properties,
                transient=batch.transient,
            )
        except BrokerError as error:
            self._reject(batch, error)

    def _check(self, batch: broker.PublishBatch) -> None:
        count = len(batch.bodies)
        if not 1 <= count <= BATCH_MESSAGES_MAX:
            raise BrokerError(
                common.REASON_BAD_REQUEST,
                f"a batch has 1 to {BATCH_MESSAGES_MAX} messages, this one {count}",
                field="bodies",
            )
        if batch.first_sequence < 1:
            raise BrokerError(
                common.REASON_BAD_REQUEST, "sequences begin with 1", field="first_sequence"
            )
        if len(batch.properties) not in (0, 1, count):
            raise BrokerError(
                common.REASON_BAD_REQUEST,
                f"{len(batch.properties)} properties for {count} messages: none, one or as many",
                field="properties",
            )
        largest = max(map(len, batch.bodies))
        if largest > self.limits.message_bytes_max:
            raise BrokerError(
                common.REASON_MESSAGE_TOO_LARGE,
                f"a message of {largest} bytes; {self.limits.message_bytes_max} are allowed",
                size_bytes=largest,
                limit_bytes=self.limits.message_bytes_max,
            )

    def _check_properties(self, properties: Sequence[bytes]) -> None:
        largest = max(map(len, properties), default=0)
        if largest > self.limits.properties_bytes_max:
            raise BrokerError(
                common.REASON_MESSAGE_TOO_LARGE,
                f"properties of {largest} bytes; {self.limits.properties_bytes_max} are allowed",
                field="properties",
                size_bytes=largest,
                limit_bytes=self.limits.properties_bytes_max,
            )

    def _reject(self, batch: broker.PublishBatch, error: BrokerError) -> None:
        last = batch.first_sequence + max(len(batch.bodies), 1) - 1
        rejected = broker.Rejected(
            sequences=common.Range(first=batch.first_sequence, last=last),
            reason=error.reason,
            message=error.message,
            retryable=error.retryable,
            retry_after_ms=error.retry_after_ms,
        )
        self.outbox.put(broker.PublishResponse(rejected=rejected))

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self.outbox.put_ranges(sequences)

    def ranges_response(self, ranges: Sequence[Range]) -> broker.PublishResponse:
        return broker.PublishResponse(confirmed=broker.Confirmed(sequences=_to_wire(ranges)))

    def closed(self) -> None:
        self.replica.close_publisher(self._number, self._producer_id)

    def heartbeat(self) -> broker.PublishResponse:
        return broker.PublishResponse(heartbeat=broker.Heartbeat())

    def moved_response(self, moved: broker.Moved) -> broker.PublishResponse:
        return broker.PublishResponse(moved=moved)


class ConsumeStream(Stream):
    """Deliveries out, acks in."""

    def __init__(
        self, context: Context, replica: Replica, limits: StreamLimits, opening: broker.ConsumeOpen
    ) -> None:
        super().__init__(context, replica, limits)
        messages = opening.prefetch_messages or PREFETCH_MESSAGES
        size = opening.prefetch_bytes or PREFETCH_BYTES
        if messages > PREFETCH_MESSAGES_MAX or size > PREFETCH_BYTES_MAX:
            raise BrokerError(
                common.REASON_LIMIT_EXCEEDED,
                f"prefetch is at most {PREFETCH_MESSAGES_MAX} messages, {PREFETCH_BYTES_MAX} bytes",
                limit="prefetch",
            )
        check_not_deleting(replica)
        self._number, begin = replica.open_consumer(self, messages, size)
        opened = broker.ConsumeOpened(
            consumer_tag=opening.consumer_tag or f"{limits.node}.{self._number}",
            prefetch_messages=messages,
            prefetch_bytes=size,
            heartbeat_ms=round(limits.heartbeat_s * 1000),
            node=limits.node,
            epoch=replica.view.epoch,
        )
        self.outbox.put(broker.ConsumeResponse(opened=opened))
        begin()

    def received(self, data: bytes) -> None:
        request = parse(broker.ConsumeRequest, data)
        match request.WhichOneof("request"):
            case "settle":
                settle = request.settle
                self.replica.settle(
                    self._number,
                    removed=[_range(pair) for pair in (*settle.ack, *settle.discard)],
                    requeued=[_range(pair) for pair in settle.requeue],
                )
            case "cancel":
                self.replica.cancel_consumer(self._number)
                cancelled = broker.ConsumeCancelled()
                self.outbox.put(broker.ConsumeResponse(cancelled=cancelled))
            case "heartbeat":
                pass
            case _:
                raise BrokerError(
                    common.REASON_BAD_REQUEST, "after Open come acks", field="request"
                )

    def delivered(self, runs: Sequence[Run]) -> None:
        deliveries = broker.Deliveries(deliveries=[delivery_of(run) for run in runs])
        # No answer: bounded by the prefetch, and a consumer may well ack before it reads on.
        self.outbox.put(broker.ConsumeResponse(deliveries=deliveries), answer=False)

    def settled(self, positions: Sequence[Range]) -> None:
        self.outbox.put_ranges(positions)

    def ranges_response(self, ranges: Sequence[Range]) -> broker.ConsumeResponse:
        return broker.ConsumeResponse(settled=broker.Settled(positions=_to_wire(ranges)))

    def closed(self) -> None:
        self.replica.close_consumer(self._number)

    def heartbeat(self) -> broker.ConsumeResponse:
        return broker.ConsumeResponse(heartbeat=broker.Heartbeat())

    def moved_response(self, moved: broker.Moved) -> broker.ConsumeResponse:
        return broker.ConsumeResponse(moved=moved)


def delivery_of(run: Run) -> broker.Delivery:
    return broker.Delivery(
        first_position=run.first_position,
        bodies=run.block.bodies(),
        properties=[common.Properties.FromString(data) for data in run.block.properties()],
        redelivered=run.redelivered,
    )


def _to_wire(ranges: Sequence[Range]) -> list[common.Range]:
    return [common.Range(first=first, last=last) for first, last in ranges]


def _range(pair: common.Range) -> Range:
    if pair.last < pair.first:
        raise BrokerError(
            common.REASON_BAD_REQUEST,
            f"a range from {pair.first} to {pair.last}",
            field="settle",
        )
    return pair.first, pair.last
