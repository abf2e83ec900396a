"""Requests of a publish stream, encoded without protobuf's classes for bodies and properties.

Those copy each body into the request, and once more into its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ringmq.publishing.flights import Flight
from ringmq.publishing.tickets import H, Slice
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.protobuf import bytes_head, repeated_bytes
from ringmq_wire import WireMessage, message_of


def batch_request(
    rest: broker.PublishBatch,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    *,
    properties_field: int = broker.PublishBatch.PROPERTIES_FIELD_NUMBER,
) -> WireMessage:
    """A `PublishRequest` with the batch `rest`, which has neither bodies nor properties yet."""
    fields = [
        rest.SerializeToString(),
        *repeated_bytes(broker.PublishBatch.BODIES_FIELD_NUMBER, bodies),
        *repeated_bytes(properties_field, properties),
    ]
    head = bytes_head(broker.PublishRequest.BATCH_FIELD_NUMBER, sum(map(len, fields)))
    return message_of([head, *fields])


def flight_request(flight: Flight[H, bytes]) -> WireMessage:
    """A `PublishRequest`, with bodies and properties as they were handed over."""
    attributes = flight.attributes
    batch = broker.PublishBatch(first_sequence=flight.first, transient=attributes.transient)
    if attributes.routing_key or attributes.mandatory:
        batch.routing_key = attributes.routing_key
        batch.mandatory = attributes.mandatory
    if attributes.exchange is not None:
        batch.exchange = attributes.exchange
    if attributes.cc or attributes.bcc:
        batch.cc.extend(attributes.cc)
        batch.bcc.extend(attributes.bcc)
    if attributes.ttl_ms is not None:
        batch.ttl_ms = attributes.ttl_ms
    if attributes.priority:
        batch.priority = attributes.priority
    slices = flight.slices
    bodies, properties = slices[0].bodies, slices[0].properties
    if len(slices) > 1:
        bodies = [*chain.from_iterable(part.bodies for part in slices)]
        properties = _each_properties(slices)
    return batch_request(batch, bodies, properties)


def _each_properties(slices: Sequence[Slice[H, bytes]]) -> list[bytes]:
    """Those of each message, empty for one without; nothing if all are without."""
    found: list[bytes] = []
    if any(part.ticket.properties for part in slices):
        for part in slices:
            properties = part.properties
            # One for all of a slice isn't one for all of the request.
            if len(properties) == part.count:
                found += properties
            else:
                found += [properties[0] if properties else b""] * part.count
    return found
