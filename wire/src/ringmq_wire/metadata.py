"""Metadata, status messages and time-outs as the text of HTTP headers. Pure.

Source: "gRPC over HTTP2" (PROTOCOL-HTTP2.md). Values of names that end with `-bin` travel as
base64: without padding from here, with or without it from the peer.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from math import ceil
from urllib.parse import unquote_to_bytes

from ringmq_wire.codes import Code, Metadata, RpcStatus
from ringmq_wire.compression import Headers
from ringmq_wire.errors import CallRefusal

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
# Kept by gRPC and HTTP for themselves: not for applications.
_RESERVED = frozenset({"te", "content-type", "content-length", "host", "connection"})
# All bytes that a `grpc-message` holds as they are: printable, but for the percent sign.
_PLAIN = re.compile(r"[\x20-\x24\x26-\x7e]*")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS_MAX = 99_999_999


def metadata_to_headers(metadata: Metadata) -> Headers:
    """Raises ValueError if a name or a value can't travel."""
    if not metadata:
        return ()
    headers = []
    for name, value in metadata:
        if not _NAME.fullmatch(name) or name in _RESERVED or name.startswith("grpc-"):
            raise ValueError(f"{name!r} can't be the name of metadata")
        if name.endswith("-bin"):
            raw = value if isinstance(value, bytes) else value.encode()
            encoded = encode_binary(raw)
        elif isinstance(value, str) and _VALUE.fullmatch(value):
            encoded = value.encode()
        else:
            raise ValueError(f"{value!r} can't be the value of {name!r}: not printable ASCII")
        headers.append((name.encode(), encoded))
    return tuple(headers)


def metadata_of_headers(headers: Headers) -> Metadata:
    """What isn't kept by gRPC and HTTP for themselves, in the order of the headers."""
    found: list[tuple[str, str | bytes]] = []
    for raw_name, raw in headers:
        name = raw_name.decode("ascii", "replace")
        if name[:1] == ":" or name in _RESERVED or name.startswith("grpc-"):
            continue
        if name.endswith("-bin"):
            # Proxies may join several values with commas (RFC 9110, section 5.3).
            found.extend((name, decode_binary(name, part)) for part in raw.split(b","))
        else:
            found.append((name, raw.decode("latin-1").strip(" \t")))
    return tuple(found)


def encode_binary(raw: bytes) -> bytes:
    return b64encode(raw).rstrip(b"=")


def decode_binary(name: str, encoded: bytes) -> bytes:
    encoded = encoded.strip()
    try:
        return b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error as error:
        raise CallRefusal(
            RpcStatus(Code.INTERNAL, f"metadata {name!r} isn't base64: {error}")
        ) from error


def message_to_header(message: str) -> bytes:
    if _PLAIN.fullmatch(message):
        return message.encode()
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in message.encode(errors="replace")
    )


def message_of_header(encoded: bytes) -> str:
    if b"%" in encoded:
        encoded = unquote_to_bytes(encoded)
    return encoded.decode(errors="replace")


def timeout_to_header(timeout_s: float) -> bytes:
    """Rounded up, never to 0; at most eight digits, in the finest unit that has room for them."""
    for unit, size_s in (
        (b"n", 1e-9),
        (b"u", 1e-6),
        (b"m", 1e-3),
        (b"S", 1.0),
        (b"M", 60.0),
        (b"H", 3600.0),
    ):
        amount = max(1, ceil(timeout_s / size_s))
        if amount <= _TIMEOUT_DIGITS_MAX:
            return b"%d%b" % (amount, unit)
    return b"%dH" % _TIMEOUT_DIGITS_MAX


def timeout_of_header(encoded: bytes) -> float:
    found = _TIMEOUT.fullmatch(encoded)
    if found is None:
        raise CallRefusal(RpcStatus(Code.INTERNAL, f"grpc-timeout is {encoded[:20]!r}"))
    return int(found[1]) * _UNIT_S[found[2]]
