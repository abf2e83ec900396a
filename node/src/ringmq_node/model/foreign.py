"""Properties in the encoding of another protocol, and what the broker asks of that encoding.

A door whose protocol has properties of its own hands them on as they are, in the fields `format`
and `foreign` of `ringmq.v1.Properties`. It registers a codec for its format; the rules of dead
letters stay where they are (`deaths`, `envelope`), and are the same for every protocol. Without a
codec nothing is lost: the history is then in the fields `deaths` and `first_death`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ringmq_node.model.fields import Headers

# Bytes that are no encoded properties at all.
UNREADABLE = "unreadable"


class PropertiesCodec(Protocol):
    """Of one format. Both raise `EnvelopeError` for bytes that aren't in it."""

    def headers(self, foreign: bytes) -> Headers:
        """All of them, each with its type."""
        ...

    def reborn(self, foreign: bytes, history: Headers) -> bytes:
        """These properties with these headers in place of those of the same names, and without an
        expiration. All else stays, byte for byte. Integers of `history` are 64 bits wide."""
        ...


PropertiesCodecs = Mapping[str, PropertiesCodec]
NO_CODECS: PropertiesCodecs = {}


def foreign_properties(format_name: str) -> bytes:
    """What a door puts before the length and the bytes of its properties, to have them encoded as
    `ringmq.v1.Properties`: the same for all messages."""
    name = format_name.encode()
    # Fields 18 and 19, both of bytes.
    return b"\x92\x01" + bytes((len(name),)) + name + b"\x9a\x01"
