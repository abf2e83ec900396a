"""Protobuf's encoding, as far as the broker has to read and write it itself. Pure.

No room below the doors knows protobuf: here messages are told apart field by field.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringmq_base.protobuf import bytes_head, varint

_BYTES = 2
_FIXED64 = 1
_VARINT_BYTES_MAX = 10
_VARINT_MAX = 2**64 - 1
# A key is a number of 32 bits: other readers refuse the message.
_KEY_BYTES_MAX = 5
_KEY_MAX = 2**32 - 1


class EnvelopeError(ValueError):
    """These bytes are no encoded properties."""


def encoded_fields(data: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Number, value and encoded form of each field. Fixed numbers come as integers: those of
    doubles have their bits."""
    at = 0
    while at < len(data):
        start = at
        key, at = _read_varint(data, at, _KEY_BYTES_MAX, _KEY_MAX)
        value: int | bytes
        match key & 7:
            case 0:
                value, at = _read_varint(data, at)
            case 2:
                size, at = _read_varint(data, at)
                value = data[at : at + size]
                at += size
            case 1 | 5:
                size = 8 if key & 7 == _FIXED64 else 4
                # As a number: it stands for none of the fields that have bytes.
                value = int.from_bytes(data[at : at + size], "little")
                at += size
            case other:
                raise EnvelopeError(f"properties have a field of wire type {other} at byte {start}")
        if at > len(data) or not key >> 3:
            raise EnvelopeError(f"properties of {len(data)} bytes have no field at byte {start}")
        yield key >> 3, value, data[start:at]


def _read_varint(
    data: bytes, at: int, bytes_max: int = _VARINT_BYTES_MAX, number_max: int = _VARINT_MAX
) -> tuple[int, int]:
    number = shift = 0
    for end in range(at, min(at + bytes_max, len(data))):
        number |= (data[end] & 0x7F) << shift
        if data[end] < 0x80:
            if number > number_max:
                break
            return number, end + 1
        shift += 7
    raise EnvelopeError(f"properties of {len(data)} bytes have no number at byte {at}")


def bytes_field(number: int, data: bytes) -> bytes:
    return bytes_head(number, len(data)) + data


def text_field(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode()) if text else b""


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)
