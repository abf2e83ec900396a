"""The bytes of HTTP/2's frames (RFC 9113, sections 4 and 6) and of gRPC's messages. Pure.

    frame      length u24, type u8, flags u8, stream u32 (its highest bit is reserved), payload
    message    compressed u8 (0 or 1), size u32, content

All numbers are big endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ringmq_wire.codes import ErrorCode
from ringmq_wire.errors import ConnectionFault

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# The length in two pieces, because `struct` has no number of three bytes.
FRAME_HEADER = struct.Struct(">HBBBL")
FRAME_HEADER_BYTES = FRAME_HEADER.size
MESSAGE_PREFIX = struct.Struct(">BL")
MESSAGE_PREFIX_BYTES = MESSAGE_PREFIX.size
_U32 = struct.Struct(">L")
_SETTING = struct.Struct(">HL")

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

HEADER_TABLE_SIZE = 0x1
ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

STREAM_ID_MAX = 2**31 - 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def settings(pairs: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in pairs))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    if len(payload) % _SETTING.size:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes, no multiple of 6"
        )
    return [(name, value) for name, value in _SETTING.iter_unpack(payload)]


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, message: str) -> bytes:
    text = message.encode()[:256]
    return frame(GOAWAY, 0, 0, _U32.pack(last_stream_id) + _U32.pack(code) + text)


def read_u32(payload: bytes, what: str) -> int:
    """The number that is the whole payload of an RST_STREAM or a WINDOW_UPDATE."""
    if len(payload) != 4:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes, expected 4"
        )
    return int.from_bytes(payload, "big")


def read_goaway(payload: bytes) -> tuple[int, int, str]:
    """The last stream, the error code and the message of a GOAWAY."""
    if len(payload) < 8:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes, expected 8 or more"
        )
    last = int.from_bytes(payload[:4], "big") & STREAM_ID_MAX
    return last, int.from_bytes(payload[4:8], "big"), payload[8:264].decode(errors="replace")


def unpadded(kind: int, flags: int, payload: bytes) -> bytes:
    """The payload without its padding (RFC 9113, section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame {kind} has no pad length")
    padding = payload[0]
    if padding >= len(payload):
        raise ConnectionFault(
            ErrorCode.PROTOCOL_ERROR,
            f"frame {kind} of {len(payload)} bytes says that {padding} are padding",
        )
    return payload[1 : len(payload) - padding]


def header_frames(stream_id: int, flags: int, block: bytes, frame_bytes_max: int) -> bytes:
    """HEADERS with this block, and the CONTINUATIONs that it needs; none may come between them."""
    if len(block) <= frame_bytes_max:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    pieces = [block[at : at + frame_bytes_max] for at in range(0, len(block), frame_bytes_max)]
    last = len(pieces) - 1
    return b"".join(
        frame(
            CONTINUATION if number else HEADERS,
            (0 if number else flags) | (END_HEADERS if number == last else 0),
            stream_id,
            piece,
        )
        for number, piece in enumerate(pieces)
    )
