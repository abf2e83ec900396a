"""The messages of a link, written and read by hand.

Each is a `LinkMessage{bytes frames = 1}` of proto/ringmq/v1/ring.proto: the tag 0x0A, the size as
a varint, and the content. The meaning of the content follows from the direction and the place in
the stream; all numbers are little endian.

    the first request    opening: version u8, session u64, incarnation u64, window u64,
                         sender size u16, target size u16, sender, target (UTF-8)
    the first response   answer: version u8, incarnation u64, node (UTF-8)
    other requests       kind u8: 0 frames, whole, perhaps none (then it is a heartbeat)
                                  1 a part of one large frame | 2 its last part
    other responses      credit: u64, the bytes of requests taken so far, in this stream;
                         notice u8: what the application there wants its neighbours to know

Bytes are counted as whole messages, tag and size included, from the second request on. Written
by hand, so that the frames of a message are copied once and never parsed by protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ringmq_base.protobuf import varint
from ringmq_gm.core.views import MemberId

VERSION = 2

WHOLE, PART, LAST_PART = range(3)

TAG = b"\x0a"
OPENING = struct.Struct("<BQQQHH")
ANSWER = struct.Struct("<BQ")
CREDIT = struct.Struct("<QB")


class WireError(ValueError):
    """These bytes are not a message of a link, or not of this version."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The caller, and the node that it means to reach. Among the streams from one life of a node,
    the one with the highest `session` counts."""

    sender: MemberId
    target: str
    session: int
    window_bytes: int


def message(pieces: Sequence[bytes | memoryview]) -> bytes:
    """One message with these pieces as its content, joined once."""
    size = sum(map(len, pieces))
    return b"".join((TAG, varint(size), *pieces))


def content(data: bytes) -> tuple[int, int]:
    """The first byte of a message's content, and the one after its last."""
    if data[:1] != TAG:
        raise WireError(f"message of {len(data)} bytes begins with {data[:1]!r}, expected {TAG!r}")
    length = len(data)
    if 1 < length < 0x82 and data[1] == length - 2:
        return 2, length
    # A size of two bytes, as nearly all messages with a body have it.
    if (
        length > 0x82
        and data[2] < 0x80 <= data[1]
        and length == 3 + (data[1] & 0x7F | data[2] << 7)
    ):
        return 3, length
    size = shift = 0
    for at in range(1, min(len(data), 6)):
        byte = data[at]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if len(data) != at + 1 + size:
                break
            return at + 1, len(data)
        shift += 7
    raise WireError(f"message of {len(data)} bytes says that its content has {size}")


def frames_message(kind: int, pieces: Sequence[bytes | memoryview]) -> bytes:
    return message([_KINDS[kind], *pieces])


def frames_in(data: bytes) -> tuple[int, int]:
    """The kind of the message, and where its frames begin, which go to its end."""
    start, end = content(data)
    if start == end or data[start] > LAST_PART:
        raise WireError(f"message of {len(data)} bytes has no known kind")
    return data[start], start + 1


def opening_message(opening: Opening) -> bytes:
    sender, target = opening.sender.node.encode(), opening.target.encode()
    fixed = OPENING.pack(
        VERSION,
        opening.session,
        opening.sender.incarnation,
        opening.window_bytes,
        len(sender),
        len(target),
    )
    return message([fixed, sender, target])


def read_opening(data: bytes) -> Opening:
    start, end = content(data)
    _ensure_version(data, start, end, OPENING)
    _, session, incarnation, window_bytes, sender_size, _ = OPENING.unpack_from(data, start)
    names = start + OPENING.size
    sender = _text(data[names : names + sender_size])
    target = _text(data[names + sender_size : end])
    return Opening(MemberId(sender, incarnation), target, session, window_bytes)


def answer_message(me: MemberId) -> bytes:
    return message([ANSWER.pack(VERSION, me.incarnation), me.node.encode()])


def read_answer(data: bytes) -> MemberId:
    start, end = content(data)
    _ensure_version(data, start, end, ANSWER)
    _, incarnation = ANSWER.unpack_from(data, start)
    return MemberId(_text(data[start + ANSWER.size : end]), incarnation)


def credit_message(taken_bytes: int, notice: int = 0) -> bytes:
    return message([CREDIT.pack(taken_bytes, notice)])


def read_credit(data: bytes) -> tuple[int, int]:
    """The bytes taken, and the notice."""
    start, end = content(data)
    if end - start != CREDIT.size:
        raise WireError(f"credit of {end - start} bytes, expected {CREDIT.size}")
    taken_bytes, notice = CREDIT.unpack_from(data, start)
    assert isinstance(taken_bytes, int)
    assert isinstance(notice, int)
    return taken_bytes, notice


_KINDS = (bytes([WHOLE]), bytes([PART]), bytes([LAST_PART]))


def _ensure_version(data: bytes, start: int, end: int, shape: struct.Struct) -> None:
    if start < end and data[start] != VERSION:
        raise WireError(f"the link speaks version {data[start]}, expected {VERSION}")
    if end - start < shape.size:
        raise WireError(f"handshake of {end - start} bytes, expected {shape.size} or more")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"name {data[:80]!r} is not UTF-8") from error


HEARTBEAT = frames_message(WHOLE, [])
