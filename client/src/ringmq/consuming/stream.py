"""A consumer's stream: wire messages to events of the consumer, and notes to wire messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import grpc.aio

from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.calls.status import from_reason
from ringmq.consuming.settling import Settling, Verb
from ringmq.errors import ProtocolError, RingMQError
from ringmq.streams.lifetime import Lifetime
from ringmq.streams.speaker import Speaker
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import Range


class Receiver(Protocol):
    """The events of a consumer's stream. None of them blocks."""

    def on_opened(self, consumer_tag: str) -> None: ...

    def on_deliveries(self, deliveries: Sequence[broker.Delivery]) -> None: ...

    def on_settled(self, ranges: Sequence[Range]) -> None: ...

    def on_moved(self) -> None:
        """Deliveries of this stream can't be acked any more."""

    def on_stream_ended(self, trouble: RingMQError | None) -> None: ...

    def on_refusal(self, error: RingMQError) -> None: ...

    @property
    def live(self) -> bool:
        """Whether acks may still go out on this stream."""
        ...


class ConsumerSpeaker(Speaker[broker.ConsumeRequest, broker.ConsumeResponse]):
    def __init__(
        self,
        opening: broker.ConsumeOpen,
        receiver: Receiver,
        lifetime: Lifetime,
        settling: Settling,
    ) -> None:
        self._opening = opening
        self._receiver = receiver
        self._lifetime = lifetime
        self._settling = settling
        self._cancel_sent = False

    def start_call(
        self, node: NodeChannel
    ) -> grpc.aio.StreamStreamCall[broker.ConsumeRequest, broker.ConsumeResponse]:
        return node.broker.Consume()

    def open_request(self) -> broker.ConsumeRequest:
        return broker.ConsumeRequest(open=self._opening)

    def opened(self, response: broker.ConsumeResponse) -> int:
        kind = response.WhichOneof("response")
        if kind == "cancelled":
            raise from_reason(response.cancelled.reason)
        if kind != "opened":
            raise ProtocolError(f"expected ConsumeOpened, got {kind}")
        opened = response.opened
        if opened.consumer_tag:
            # Chosen by the node. The next stream asks for the same.
            self._opening.consumer_tag = opened.consumer_tag
        self._receiver.on_opened(self._opening.consumer_tag)
        self._lifetime.opened()
        return opened.heartbeat_ms

    def received(self, response: broker.ConsumeResponse) -> bool:
        kind = response.WhichOneof("response")
        if kind == "deliveries":
            self._receiver.on_deliveries(response.deliveries.deliveries)
        elif kind == "settled":
            positions = response.settled.positions
            self._receiver.on_settled([(each.first, each.last) for each in positions])
        elif kind == "cancelled" and not self._lifetime.closing:
            raise from_reason(
                response.cancelled.reason or common.REASON_QUEUE_NOT_FOUND,
                f"queue {self._opening.queue!r}: the node has cancelled this consumer",
            )
        return True

    def next_request(self) -> broker.ConsumeRequest | None:
        noted = self._settling.take_noted()
        if noted:
            return _request_of(noted)
        if self._lifetime.closing and not self._cancel_sent:
            self._cancel_sent = True
            return broker.ConsumeRequest(cancel=broker.ConsumeCancel())
        return None

    def heartbeat(self) -> broker.ConsumeRequest:
        return broker.ConsumeRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        self._receiver.on_moved()

    @property
    def finishing(self) -> bool:
        return self._lifetime.closing or not self._receiver.live

    def ended(self, trouble: RingMQError | None) -> float:
        self._receiver.on_stream_ended(trouble)
        return 0.0

    def refused(self, error: RingMQError) -> None:
        self._receiver.on_refusal(error)


def opening_of(
    queue: str, *, prefetch: int, prefetch_bytes: int, consumer_tag: str
) -> broker.ConsumeOpen:
    """Raises `BadRequestError` for values that the wire can't hold."""
    return request_of(
        broker.ConsumeOpen,
        queue=queue,
        prefetch_messages=prefetch,
        prefetch_bytes=prefetch_bytes,
        consumer_tag=consumer_tag,
    )


def _request_of(noted: dict[Verb, list[Range]]) -> broker.ConsumeRequest:
    request = broker.ConsumeRequest()
    fields = {
        Verb.ACK: request.settle.ack,
        Verb.REQUEUE: request.settle.requeue,
        Verb.DISCARD: request.settle.discard,
    }
    for verb, ranges in noted.items():
        fields[verb].extend([common.Range(first=first, last=last) for first, last in ranges])
    return request
