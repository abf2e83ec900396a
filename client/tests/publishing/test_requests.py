"""A flight's request, encoded by hand, is what protobuf's classes make of the same messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringmq.publishing.flights import Flight
from ringmq.publishing.requests import batch_request, flight_request
from ringmq.publishing.tickets import Attributes, Slice, Ticket
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common

BODIES = st.lists(
    st.one_of(st.binary(max_size=3), st.sampled_from([bytes(127), bytes(128), bytes(70_000)])),
    min_size=1,
    max_size=4,
)
PROPERTIES = [common.Properties(message_id="m" * size, timestamp_ms=size) for size in (0, 1, 5000)]
ATTRIBUTES = st.builds(
    Attributes,
    transient=st.booleans(),
    routing_key=st.sampled_from(["", "key"]),
    mandatory=st.booleans(),
    ttl_ms=st.sampled_from([None, 0, 5]),
    priority=st.sampled_from([0, 255]),
    exchange=st.sampled_from([None, "", "x"]),
    cc=st.sampled_from([(), ("a", "b")]),
    bcc=st.sampled_from([(), ("c",)]),
)
# The bodies of a call, and its properties: none, one for all, or one for each.
CALLS = BODIES.flatmap(
    lambda bodies: st.tuples(
        st.just(bodies),
        st.sampled_from([0, 1, len(bodies)]).flatmap(
            lambda many: st.lists(st.sampled_from(PROPERTIES), min_size=many, max_size=many)
        ),
    )
)


def expected_of(
    first: int,
    calls: list[tuple[list[bytes], list[common.Properties]]],
    attributes: Attributes,
) -> broker.PublishRequest:
    batch = broker.PublishBatch(
        first_sequence=first,
        transient=attributes.transient,
        exchange=attributes.exchange,
        cc=attributes.cc,
        bcc=attributes.bcc,
        ttl_ms=attributes.ttl_ms,
        priority=attributes.priority,
    )
    if attributes.routing_key or attributes.mandatory:
        batch.routing_key, batch.mandatory = attributes.routing_key, attributes.mandatory
    for bodies, properties in calls:
        batch.bodies.extend(bodies)
        if len(calls) == 1:
            batch.properties.extend(properties)
        elif any(each for _, each in calls):
            one = properties[0] if properties else common.Properties()
            each = properties if len(properties) == len(bodies) else [one] * len(bodies)
            batch.properties.extend(each)
    return broker.PublishRequest(batch=batch)


@given(st.lists(CALLS, min_size=1, max_size=4), ATTRIBUTES, st.sampled_from([1, 1 << 40]))
def test_a_flight_is_the_request_that_protobuf_would_make(
    calls: list[tuple[list[bytes], list[common.Properties]]], attributes: Attributes, first: int
) -> None:
    slices = []
    for bodies, properties in calls:
        encoded = [each.SerializeToString() for each in properties]
        sizes = [*map(len, encoded)]
        ticket = Ticket(bodies, encoded, sizes, attributes, 0.0, 0)
        slices.append(Slice(ticket, 0, len(bodies)))
        assert slices[-1].size_bytes == sum(slices[-1].sizes(len(bodies)))
    request = bytes(flight_request(Flight(first, slices, 0)))
    assert broker.PublishRequest.FromString(request) == expected_of(first, calls, attributes)


def test_properties_may_go_in_another_field() -> None:
    rest = broker.PublishBatch(first_sequence=3, message_id=b"0123456789abcdef")
    field = broker.PublishBatch.ENCODED_PROPERTIES_FIELD_NUMBER
    request = bytes(batch_request(rest, [b"a", b"b"], [b"p", b""], properties_field=field))
    batch = broker.PublishBatch(
        first_sequence=3,
        message_id=b"0123456789abcdef",
        bodies=[b"a", b"b"],
        encoded_properties=[b"p", b""],
    )
    assert broker.PublishRequest.FromString(request) == broker.PublishRequest(batch=batch)
