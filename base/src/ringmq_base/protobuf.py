"""The pieces of protobuf's encoding, for messages that aren't made by its classes.

Those copy each body into the message, and once more into its bytes. The links' own frames have the
same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

# The wire type of a field that is so many bytes: bytes, a text, or a message.
BYTES = 2


def varint(number: int) -> bytes:
    """As protobuf writes numbers."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


# Messages have the same sizes again and again.
@lru_cache(maxsize=4096)
def bytes_head(number: int, size: int) -> bytes:
    """What stands before the field `number` of so many bytes."""
    return varint(number << 3 | BYTES) + varint(size)


def repeated_bytes(number: int, values: Sequence[bytes]) -> list[bytes]:
    """A field `number` for each of the values, which are as they came: in pieces, to be joined."""
    if len(values) < 2:
        return [bytes_head(number, len(values[0])), values[0]] if values else []
    sizes = [*map(len, values)]
    heads = {size: bytes_head(number, size) for size in set(sizes)}
    return [*chain.from_iterable(zip(map(heads.__getitem__, sizes), values, strict=True))]
