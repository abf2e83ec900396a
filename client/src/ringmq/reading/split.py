"""The large field of an encoded message, taken out as it is.

protobuf copies a field of bytes twice: when it reads the message, and whenever somebody looks at
the field. A piece of a browse is nearly all one such field, so that is taken out before: what
remains is small.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from ringmq.v1 import reader_pb2 as wire

_BYTES = 2
_FIXED_BYTES = {1: 8, 5: 4}


class SplitAnswer:
    """A `BrowseResponse`, without its large field: `arrow` or `bodies`, which are as they came.
    `head` has all else."""

    __slots__ = ("arrow", "bodies", "head")

    def __init__(self, head: wire.BrowseResponse, arrow: memoryview, bodies: memoryview) -> None:
        self.head = head
        self.arrow = arrow
        self.bodies = bodies

    @classmethod
    def from_bytes(cls, data: bytes) -> SplitAnswer:
        """Raises `DecodeError` for bytes that are no message, as protobuf does."""
        rest, (arrow, bodies) = split_fields(data, _LARGE)
        return cls(wire.BrowseResponse.FromString(rest), arrow, bodies)

    @property
    def first(self) -> int:
        return self.head.first

    @property
    def end(self) -> int:
        return self.head.end

    @property
    def numbering(self) -> wire.Numbering:
        return self.head.numbering


_LARGE = (wire.BrowseResponse.ARROW_FIELD_NUMBER, wire.BrowseResponse.BODIES_FIELD_NUMBER)


def split_fields(data: bytes, numbers: Sequence[int]) -> tuple[bytes, list[memoryview]]:
    """The message without these fields, which have bytes, and their values in this order. If a
    field is there more than once, the last one counts; if it isn't there, the value is empty."""
    view = memoryview(data)
    kept: list[memoryview] = []
    found = [view[:0]] * len(numbers)
    start, at, end = 0, 0, len(data)
    while at < end:
        begin = at
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            if key >> 3 in numbers:
                kept.append(view[start:begin])
                found[numbers.index(key >> 3)] = view[at : at + size]
                start = at + size
            at += size
        elif kind == 0:
            _, at = _varint(data, at)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise DecodeError(f"a field of wire type {kind} at byte {begin}")
    if at > end:
        raise DecodeError(f"a message of {end} bytes has a field that ends at byte {at}")
    kept.append(view[start:])
    return b"".join(kept), found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for index in range(at, min(at + 10, len(data))):
        number |= (data[index] & 0x7F) << shift
        if data[index] < 0x80:
            return number, index + 1
        shift += 7
    raise DecodeError(f"no number at byte {at} of {len(data)}")
