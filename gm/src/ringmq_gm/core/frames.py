"""The frames that the members of a ring send each other, as values and as bytes.

An encoded frame is a header and the fields of its kind, all little endian. Frames of many rings
follow each other in one message of a link, each behind its size.

    size         u32   of the rest
    kind         u8
    flags        u8
    ring size    u16
    epoch        u64   of the view it was sent in
    ring         utf-8

    hello   last epoch u64, last number u64, stable u64, safe u64
    resume  last number u64
    op      stable u64, safe u64, op epoch u64, number u64, marks u16, marks, payload
    marks   stable u64, safe u64, marks u16, marks
    told    view
    asked   -
    wanted  view
    ping    nonce u64
    pong    nonce u64, log epoch u64, log number u64
    submit  payload
    gone    -

    a view  JSON, as the registry has it (`View.encode`)
    a mark  received u64, persisted u64, complete u8

    flags   1 urgent (op, submit), 2 the log is whole (pong)

A frame has no checksum: TCP's guards the way, and an op that is kept gets one in the journal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from ringmq_base.values import value
from ringmq_gm.core.views import MemberId, View, ViewError

HEADER = struct.Struct("<IBBHQ")
_HEADER_BYTES = HEADER.size
AFTER_SIZE = HEADER.size - 4
U64 = struct.Struct("<Q")
U64_3 = struct.Struct("<QQQ")
COUNT = struct.Struct("<H")
MARK = struct.Struct("<QQB")
U64_4 = struct.Struct("<QQQQ")
OP_FIXED = struct.Struct("<QQQQH")
MARKS_FIXED = struct.Struct("<QQH")

FLAG_URGENT = 1
FLAG_WHOLE = 2


class FrameError(ValueError):
    """These bytes are not frames."""


@value
class Mark:
    """How far one member is. `complete`: it lacks nothing from before it joined."""

    received: int = 0
    persisted: int = 0
    complete: bool = False


@value
class Hello:
    """To the downstream neighbour: I am before you in this epoch, and hold the ops up to `last`,
    which was numbered in epoch `last_epoch`. `stable`: all members have received the ops so far;
    `safe`: they are confirmed, as being on the disks of all that count."""

    ring: str
    epoch: int
    last_epoch: int
    last: int
    stable: int
    safe: int


@value
class Resume:
    """To the upstream neighbour: send me the ops after `last`."""

    ring: str
    epoch: int
    last: int


@value
class OpFrame:
    """One op on its trip. `op_epoch` is the one in which a master numbered it.

    `marks` are those of members 1, 2, ... of the view up to the sender; `safe` as in `Hello`.
    """

    ring: str
    epoch: int
    stable: int
    safe: int
    op_epoch: int
    number: int
    urgent: bool
    marks: tuple[Mark, ...]
    payload: bytes


@value
class MarksFrame:
    """The watermarks, `stable` and `safe` without an op. The last member sends it to the
    master."""

    ring: str
    epoch: int
    stable: int
    safe: int
    marks: tuple[Mark, ...]


@value
class ViewTold:
    """The registry has held this view; I know no newer one. `epoch` is the view's."""

    ring: str
    epoch: int
    view: View


@value
class ViewAsked:
    """Your frame is of an epoch that I don't know: which view is it? Mine is of `epoch`."""

    ring: str
    epoch: int


@value
class ViewWanted:
    """Propose this view in my place: it follows that of `epoch`, and the registry doesn't answer
    me."""

    ring: str
    epoch: int
    view: View


@value
class Ping:
    """Are you there, and how far is your log?"""

    ring: str
    epoch: int
    nonce: int


@value
class Pong:
    """The answer: how far the sender's log goes, and whether it is whole.

    `epoch` is that of the newest view that the sender knows. A member that is outside that view
    takes no op until it enters a later one, so its log stays as it is said here.
    """

    ring: str
    epoch: int
    nonce: int
    log_epoch: int
    log_number: int
    log_is_whole: bool


@value
class Submit:
    """A mirror asks the master to multicast this."""

    ring: str
    epoch: int
    urgent: bool
    payload: bytes


@value
class Gone:
    """This life of my node has no member of the ring any more: it has failed. The node lives."""

    ring: str
    epoch: int


# The frames that belong to an epoch, and those that are taken in any.
EpochFrame = Hello | Resume | OpFrame | MarksFrame | Submit
# The same for `isinstance`, the most frequent first. A union would take several times as long.
EPOCH_FRAMES = (OpFrame, MarksFrame, Hello, Resume, Submit)
Frame = EpochFrame | ViewTold | ViewAsked | ViewWanted | Ping | Pong | Gone

HELLO, RESUME, OP, MARKS, TOLD, PING, PONG, SUBMIT, GONE, ASKED, WANTED = range(1, 12)


@value
class Envelope:
    """A frame and its sender: the life of a node that is at the other end of the link."""

    sender: MemberId
    frame: Frame


