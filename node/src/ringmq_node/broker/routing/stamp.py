"""What the broker appends to the encoded properties of messages. Pure.

Exchange and routing key of what was published to an exchange; and of any message its priority and
time to live, if its publisher said one for the batch.

Properties are a serialized `ringmq.v1.Properties`, which nobody below the doors takes apart. Two
protobuf messages back to back are read as one, merged: so fields are added without parsing. For a
whole batch these bytes are made once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq_base.protobuf import varint

# Fields of `ringmq.v1.Properties`: two strings and two numbers.
_EXCHANGE = 7
_ROUTING_KEY = 8
_PRIORITY = 9
_EXPIRATION = 10
_CC = 20
_LENGTH_DELIMITED = 2
# Names and keys have at most 255 bytes; each has its tag and its length before it.
KEY_BYTES_MAX = 255
KEY_STAMP_BYTES_MAX = KEY_BYTES_MAX + 4
# Routing keys of one message.
KEYS_MAX = 100
# A priority has two bytes behind its tag, a time to live ten.
STAMP_BYTES_MAX = (1 + KEYS_MAX) * KEY_STAMP_BYTES_MAX + 3 + 11


def stamped(
    properties: Sequence[bytes], exchange: str, routing_keys: Sequence[str]
) -> Sequence[bytes]:
    """`properties`: none, one for all messages, or one for each; the result has at least one."""
    stamp = _text(_EXCHANGE, exchange) + _text(_ROUTING_KEY, routing_keys[0])
    if len(routing_keys) > 1:
        stamp += b"".join(_text(_CC, key) for key in routing_keys[1:])
    return _with(properties, stamp)


def noted(properties: Sequence[bytes], ttl_ms: int | None, priority: int) -> Sequence[bytes]:
    """`properties`: as for `stamped`. With neither of the two, nothing is appended."""
    note = b"" if not priority else bytes((_PRIORITY << 3,)) + varint(priority)
    if ttl_ms is not None:
        note += bytes((_EXPIRATION << 3,)) + varint(ttl_ms)
    return _with(properties, note) if note else properties


def _with(properties: Sequence[bytes], end: bytes) -> Sequence[bytes]:
    return [each + end for each in properties] if properties else [end]


def _text(field: int, text: str) -> bytes:
    # Also if it is empty: a publisher may have set one of its own.
    data = text.encode()
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(len(data)) + data
