"""Encoded requests in which one field has a wire type that isn't its own.

The fields come from the descriptors, at any depth, those of repeated messages and of maps too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
# One value of each.
VALUES = {VARINT: b"\x01", FIXED64: bytes(8), DELIMITED: b"\x00", FIXED32: bytes(4)}
OWN = {
    FieldDescriptor.TYPE_STRING: DELIMITED,
    FieldDescriptor.TYPE_BYTES: DELIMITED,
    FieldDescriptor.TYPE_MESSAGE: DELIMITED,
    FieldDescriptor.TYPE_FIXED32: FIXED32,
    FieldDescriptor.TYPE_SFIXED32: FIXED32,
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_FIXED64: FIXED64,
    FieldDescriptor.TYPE_SFIXED64: FIXED64,
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
}


class Wrong(NamedTuple):
    #: As a refusal names it, and the name of the field.
    place: str
    name: str
    data: bytes

    def is_in(self, kinds: tuple[str, ...]) -> bool:
        """Whether it is a field of one of these messages."""
        return self.place.rsplit(" ", 1)[1] in kinds


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def mistyped(field: FieldDescriptor) -> Iterator[bytes]:
    """The field with each wire type that it can't have. Repeated numbers may come packed."""
    own = OWN.get(field.type, VARINT)
    for wire_type, value in VALUES.items():
        is_packed = field.is_repeated and wire_type == DELIMITED
        if wire_type != own and not is_packed:
            yield varint(field.number << 3 | wire_type) + value


def wrongs(kind: Descriptor, above: tuple[str, ...] = ()) -> Iterator[Wrong]:
    """Each field of the message, at any depth."""
    for field in kind.fields:
        # The key or the value of a map's entry has no message of its own.
        if not kind.GetOptions().map_entry:
            place = f"field {field.number} of {kind.name}"
            yield from (Wrong(place, field.name, data) for data in mistyped(field))
        inner = field.message_type
        if inner is None or inner.full_name in above:
            continue
        for wrong in wrongs(inner, (*above, inner.full_name)):
            length = varint(len(wrong.data))
            data = varint(field.number << 3 | DELIMITED) + length + wrong.data
            yield Wrong(wrong.place, wrong.name, data)