def encode(frame: Frame) -> list[bytes]:
    """The pieces of the encoded frame, in order; an op's payload is one of them, not copied."""
    match frame:
        case OpFrame():
            return _encode_op(frame)
        case MarksFrame():
            return _encode_marks_frame(frame)
        case Hello():
            fixed = U64_4.pack(frame.last_epoch, frame.last, frame.stable, frame.safe)
            return _join(HELLO, frame, fixed)
        case Resume():
            return _join(RESUME, frame, U64.pack(frame.last))
        case ViewTold():
            return _join(TOLD, frame, frame.view.encode())
        case ViewWanted():
            return _join(WANTED, frame, frame.view.encode())
        case ViewAsked():
            return _join(ASKED, frame, b"")
        case Ping():
            return _join(PING, frame, U64.pack(frame.nonce))
        case Pong():
            fixed = U64_3.pack(frame.nonce, frame.log_epoch, frame.log_number)
            return _join(PONG, frame, fixed, is_whole=frame.log_is_whole)
        case Submit():
            return _join(SUBMIT, frame, b"", frame.payload, urgent=frame.urgent)
        case Gone():
            return _join(GONE, frame, b"")


def _join(
    kind: int,
    frame: Frame,
    fixed: bytes,
    payload: bytes = b"",
    *,
    urgent: bool = False,
    is_whole: bool = False,
) -> list[bytes]:
    ring = frame.ring.encode()
    size = AFTER_SIZE + len(ring) + len(fixed) + len(payload)
    flags = (FLAG_URGENT if urgent else 0) | (FLAG_WHOLE if is_whole else 0)
    head = HEADER.pack(size, kind, flags, len(ring), frame.epoch) + ring + fixed
    return [head, payload] if payload else [head]


# These two are what nearly all frames are: each written in one go, without `_join`.
def _encode_op(frame: OpFrame) -> list[bytes]:
    ring, marks, payload = frame.ring.encode(), frame.marks, frame.payload
    size = AFTER_SIZE + len(ring) + OP_FIXED.size + MARK.size * len(marks) + len(payload)
    head = (
        HEADER.pack(size, OP, FLAG_URGENT if frame.urgent else 0, len(ring), frame.epoch)
        + ring
        + OP_FIXED.pack(frame.stable, frame.safe, frame.op_epoch, frame.number, len(marks))
    )
    for mark in marks:
        head += MARK.pack(mark.received, mark.persisted, mark.complete)
    return [head, payload] if payload else [head]


def _encode_marks_frame(frame: MarksFrame) -> list[bytes]:
    ring, marks = frame.ring.encode(), frame.marks
    size = AFTER_SIZE + len(ring) + MARKS_FIXED.size + MARK.size * len(marks)
    head = (
        HEADER.pack(size, MARKS, 0, len(ring), frame.epoch)
        + ring
        + MARKS_FIXED.pack(frame.stable, frame.safe, len(marks))
    )
    for mark in marks:
        head += MARK.pack(mark.received, mark.persisted, mark.complete)
    return [head]


def decode(data: bytes, at: int = 0) -> Iterator[Frame]:
    """The frames of one message of a link, which begin at byte `at`. Raises `FrameError` at the
    first bytes that are none."""
    all_bytes = len(data)
    while at < all_bytes:
        if all_bytes - at < _HEADER_BYTES:
            raise FrameError(f"{all_bytes - at} bytes left, a frame has at least {_HEADER_BYTES}")
        size, kind, flags, ring_size, epoch = HEADER.unpack_from(data, at)
        end = at + 4 + size
        body = at + _HEADER_BYTES + ring_size
        # The sizes come from another process: both are checked before anything is sliced by them.
        if end > all_bytes or body > end:
            raise FrameError(f"frame of {size} bytes in a message of {all_bytes} at byte {at}")
        try:
            ring = data[at + _HEADER_BYTES : body].decode()
            # An op's payload is copied once, and the others' bytes are few.
            if kind == OP:
                yield _op(ring, epoch, flags, data, body, end)
            elif kind == MARKS:
                yield _marks(ring, epoch, data, body, end)
            else:
                yield _decode_body(kind, flags, ring, epoch, data[body:end])
        except (struct.error, UnicodeDecodeError, ViewError) as error:
            raise FrameError(f"frame of kind {kind} at byte {at}: {error}") from error
        at = end


def decode_parts(parts: Sequence[memoryview]) -> Iterator[Frame]:
    """The frames of one message that came in these parts. Raises `FrameError`.

    A link cuts one large op behind its head, so its payload is joined out of the parts, and copied
    once. Whatever else comes in parts is joined first.
    """
    first, later = parts[0], parts[1:]
    if _begins_op(first, sum(map(len, parts))):
        _, _, flags, ring_size, epoch = HEADER.unpack_from(first)
        body = _HEADER_BYTES + ring_size
        try:
            ring = str(first[_HEADER_BYTES:body], "utf-8")
        except UnicodeDecodeError as error:
            raise FrameError(f"frame of kind {OP} at byte 0: {error}") from error
        return iter((_op(ring, epoch, flags, first, body, len(first), later),))
    return decode(b"".join(parts))


