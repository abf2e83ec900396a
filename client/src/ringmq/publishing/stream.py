"""A publisher's stream: wire messages to events of the core, and flights to wire messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ringmq.calls.requests import request_of
from ringmq.calls.status import from_reason
from ringmq.errors import ProtocolError, RingMQError
from ringmq.model.queues import ALARMS, BlockReason
from ringmq.publishing.answers import NO_LIMITS, Limits, Origin, PublishRefusal
from ringmq.publishing.core import PublisherCore
from ringmq.publishing.requests import flight_request
from ringmq.streams.lifetime import Lifetime
from ringmq.streams.speaker import Speaker
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_wire import WireMessage

Future = asyncio.Future[None]
# Properties are encoded when they are handed over.
Core = PublisherCore[Future, bytes]

# The reasons whose refusals mean more than try again or don't.
REFUSALS: dict[common.Reason.ValueType, PublishRefusal] = {
    common.REASON_SEQUENCE_GAP: PublishRefusal.GAP,
    common.REASON_UNKNOWN_PRODUCER: PublishRefusal.FORGOTTEN,
    # Of one message's size, properties or headers. All others are of the queue or of what the
    # whole request has in common, or name the very messages.
    common.REASON_MESSAGE_TOO_LARGE: PublishRefusal.SOME_FOR_GOOD,
    common.REASON_BAD_REQUEST: PublishRefusal.SOME_FOR_GOOD,
}


class PublisherSpeaker(Speaker[broker.PublishRequest, broker.PublishResponse]):
    """`on_answer` is called after each answer, the one to Open included, and `on_refusal` when no
    node will have the stream."""

    path = "/ringmq.v1.Broker/Publish"
    response = broker.PublishResponse

    def __init__(
        self,
        core: Core,
        lifetime: Lifetime,
        queue: str,
        *,
        exchange: str | None = None,
        vhost: str = "",
        ends_producer: bool,
        on_answer: Callable[[], None],
        on_refusal: Callable[[RingMQError], None],
        on_block: Callable[[tuple[BlockReason, ...]], None],
    ) -> None:
        self._core = core
        self._lifetime = lifetime
        self._queue = queue
        self._exchange = exchange
        self._vhost = vhost
        self._on_answer = on_answer
        self._on_refusal = on_refusal
        # Called with the reasons when the node holds our batches, and with none when they go on.
        self._on_block = on_block
        # As it was called last; and whether no node has said so since the last stream ended.
        self._block_reasons: tuple[BlockReason, ...] = ()
        self._is_hearsay = False
        # The longest pause that the present stream's refusals have asked for.
        self._pause_s = 0.0
        # Whether queues may forget the producer when the publisher is closed: a random id is used
        # by nobody else.
        self._ends_producer = ends_producer
        # On the present stream.
        self._said_end = self._is_moved = False
        self._is_end_heard = False

    def open_request(self) -> broker.PublishRequest:
        opening = request_of(
            broker.PublishOpen,
            queue=self._queue,
            producer_id=self._core.producer_id,
            exchange=self._exchange,
            vhost=self._vhost,
        )
        return broker.PublishRequest(open=opening)

    def opened(self, response: broker.PublishResponse) -> int:
        if response.WhichOneof("response") != "opened":
            raise ProtocolError(
                f"queue {self._queue!r}: the node answered a publisher's Open with "
                f"{response.WhichOneof('response')}, not with opened"
            )
        opened = response.opened
        # On the wire zero means no limit.
        limits = Limits(
            opened.message_bytes_max or NO_LIMITS.message_bytes_max,
            opened.batch_bytes_max or NO_LIMITS.batch_bytes_max,
            opened.batch_messages_max or NO_LIMITS.batch_messages_max,
            opened.properties_bytes_max or NO_LIMITS.properties_bytes_max,
        )
        origin = Origin(opened.queue_id, opened.epoch)
        self._core.opened(opened.last_sequence, limits, origin)
        self._lifetime.opened()
        if self._is_hearsay and not self._core.outstanding_messages:
            # The node would say nothing, as there is nothing that it could hold.
            self._tell_block(())
        # It may have shown that messages which expired meanwhile never arrived: they fill the
        # window no more, and whoever waits for room has it.
        self._on_answer()
        return opened.heartbeat_ms

    def received(self, response: broker.PublishResponse) -> bool:
        if response.HasField("confirmed"):
            for sequences in response.confirmed.sequences:
                self._core.confirmed(sequences.first, sequences.last)
            self._on_answer()
            self._goes_on()
            return True
        if response.HasField("returned"):
            error = from_reason(response.returned.reason, "no queue is bound for this message")
            for sequences in response.returned.sequences:
                self._core.returned(sequences.first, sequences.last, error)
            return True
        if response.HasField("rejected"):
            rejected = response.rejected
            retry_s = rejected.retry_after_ms / 1000
            error = from_reason(rejected.reason, rejected.message, retry_after_s=retry_s)
            otherwise = PublishRefusal.RETRY if rejected.retryable else PublishRefusal.FOR_GOOD
            refusal = REFUSALS.get(rejected.reason, otherwise)
            self._core.rejected(rejected.sequences.first, rejected.sequences.last, refusal, error)
            if rejected.retryable:
                self._pause_s = max(self._pause_s, retry_s)
            self._on_answer()
            self._goes_on()
        elif response.HasField("blocked"):
            self._tell_block(tuple(map(BlockReason, response.blocked.reasons)))
        elif response.HasField("unblocked"):
            self._tell_block(())
        return False

    def _goes_on(self) -> None:
        """The node has answered a batch. One that knew of an alarm would have said so before."""
        if self._is_hearsay:
            self._tell_block(())

    def _tell_block(self, reasons: tuple[BlockReason, ...]) -> None:
        self._block_reasons = reasons
        self._is_hearsay = False
        self._on_block(reasons)

    def next_request(self) -> WireMessage | None:
        flight = self._core.next_flight()
        if flight is not None:
            return flight_request(flight)
        if self._lifetime.closing and self._ends_producer and not self._said_end:
            self._said_end = True
            return broker.PublishRequest(end=broker.PublishEnd()).SerializeToString()
        return None

    def heartbeat(self) -> broker.PublishRequest:
        return broker.PublishRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        self._is_moved = True
        self._core.moved()

    @property
    def waiting(self) -> bool:
        return self._core.has_sent

    @property
    def finishing(self) -> bool:
        return self._core.finishing or self._lifetime.closing

    @property
    def owes_word(self) -> bool:
        return self._ends_producer and self._core.is_known and not self._is_end_heard

    def ended(self, trouble: RingMQError | None) -> float:
        # What the node was short of holds nothing any more. But an alarm is the cluster's: it is
        # on, as far as anybody knows, until the next stream shows how it is.
        self._tell_block(tuple(each for each in self._block_reasons if each in ALARMS))
        self._is_hearsay = bool(self._block_reasons)
        # A node that ends the stream in good order has read all of it. A master that has been
        # deposed tells its replicas nothing more.
        self._is_end_heard |= self._said_end and trouble is None and not self._is_moved
        self._said_end = self._is_moved = False
        self._core.ended(trouble)
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def refused(self, error: RingMQError) -> None:
        # All messages end now, and no node may be asked for days.
        self._tell_block(())
        self._on_refusal(error)
