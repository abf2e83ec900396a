"""Each field of each request, with a wire type that isn't its own: refused, and by its place.

Such bytes are no error of protobuf: a parser keeps them as a field that it doesn't know. The fields
come from the descriptors, at any depth, those of repeated messages and of maps too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import reader_pb2 as reader
from ringmq_node.doors.grpc.service import parse_request
from ringmq_node.model.reasons import BrokerError, Reason

SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in ((broker, "Broker"), (admin, "Admin"), (reader, "Reader"))
]
# Unary calls and streams, `Connect` too.
REQUESTS: dict[str, Descriptor] = {
    f"{service.name}/{method.name}": method.input_type
    for service in SERVICES
    for method in service.methods
}
VARINT, DELIMITED, FIXED32 = 0, 2, 5
IN_BYTES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
IN_FIXED32 = (
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_FLOAT,
)


class Wrong(NamedTuple):
    place: str
    data: bytes


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def mistyped(field: FieldDescriptor) -> bytes:
    """A repeated number may come packed, in bytes: so a number comes as four bytes here."""
    if field.type in (*IN_BYTES, *IN_FIXED32):
        return varint(field.number << 3 | VARINT) + b"\x01"
    return varint(field.number << 3 | FIXED32) + bytes(4)


def wrongs(kind: Descriptor, above: tuple[str, ...] = ()) -> Iterator[Wrong]:
    for field in kind.fields:
        # The key or the value of a map's entry has no message of its own.
        if not kind.GetOptions().map_entry:
            yield Wrong(f"field {field.number} of {kind.name}", mistyped(field))
        inner = field.message_type
        if inner is None or inner.full_name in above:
            continue
        for wrong in wrongs(inner, (*above, inner.full_name)):
            length = varint(len(wrong.data))
            data = varint(field.number << 3 | DELIMITED) + length + wrong.data
            yield Wrong(wrong.place, data)


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=REQUESTS.keys())
def test_each_field_with_a_wrong_wire_type_is_named(kind: Descriptor) -> None:
    request: Any = GetMessageClass(kind)
    for wrong in wrongs(kind):
        with pytest.raises(BrokerError, match=f"doesn't know {wrong.place}:") as caught:
            parse_request(request, wrong.data)
        assert caught.value.reason is Reason.BAD_REQUEST


def test_all_of_a_request_is_looked_at() -> None:
    assert "Broker/Connect" in REQUESTS
    places = {wrong.place for kind in REQUESTS.values() for wrong in wrongs(kind)}
    names = {place.rsplit(" ", 1)[1] for place in places}
    # Of a policy, of a repeated message, and of the values of a map.
    assert {"PolicyDefinition", "QueueRules", "Range", "Death", "FieldValue"} <= names
