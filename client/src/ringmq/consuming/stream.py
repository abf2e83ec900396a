"""A consumer's stream: wire messages to events of the reception, and notes to wire messages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from ringmq.calls.requests import request_of
from ringmq.calls.status import from_reason
from ringmq.consuming.pulling import Pulling
from ringmq.consuming.reception import Reception
from ringmq.consuming.settling import Settling, Verb
from ringmq.consuming.shared_prefetch import SharedPrefetch
from ringmq.errors import ProtocolError, RingMQError
from ringmq.streams.lifetime import Lifetime
from ringmq.streams.speaker import Speaker
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import Range
from ringmq_base.window import Share

# Tells this consumer from all others, over the streams that it opens one after the other.
CONSUMER_ID_BYTES = 16


class ConsumerSpeaker(Speaker[broker.ConsumeRequest, broker.ConsumeResponse]):
    """`on_refusal` is called when no node will have the stream."""

    path = "/ringmq.v1.Broker/Consume"
    response = broker.ConsumeResponse

    def __init__(
        self,
        opening: broker.ConsumeOpen,
        reception: Reception,
        settling: Settling,
        lifetime: Lifetime,
        *,
        on_refusal: Callable[[RingMQError], None],
        pulling: Pulling,
        shared: SharedPrefetch | None = None,
        wake: Callable[[], None],
    ) -> None:
        """`shared`: the prefetch that it shares with others; `wake` is called when it has a share
        to tell the node."""
        self._opening = opening
        self._reception = reception
        self._settling = settling
        self._lifetime = lifetime
        self._on_refusal = on_refusal
        self._pulling = pulling
        self._cancel_sent = False
        # The stream has another prefetch than the one that is wanted now.
        self._prefetch_changed = False
        #: What it tells its shared prefetch.
        self.member = None if shared is None else shared.member(self._change_share)
        self._shares: deque[Share] = deque()
        self._wake = wake

    def _change_share(self, share: Share) -> None:
        self._shares.append(share)
        self._wake()

    def change_prefetch(self, messages: int, size_bytes: int) -> None:
        """On the stream that is open, and on those that are opened after it. Raises
        `BadRequestError` for values that the wire can't hold."""
        checked = request_of(
            broker.ChangePrefetch, prefetch_messages=messages, prefetch_bytes=size_bytes
        )
        self._opening.prefetch_messages = checked.prefetch_messages
        self._opening.prefetch_bytes = checked.prefetch_bytes
        self._prefetch_changed = True

    def open_request(self) -> broker.ConsumeRequest:
        self._prefetch_changed = False
        self._shares.clear()
        return broker.ConsumeRequest(open=self._opening)

    def opened(self, response: broker.ConsumeResponse) -> int:
        kind = response.WhichOneof("response")
        if kind == "cancelled":
            raise from_reason(response.cancelled.reason)
        if kind != "opened":
            raise ProtocolError(
                f"queue {self._opening.queue!r}: the node answered a consumer's Open with {kind}, "
                "not with opened"
            )
        opened = response.opened
        if opened.consumer_tag:
            # Chosen by the node. The next stream asks for the same.
            self._opening.consumer_tag = opened.consumer_tag
        self._reception.opened(self._opening.consumer_tag)
        self._pulling.opened(self._reception.generation)
        self._reception.prefetch = (opened.prefetch_messages, opened.prefetch_bytes)
        self._lifetime.opened()
        if self.member is not None:
            self.member.opened()
        return opened.heartbeat_ms

    def received(self, response: broker.ConsumeResponse) -> bool:
        kind = response.WhichOneof("response")
        if kind == "deliveries":
            if self.member is not None:
                self.member.delivered(
                    (each.first_position, [*map(len, each.bodies)])
                    for each in response.deliveries.deliveries
                )
            self._reception.delivered(response.deliveries.deliveries)
        elif kind == "pulled":
            self._pulling.answered(response.pulled)
            self._wake()
        elif kind == "settled":
            positions = response.settled.positions
            self._reception.settled([(each.first, each.last) for each in positions])
        elif kind == "prefetch":
            changed = response.prefetch
            self._reception.prefetch = (changed.prefetch_messages, changed.prefetch_bytes)
        elif kind == "share" and self.member is not None:
            self.member.answered()
        elif kind == "short" and self.member is not None:
            short = response.short
            self.member.short(is_short=short.short, needs_bytes=short.bytes)
        elif kind == "active":
            self._reception.active_changed(active=response.active.active)
        elif kind == "cancelled" and not self._lifetime.closing:
            raise from_reason(
                response.cancelled.reason or common.REASON_QUEUE_NOT_FOUND,
                f"queue {self._opening.queue!r}: the node has cancelled this consumer",
            )
        return True

    def next_request(self) -> bytes | None:
        request = self._next_request()
        return None if request is None else request.SerializeToString()

    def _next_request(self) -> broker.ConsumeRequest | None:
        # Before what is settled: a lower share would come too late for the room that makes.
        if self._shares:
            share = self._shares.popleft()
            return broker.ConsumeRequest(
                share=broker.WindowShare(messages=share.messages, bytes=share.size_bytes)
            )
        noted = self._settling.take_noted()
        if noted:
            return _request_of(noted)
        if self._prefetch_changed and not self._lifetime.closing:
            self._prefetch_changed = False
            change = broker.ChangePrefetch(
                prefetch_messages=self._opening.prefetch_messages,
                prefetch_bytes=self._opening.prefetch_bytes,
            )
            return broker.ConsumeRequest(prefetch=change)
        # Behind the prefetch that it is asked under, and behind what its caller has put back.
        pull = None if self._lifetime.closing else self._pulling.next_request()
        if pull is not None:
            return pull
        if self._lifetime.closing and not self._cancel_sent:
            # After the last acks. The node then delivers no more, but still reports settles.
            self._cancel_sent = True
            return broker.ConsumeRequest(cancel=broker.ConsumeCancel())
        return None

    def heartbeat(self) -> broker.ConsumeRequest:
        return broker.ConsumeRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        self._reception.moved()

    @property
    def waiting(self) -> bool:
        return self._settling.is_awaited or self._pulling.is_awaited

    @property
    def finishing(self) -> bool:
        return self._lifetime.closing or not self._reception.live

    def ended(self, trouble: RingMQError | None) -> float:
        if self.member is not None:
            self.member.ended()
        self._reception.stream_ended(trouble)
        return 0.0

    def refused(self, error: RingMQError) -> None:
        self._on_refusal(error)


def opening_of(
    queue: str,
    vhost: str,
    *,
    prefetch: int,
    prefetch_bytes: int,
    consumer_tag: str,
    priority: int,
    exclusive: bool,
    auto_ack: bool,
    shares_window: bool,
    pulls: bool,
) -> broker.ConsumeOpen:
    """Raises `BadRequestError` for values that the wire can't hold."""
    return request_of(
        broker.ConsumeOpen,
        queue=queue,
        vhost=vhost,
        prefetch_messages=prefetch,
        prefetch_bytes=prefetch_bytes,
        consumer_tag=consumer_tag,
        priority=priority,
        exclusive=exclusive,
        auto_ack=auto_ack,
        shares_window=shares_window,
        pulls=pulls,
        consumer_id=os.urandom(CONSUMER_ID_BYTES),
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
