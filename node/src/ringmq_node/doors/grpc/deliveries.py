"""Messages for consumers, encoded without an object for any of them.

protobuf's classes would copy each body three times, into the delivery, the response and its bytes,
and parse each message's properties to encode them anew. Here both go out as they are stored. What
is large isn't copied at all (`ringmq_wire.parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.protobuf import bytes_head, repeated_bytes
from ringmq_node.queue.run import Run
from ringmq_wire import WireMessage, message_of

_DELIVERIES = broker.ConsumeResponse.DELIVERIES_FIELD_NUMBER
_PULLED = broker.ConsumeResponse.PULLED_FIELD_NUMBER


def deliveries_response(runs: Sequence[Run]) -> WireMessage:
    """A `ConsumeResponse` with these deliveries."""
    parts = _delivery_fields(broker.Deliveries.DELIVERIES_FIELD_NUMBER, runs)
    return _nested(_DELIVERIES, parts)


def pulled_response(runs: Sequence[Run], *, messages_ready: int) -> WireMessage:
    """A `ConsumeResponse` that answers a pull."""
    rest = broker.Pulled(messages_ready=messages_ready).SerializeToString()
    parts = _delivery_fields(broker.Pulled.DELIVERIES_FIELD_NUMBER, runs)
    return _nested(_PULLED, [*parts, rest])


def get_response(runs: Sequence[Run], *, messages_ready: int) -> WireMessage:
    """A `GetMessagesResponse`."""
    rest = broker.GetMessagesResponse(messages_ready=messages_ready).SerializeToString()
    parts = _delivery_fields(broker.GetMessagesResponse.DELIVERIES_FIELD_NUMBER, runs)
    return message_of([*parts, rest])


def _nested(number: int, parts: list[bytes]) -> WireMessage:
    return message_of([bytes_head(number, sum(map(len, parts))), *parts])


def _delivery_fields(number: int, runs: Sequence[Run]) -> list[bytes]:
    """Each run as a `Delivery`, which is the field `number`."""
    return [*chain.from_iterable(_delivery_field(number, run) for run in runs)]


def _delivery_field(number: int, run: Run) -> Iterator[bytes]:
    rest = broker.Delivery(
        first_position=run.first_position,
        redelivered=run.redelivered,
        delivery_count=run.delivery_count,
    ).SerializeToString()
    bodies = repeated_bytes(broker.Delivery.BODIES_FIELD_NUMBER, run.block.bodies())
    properties = repeated_bytes(broker.Delivery.PROPERTIES_FIELD_NUMBER, run.block.properties())
    size = len(rest) + sum(map(len, bodies)) + sum(map(len, properties))
    yield bytes_head(number, size)
    yield rest
    yield from bodies
    yield from properties
