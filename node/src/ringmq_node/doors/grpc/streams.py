"""The publish and consume streams, on the node that is the queue's master.

A stream is its queue's session (`replica.sessions`): it turns requests into calls of `Publishing`
or `Consuming`, and confirms, deliveries and `moved` into responses.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from functools import partial

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import HEARTBEATS_MISSED_MAX, SETTLE_RANGES_MAX
from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range
from ringmq_gm import RingClosedError
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.broker.consuming.listing import consumer_tag
from ringmq_node.broker.locating import Location
from ringmq_node.broker.publishing import Publishing
from ringmq_node.doors.grpc.batches import encoded_properties, parse_publish
from ringmq_node.doors.grpc.blocked import BlockTeller
from ringmq_node.doors.grpc.consumer_wire import label_of
from ringmq_node.doors.grpc.deliveries import deliveries_response
from ringmq_node.doors.grpc.held import HeldBatches
from ringmq_node.doors.grpc.pulls import Pulls
from ringmq_node.doors.grpc.service import Context, parse, parse_request
from ringmq_node.doors.grpc.status import reason_to_wire, told
from ringmq_node.doors.grpc.wire import ranges_from_wire, ranges_to_wire
from ringmq_node.doors.grpc.writer import StreamWriter
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run
from ringmq_node.replica.upkeep import FullQueueRefusal
from ringmq_node.resources.buffers import ByteBudget, UnsentBytes
from ringmq_node.resources.connection_states import PeerStream
from ringmq_wire import WireMessage

# How long a client that doesn't read may hold up the end of its stream.
LAST_WRITE_S = 5.0
# A request of so few bytes has no message in it, and needs no room.
HEARTBEAT_BYTES = 4

Response = broker.PublishResponse | broker.ConsumeResponse


class Stream:
    """The parts that both kinds of stream share: reading, writing, heartbeats, the end."""

    def __init__(
        self, context: Context, heartbeat_s: float, unsent: ByteBudget | None = None
    ) -> None:
        held = None if unsent is None else UnsentBytes(unsent, self.hold)
        self.writer = StreamWriter(context, self.ranges_response, held)
        self._context = context
        self._heartbeat_s = heartbeat_s
        # The peer has sent something since the last heartbeat was due.
        self._heard = True
        # The next request waits for room, and isn't read.
        self._held_back = False
        # The client has ended its side.
        self.has_ended = False

    async def run(self) -> None:
        """Returns when the client ends the stream, the queue moves, or the peer falls silent."""
        reader = asyncio.create_task(self._read(), name="stream reader")
        writer = asyncio.create_task(self.writer.run(), name="stream writer")
        tasks = [reader, writer, asyncio.create_task(self._keep_alive(), name="stream heartbeat")]
        tasks += [asyncio.create_task(work, name="stream work") for work in self.works()]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in filter(asyncio.Task.done, tasks):
                with suppress(RingClosedError):  # the client has been told by then
                    task.result()
            if reader.done():
                # The client will send no more; the answers to its requests still go out. They may
                # take time, as an answer says that a disk has it. (`_keep_alive` bounds that.)
                tasks.append(asyncio.create_task(self.wait_answered(), name="stream answers"))
                await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
                self.writer.close()
                await asyncio.wait([writer], timeout=self._heartbeat_s)
        finally:
            self.closed()
            # The status goes behind the message that is being written.
            self.writer.drop()
            try:
                await asyncio.wait([writer], timeout=LAST_WRITE_S)
            finally:
                # Also if this is cancelled in its last wait, as the call is over. A writer that
                # is left behind fails a moment later, and nobody takes its exception.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                # An error that ends the stream has this frame, and its task the error.
                del reader, writer, task, tasks

    async def _read(self) -> None:
        # What is here already is read without a pause: hundreds of requests, of some ms each.
        pieces = Pieces()
        while True:
            await pieces.step()
            size_bytes = self._context.next_bytes
            if size_bytes is None:
                size_bytes = await self._context.wait_message()
                # The wait was no work: a piece that counted it would end after one batch of many
                # that have come together, and that one would be sent and synced alone.
                pieces = Pieces()
            self._heard = True
            # What isn't taken isn't read, and counts in the transport's budget: of ten thousand
            # streams each would have a batch in its hands, which no budget counts.
            if size_bytes:
                if self.writer.full:
                    await self.writer.wait_room()
                self._held_back = True
                await self.wait_room(size_bytes)
                # Last: many streams wake in the same turn, and each looks again.
                await self.wait_readable()
                self._held_back = False
            data = await self._context.read()
            if data is None:
                self.has_ended = True
                return
            self.received(data)

    async def _keep_alive(self) -> None:
        silent = 0
        while silent < HEARTBEATS_MISSED_MAX:
            written = self.writer.written
            await asyncio.sleep(self._heartbeat_s)
            progress = self.writer.written != written
            # A peer that this end doesn't read can't be heard. If it isn't read because it doesn't
            # read its answers, then reading some of them is the only sign of life it can give.
            alive = self._heard or self._held_back or (self.writer.full and progress)
            silent = 0 if alive else silent + 1
            self._heard = False
            if not progress and self.writer.empty:
                self.writer.put(self.heartbeat())

    def moved(self, reason: Reason) -> None:
        """The queue's master is elsewhere now, or nowhere (`replica.sessions`)."""
        to, why = self.successor(), reason_to_wire(reason)
        moved = broker.Moved(node=to.node, address=to.address, epoch=to.epoch, reason=why)
        self.writer.put(self.moved_response(moved))
        self.writer.close()

    async def wait_readable(self) -> None:
        """Returns when another request may be read."""

    @abstractmethod
    def wait_room(self, size_bytes: int) -> Awaitable[None]:
        """Returns when the queue takes a request of this size, which is there."""

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Takes one request."""

    async def wait_answered(self) -> None:
        """Returns when each request has its answer."""

    def works(self) -> list[Coroutine[None, None, None]]:
        """What goes on beside reading and writing, until the stream ends."""
        return []

    def hold(self, held: bool) -> None:
        """Whether more waits to be sent than may wait."""

    @abstractmethod
    def successor(self) -> Location:
        """The new master."""

    @abstractmethod
    def closed(self) -> None: ...

    @staticmethod
    @abstractmethod
    def ranges_response(ranges: Sequence[Range]) -> Response:
        """The response that says that these are confirmed, or settled."""

    @abstractmethod
    def heartbeat(self) -> Response: ...

    @abstractmethod
    def moved_response(self, moved: broker.Moved) -> Response: ...


def rejection(first_sequence: int, count: int, error: BrokerError) -> broker.PublishResponse:
    """These messages were not taken."""
    rejected = broker.Rejected(
        sequences=common.Range(first=first_sequence, last=first_sequence + count - 1),
        reason=reason_to_wire(error.reason),
        message=told(error.message),
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        field=error.metadata.get("field", ""),
    )
    return broker.PublishResponse(rejected=rejected)


def check_clients(batch: broker.PublishBatch) -> None:
    """Raises `BrokerError` for what only a node says."""
    if batch.message_id:
        # Under another message's id, a body would be taken for that message's.
        raise BrokerError(
            Reason.ACCESS_REFUSED, "only nodes give ids to bodies", field="message_id"
        )
    if batch.encoded_properties:
        raise BrokerError(
            Reason.ACCESS_REFUSED, "only nodes encode properties", field="encoded_properties"
        )


def _properties_of(batch: broker.PublishBatch) -> list[bytes]:
    if not batch.encoded_properties:
        return encoded_properties(batch.properties)
    if batch.properties:
        raise bad_request("properties are given twice", field="encoded_properties")
    for encoded in batch.encoded_properties:
        parse(common.Properties, encoded)
    return [*batch.encoded_properties]


class PublishStream(Stream):
    """Batches in, confirms out. Made by `open`."""

    publishing: Publishing
    teller: BlockTeller
    held: HeldBatches
    # It is a node's, as one of them has checked.
    _with_gaps: bool
    # Messages that are neither confirmed nor rejected; and the end of waiting for them.
    _unanswered = 0
    _answered: asyncio.Future[None] | None = None
    _producer_ended = False

    @classmethod
    async def open(
        cls, context: Context, door: Broker, opening: broker.PublishOpen, peer: PeerStream
    ) -> PublishStream:
        """Raises `BrokerError` if the queue can't be published to."""
        stream = cls(context, door.settings.heartbeat_s)
        stream.publishing = await door.open_publisher(
            opening.queue,
            stream,
            producer_id=opening.producer_id,
            with_gaps=opening.with_gaps,
        )
        stream._with_gaps = opening.with_gaps
        # Answers are bounded by what is read, and this is put seldom: it isn't counted.
        tell = partial(stream.writer.put, answer=False)
        stream.teller = BlockTeller(stream.publishing.block_reasons, tell, peer)
        stream.held = HeldBatches(stream.publishing, door.buffers.credit, stream.teller)
        opened = broker.PublishOpened(
            last_sequence=stream.publishing.last_sequence,
            message_bytes_max=door.settings.message_bytes_max,
            properties_bytes_max=door.settings.properties_bytes_max,
            batch_bytes_max=BATCH_BYTES_MAX,
            batch_messages_max=BATCH_MESSAGES_MAX,
            heartbeat_ms=round(door.settings.heartbeat_s * 1000),
            node=door.node,
            epoch=stream.publishing.epoch,
            queue_id=stream.publishing.queue_id,
        )
        stream.writer.put(broker.PublishResponse(opened=opened))
        return stream

    async def wait_readable(self) -> None:
        if not self.publishing.is_readable:
            with self.teller.held():
                await self.publishing.wait_readable()

    async def wait_room(self, size_bytes: int) -> None:
        if self.held and size_bytes > HEARTBEAT_BYTES:
            await self.held.wait_credit()

    def received(self, data: bytes) -> None:
        request = parse_publish(data, of_a_node=self._with_gaps)
        match request.WhichOneof("request"):
            case "batch":
                self._unanswered += len(request.batch.bodies)
                if self.held or not self.publishing.has_room:
                    self.held.add(request.batch, len(data), self._publish)
                else:
                    self._publish(request.batch)
            case "end":
                self._producer_ended = True
            case "heartbeat":
                pass
            case _:
                raise bad_request("after Open come batches", field="request")

    async def wait_answered(self) -> None:
        if self._unanswered > 0:
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered

    def _publish(self, batch: broker.PublishBatch) -> None:
        count = len(batch.bodies)
        try:
            if not self._with_gaps:
                check_clients(batch)
            self.publishing.publish(
                batch.first_sequence,
                batch.bodies,
                _properties_of(batch),
                transient=batch.transient,
                message_id=batch.message_id,
                ttl_ms=batch.ttl_ms if batch.HasField("ttl_ms") else None,
                priority=batch.priority,
            )
        except FullQueueRefusal as error:
            # The others are in the queue, and will be confirmed.
            for first, last in error.sequences:
                self.writer.put(rejection(first, last - first + 1, error))
                self._count_answered(last - first + 1)
        except BrokerError as error:
            self.writer.put(rejection(batch.first_sequence, max(count, 1), error))
            self._count_answered(count)

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self.writer.put_ranges(sequences)
        for first, last in sequences:
            self._count_answered(last - first + 1)

    def _count_answered(self, messages: int) -> None:
        self._unanswered -= messages
        if self._unanswered <= 0 and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    @staticmethod
    def ranges_response(ranges: Sequence[Range]) -> broker.PublishResponse:
        return broker.PublishResponse(confirmed=broker.Confirmed(sequences=ranges_to_wire(ranges)))

    def successor(self) -> Location:
        return self.publishing.successor()

    def closed(self) -> None:
        self.teller.close()
        self.held.close()
        self.publishing.close(has_ended=self._producer_ended)

    def heartbeat(self) -> broker.PublishResponse:
        return broker.PublishResponse(heartbeat=broker.Heartbeat())

    def moved_response(self, moved: broker.Moved) -> broker.PublishResponse:
        return broker.PublishResponse(moved=moved)


