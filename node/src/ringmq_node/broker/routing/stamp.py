"""Exchange and routing key, appended to the encoded properties of messages. Pure.

Properties are a serialized `ringmq.v1.Properties`, which nobody below the doors takes apart. Two
protobuf messages back to back are read as one, merged: so fields are added without parsing. For a
whole batch these bytes are made once.
"""

from __future__ import annotations

from collections.abc import Sequence

# The fields `exchange` and `routing_key` of `ringmq.v1.Properties`, which are strings.
_EXCHANGE = 7
_ROUTING_KEY = 8
_LENGTH_DELIMITED = 2
# Names and keys have at most 255 bytes; each has its tag and its length before it.
STAMP_BYTES_MAX = 2 * (255 + 3)


def stamped(properties: Sequence[bytes], exchange: str, routing_key: str) -> Sequence[bytes]:
    """`properties`: none, one for all messages, or one for each; the result has at least one."""
    stamp = _text(_EXCHANGE, exchange) + _text(_ROUTING_KEY, routing_key)
    return [each + stamp for each in properties] if properties else [stamp]


def _text(field: int, text: str) -> bytes:
    # Also if it is empty: a publisher may have set one of its own.
    data = text.encode()
    return bytes((field << 3 | _LENGTH_DELIMITED,)) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)
