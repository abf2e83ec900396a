"""What members of a ring say to each other, as values and as bytes.

Encoded, a frame is a header and what its kind adds; all little endian. Frames
of many rings follow each other in one message of a link, each behind its size.

    size         u32   of what follows
    kind         u8
    flags        u8
    ring size    u16
    epoch        u64   of the view it was sent in
    ring         utf-8

    hello   last number u64, stable u64
    resume  last number u64
    op      stable u64, op epoch u64, number u64, marks u16, marks, payload
    marks   stable u64, marks u16, marks
    stale   -
    ping    nonce u64
    pong    nonce u64, log epoch u64, log number u64
    submit  payload

    a mark  received u64, persisted u64, complete u8

Nothing here has a checksum: TCP's and HTTP/2's guard the way, and what is kept
for long gets one in the journal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringmq_gm.core.views import MemberId

HEADER = struct.Struct("<IBBHQ")
AFTER_SIZE = HEADER.size - 4
U64 = struct.Struct("<Q")
U64_2 = struct.Struct("<QQ")
U64_3 = struct.Struct("<QQQ")
COUNT = struct.Struct("<H")
MARK = struct.Struct("<QQB")
OP_FIXED = struct.Struct("<QQQH")
MARKS_FIXED = struct.Struct("<QH")

FLAG_URGENT = 1


class FrameError(ValueError):
    """These bytes are not frames."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one member is. `complete`: it lacks nothing from before it joined."""

    received: int = 0
    persisted: int = 0
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """Upstream to downstream: I am your upstream in this epoch, and hold ops up to `last`."""

    ring: str
    epoch: int
    last: int
    stable: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Downstream to upstream: send me what comes after `last`."""

    ring: str
    epoch: int
    last: int


@dataclass(frozen=True, slots=True)
class OpFrame:
    """One op on its trip. `op_epoch` is that of the master who numbered it.

    `marks` are those of members 1, 2, ... of the view up to the sender.
    """

    ring: str
    epoch: int
    stable: int
    op_epoch: int
    number: int
    urgent: bool
    marks: tuple[Mark, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class MarksFrame:
    """The watermarks and `stable` without an op. The last member sends it to the master."""

    ring: str
    epoch: int
    stable: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Stale:
    """What you sent is of an old epoch; mine is `epoch`."""

    ring: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there, and how far is your log?"""

    ring: str
    epoch: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer. The log is what its sender has of the ring, or had when it started."""

    ring: str
    epoch: int
    nonce: int
    log_epoch: int
    log_number: int


@dataclass(frozen=True, slots=True)
class Submit:
    """A mirror asks the master to multicast this."""

    ring: str
    epoch: int
    urgent: bool
    payload: bytes


Frame = Hello | Resume | OpFrame | MarksFrame | Stale | Ping | Pong | Submit

HELLO, RESUME, OP, MARKS, STALE, PING, PONG, SUBMIT = range(1, 9)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A frame and who sent it; the link says who is at its other end."""

    sender: MemberId
    frame: Frame


def encode(frame: Frame) -> list[bytes]:
    """The pieces of the encoded frame, in order; an op's payload is one of them, not copied."""
    match frame:
        case OpFrame():
            fixed = OP_FIXED.pack(frame.stable, frame.op_epoch, frame.number, len(frame.marks))
            return _join(
                OP, frame, fixed + _encode_marks(frame.marks), frame.payload, urgent=frame.urgent
            )
        case MarksFrame():
            fixed = MARKS_FIXED.pack(frame.stable, len(frame.marks))
            return _join(MARKS, frame, fixed + _encode_marks(frame.marks))
        case Hello():
            return _join(HELLO, frame, U64_2.pack(frame.last, frame.stable))
        case Resume():
            return _join(RESUME, frame, U64.pack(frame.last))
        case Stale():
            return _join(STALE, frame, b"")
        case Ping():
            return _join(PING, frame, U64.pack(frame.nonce))
        case Pong():
            fixed = U64_3.pack(frame.nonce, frame.log_epoch, frame.log_number)
            return _join(PONG, frame, fixed)
        case Submit():
            return _join(SUBMIT, frame, b"", frame.payload, urgent=frame.urgent)


def _join(
    kind: int, frame: Frame, fixed: bytes, payload: bytes = b"", *, urgent: bool = False
) -> list[bytes]:
    ring = frame.ring.encode()
    size = AFTER_SIZE + len(ring) + len(fixed) + len(payload)
    flags = FLAG_URGENT if urgent else 0
    head = HEADER.pack(size, kind, flags, len(ring), frame.epoch) + ring + fixed
    return [head, payload] if payload else [head]


def _encode_marks(marks: Sequence[Mark]) -> bytes:
    return b"".join(MARK.pack(mark.received, mark.persisted, mark.complete) for mark in marks)


def decode(data: bytes) -> Iterator[Frame]:
    """The frames of one message of a link; raises `FrameError` at the first that is none."""
    at = 0
    while at < len(data):
        if len(data) - at < HEADER.size:
            raise FrameError(f"{len(data) - at} bytes left, a frame has at least {HEADER.size}")
        size, kind, flags, ring_size, epoch = HEADER.unpack_from(data, at)
        end = at + 4 + size
        body = at + HEADER.size + ring_size
        if end > len(data) or body > end:
            raise FrameError(f"frame of {size} bytes in a message of {len(data)} at byte {at}")
        try:
            ring = data[at + HEADER.size : body].decode()
            yield _decode_body(kind, flags, ring, epoch, data[body:end])
        except (struct.error, UnicodeDecodeError) as error:
            raise FrameError(f"frame of kind {kind} at byte {at}: {error}") from error
        at = end


def _decode_body(kind: int, flags: int, ring: str, epoch: int, body: bytes) -> Frame:
    urgent = bool(flags & FLAG_URGENT)
    match kind:
        case 3:  # OP
            stable, op_epoch, number, count = OP_FIXED.unpack_from(body)
            marks, payload_at = _decode_marks(body, OP_FIXED.size, count)
            payload = body[payload_at:]
            return OpFrame(ring, epoch, stable, op_epoch, number, urgent, marks, payload)
        case 4:  # MARKS
            stable, count = MARKS_FIXED.unpack_from(body)
            return MarksFrame(ring, epoch, stable, _decode_marks(body, MARKS_FIXED.size, count)[0])
        case 1:  # HELLO
            return Hello(ring, epoch, *U64_2.unpack(body))
        case 2:  # RESUME
            return Resume(ring, epoch, *U64.unpack(body))
        case 5:  # STALE
            return Stale(ring, epoch)
        case 6:  # PING
            return Ping(ring, epoch, *U64.unpack(body))
        case 7:  # PONG
            return Pong(ring, epoch, *U64_3.unpack(body))
        case 8:  # SUBMIT
            return Submit(ring, epoch, urgent, body)
        case _:
            raise FrameError(f"frame of unknown kind {kind}")


def _decode_marks(body: bytes, at: int, count: int) -> tuple[tuple[Mark, ...], int]:
    end = at + count * MARK.size
    if end > len(body):
        raise FrameError(f"frame says that it has {count} marks, and ends before")
    marks = tuple(
        Mark(received, persisted, bool(complete))
        for received, persisted, complete in MARK.iter_unpack(body[at:end])
    )
    return marks, end