def check_settle(settle: broker.Settle) -> None:
    """Raises `BrokerError` for one that is too much for one piece of work."""
    ranges = len(settle.ack) + len(settle.discard) + len(settle.requeue)
    if ranges > SETTLE_RANGES_MAX:
        raise BrokerError(
            Reason.LIMIT_EXCEEDED,
            f"a request settles at most {SETTLE_RANGES_MAX} ranges, this one {ranges}",
            limit="settle",
        )


class ConsumeStream(Stream):
    """Deliveries out, acks in. Made by `open`."""

    consuming: Consuming
    pulls: Pulls

    @classmethod
    async def open(
        cls, context: Context, door: Broker, opening: broker.ConsumeOpen
    ) -> ConsumeStream:
        """Raises `BrokerError` if the queue can't be consumed from."""
        stream = cls(context, door.settings.heartbeat_s, door.buffers.unsent)
        consuming = stream.consuming = await door.consuming.open_here(
            opening.queue,
            stream,
            ConsumerTerms(
                prefetch_messages=opening.prefetch_messages,
                prefetch_bytes=opening.prefetch_bytes,
                priority=opening.priority,
                exclusive=opening.exclusive,
                identity=opening.consumer_id,
                shares_window=opening.shares_window,
                pulls=opening.pulls,
            ),
            auto_ack=opening.auto_ack,
            label=label_of(context, opening.consumer_tag),
        )
        stream.pulls = Pulls(consuming)
        opened = broker.ConsumeOpened(
            consumer_tag=consumer_tag(opening.consumer_tag, door.node, consuming.number),
            prefetch_messages=consuming.prefetch_messages,
            prefetch_bytes=consuming.prefetch_bytes,
            heartbeat_ms=round(door.settings.heartbeat_s * 1000),
            node=door.node,
            epoch=consuming.epoch,
        )
        stream.writer.put(broker.ConsumeResponse(opened=opened))
        # Not earlier: the first response of a stream is its Opened.
        consuming.begin()
        return stream

    def wait_room(self, size_bytes: int) -> Awaitable[None]:
        return self.consuming.wait_room()

    def received(self, data: bytes) -> None:
        request = parse_request(broker.ConsumeRequest, data)
        match request.WhichOneof("request"):
            case "settle":
                settle = request.settle
                check_settle(settle)
                self.consuming.settle(
                    acked=ranges_from_wire(settle.ack),
                    rejected=ranges_from_wire(settle.discard),
                    requeued=ranges_from_wire(settle.requeue),
                )
            case "prefetch":
                asked = request.prefetch
                self.consuming.change_prefetch(asked.prefetch_messages, asked.prefetch_bytes)
                changed = broker.PrefetchChanged(
                    prefetch_messages=self.consuming.prefetch_messages,
                    prefetch_bytes=self.consuming.prefetch_bytes,
                )
                self.writer.put(broker.ConsumeResponse(prefetch=changed))
            case "share":
                share = request.share
                self.consuming.change_share(share.messages, share.bytes)
                # Behind what it made the queue deliver; the client counts either way.
                self.writer.put(broker.ConsumeResponse(share=share))
            case "pull":
                self.pulls.ask(request.pull)
            case "cancel":
                self.consuming.cancel()
                cancelled = broker.ConsumeCancelled()
                self.writer.put(broker.ConsumeResponse(cancelled=cancelled))
            case "heartbeat":
                pass
            case _:
                raise bad_request("after Open come acks", field="request")

    def _pulled(self, answer: WireMessage, has_messages: bool) -> None:
        # With messages, as deliveries: their bytes count, over all streams, until they are sent.
        self.writer.put_encoded(answer, answer=not has_messages)

    def works(self) -> list[Coroutine[None, None, None]]:
        return [self.pulls.run(self._pulled)] if self.consuming.pulls else []

    def delivered(self, runs: Sequence[Run]) -> None:
        # Not counted as an answer: the prefetch bounds deliveries, and a consumer may well send
        # acks before it reads on.
        response = deliveries_response(runs)
        if not self.consuming.auto_ack:
            self.writer.put_encoded(response, answer=False)
            return
        positions = [run.positions for run in runs]
        self.writer.put_encoded(response, answer=False, then=lambda: self.consuming.sent(positions))

    def hold(self, held: bool) -> None:
        self.pulls.hold(held)
        self.consuming.hold(held)

    def settled(self, positions: Sequence[Range]) -> None:
        # Of an auto-ack consumer nobody waits for it.
        if not self.consuming.auto_ack:
            self.writer.put_ranges(positions)

    def active_changed(self, *, active: bool) -> None:
        self.writer.put(broker.ConsumeResponse(active=broker.ActiveChanged(active=active)))

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        told = broker.ShareShort(short=short, bytes=needs_bytes)
        self.writer.put(broker.ConsumeResponse(short=told), answer=False)

    def ended(self, reason: Reason) -> None:
        cancelled = broker.ConsumeCancelled(reason=reason_to_wire(reason))
        self.writer.put(broker.ConsumeResponse(cancelled=cancelled))
        self.writer.close()

    @staticmethod
    def ranges_response(ranges: Sequence[Range]) -> broker.ConsumeResponse:
        return broker.ConsumeResponse(settled=broker.Settled(positions=ranges_to_wire(ranges)))

    def successor(self) -> Location:
        return self.consuming.successor()

    def closed(self) -> None:
        self.pulls.end()
        self.consuming.close(in_good_order=self.has_ended)

    def heartbeat(self) -> broker.ConsumeResponse:
        return broker.ConsumeResponse(heartbeat=broker.Heartbeat())

    def moved_response(self, moved: broker.Moved) -> broker.ConsumeResponse:
        return broker.ConsumeResponse(moved=moved)