def _begins_op(first: memoryview, all_bytes: int) -> bool:
    """Whether these are the first bytes of one op with `all_bytes`, and contain its head."""
    if len(first) < _HEADER_BYTES:
        return False
    size, kind, _, ring_size, _ = HEADER.unpack_from(first)
    marks = _HEADER_BYTES + ring_size + OP_FIXED.size
    if kind != OP or size + 4 != all_bytes or marks > len(first):
        return False
    (count,) = COUNT.unpack_from(first, marks - COUNT.size)
    return bool(marks + count * MARK.size <= len(first))


def _decode_body(kind: int, flags: int, ring: str, epoch: int, body: bytes) -> Frame:
    decode_kind = _DECODERS.get(kind)
    if decode_kind is None:
        raise FrameError(f"frame of unknown kind {kind}")
    return decode_kind(ring, epoch, flags, body)


def _op(
    ring: str,
    epoch: int,
    flags: int,
    data: bytes | memoryview,
    at: int,
    end: int,
    later: Sequence[memoryview] = (),
) -> OpFrame:
    """The payload goes on in `later`."""
    if end - at < OP_FIXED.size:
        raise FrameError(f"op of {end - at} bytes, expected {OP_FIXED.size} or more")
    stable, safe, op_epoch, number, count = OP_FIXED.unpack_from(data, at)
    marks, payload_at = _decode_marks(data, at + OP_FIXED.size, end, count)
    urgent = bool(flags & FLAG_URGENT)
    rest = data[payload_at:end]
    payload = rest if isinstance(rest, bytes) else b"".join((rest, *later))
    return OpFrame(ring, epoch, stable, safe, op_epoch, number, urgent, marks, payload)


def _marks(ring: str, epoch: int, data: bytes, at: int, end: int) -> MarksFrame:
    if end - at < MARKS_FIXED.size:
        raise FrameError(f"marks of {end - at} bytes, expected {MARKS_FIXED.size} or more")
    stable, safe, count = MARKS_FIXED.unpack_from(data, at)
    marks, _ = _decode_marks(data, at + MARKS_FIXED.size, end, count)
    return MarksFrame(ring, epoch, stable, safe, marks)


def _pong(ring: str, epoch: int, flags: int, body: bytes) -> Pong:
    nonce, log_epoch, log_number = U64_3.unpack(body)
    return Pong(ring, epoch, nonce, log_epoch, log_number, bool(flags & FLAG_WHOLE))


def _told(ring: str, epoch: int, body: bytes) -> ViewTold:
    return ViewTold(ring, epoch, _view(ring, body, epoch))


def _wanted(ring: str, epoch: int, body: bytes) -> ViewWanted:
    return ViewWanted(ring, epoch, _view(ring, body, epoch + 1))


def _view(ring: str, body: bytes, epoch: int) -> View:
    view = View.decode(body)
    if view.epoch != epoch:
        raise FrameError(f"ring {ring!r}: a view of epoch {view.epoch}, expected {epoch}")
    return view


_DECODERS: dict[int, Callable[[str, int, int, bytes], Frame]] = {
    HELLO: lambda ring, epoch, _, body: Hello(ring, epoch, *U64_4.unpack(body)),
    RESUME: lambda ring, epoch, _, body: Resume(ring, epoch, *U64.unpack(body)),
    TOLD: lambda ring, epoch, _, body: _told(ring, epoch, body),
    WANTED: lambda ring, epoch, _, body: _wanted(ring, epoch, body),
    ASKED: lambda ring, epoch, _, __: ViewAsked(ring, epoch),
    PING: lambda ring, epoch, _, body: Ping(ring, epoch, *U64.unpack(body)),
    PONG: _pong,
    SUBMIT: lambda ring, epoch, flags, body: Submit(ring, epoch, bool(flags & FLAG_URGENT), body),
    GONE: lambda ring, epoch, _, __: Gone(ring, epoch),
}


def _decode_marks(
    data: bytes | memoryview, at: int, limit: int, count: int
) -> tuple[tuple[Mark, ...], int]:
    """`count` marks from byte `at` on, and the byte behind them: at most `limit`."""
    end = at + count * MARK.size
    if end > limit:
        raise FrameError(f"{count} marks from byte {at} on end at byte {end}, the frame at {limit}")
    marks: tuple[Mark, ...] = ()
    # One or two, mostly.
    for start in range(at, end, MARK.size):
        received, persisted, complete = MARK.unpack_from(data, start)
        marks += (Mark(received, persisted, complete != 0),)
    return marks, end
