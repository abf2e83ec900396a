"""What a client's publish stream brings behind its Open: looked at for bytes that nobody would see.

Protobuf keeps a field with a wrong wire type as it keeps one that it doesn't know, and whoever
reads the message finds the field empty. `parse_request` compares sizes, and copies all bodies for
it. A batch is looked at without that: its own fields, which costs 0.4 us; and the properties of all
its messages together, as protobuf reads encoded messages back to back as one. That costs a tenth of
encoding them. Only properties with messages in them, such as headers, are looked at one by one.

Unknown fields of properties are no error: consumers get them unread, and may know them.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.unknown_fields import UnknownFieldSet

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc.service import parse, unknown_fields


def parse_publish(data: bytes, *, of_a_node: bool = False) -> broker.PublishRequest:
    """Raises `BrokerError` for fields of the request or its batch that aren't known, or have a
    wrong wire type; a newer node may send what this one doesn't know. Leaves properties alone."""
    request = parse(broker.PublishRequest, data)
    if of_a_node:
        return request
    # The batch of a request without one is empty.
    if len(UnknownFieldSet(request)) or len(UnknownFieldSet(request.batch)):
        for unknown in unknown_fields(request):
            raise unknown.refusal()
    return request


def encoded_properties(properties: Sequence[common.Properties]) -> list[bytes]:
    """Each of them encoded. Raises `BrokerError` for a known field with a wrong wire type."""
    encoded = [each.SerializeToString() for each in properties]
    if not encoded:
        return encoded
    joined = common.Properties.FromString(b"".join(encoded))
    if joined.headers or joined.deaths or joined.HasField("first_death"):
        # What one message has within a field may hide what another one has there.
        for each, data in zip(properties, encoded, strict=True):
            each.DiscardUnknownFields()
            if each.ByteSize() != len(data):
                _check_types(common.Properties.FromString(data))
    elif len(UnknownFieldSet(joined)):
        _check_types(joined)
    return encoded


def _check_types(properties: common.Properties) -> None:
    for unknown in unknown_fields(properties):
        if unknown.is_mistyped:
            raise unknown.refusal()
