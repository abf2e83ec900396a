"""The ops: the master multicasts them, every replica applies and logs them.

An op's encoded form is the payload that goes around the ring, and the payload
of its journal record, byte for byte.

    kind     u8    1 publish | 2 remove | 3 requeue | 4 barrier | 5 forget |
                   6 time | 7 doom | 9 use | 20 gone | 21 lease
    flags    u8    publish: bit 0 transient, bit 1 has a message id, bit 2 expires,
                   bit 3 has a priority, bit 4 born doomed; requeue: bit 0 counted; doom:
                   the reason's code (`model.deaths`)
    ...

    publish  producer size u16, count u32, first position u64, first sequence u64,
             producer id, message id (none or 16 bytes), when it expires (none or
             milliseconds since 1970 u64; 0: unless it is delivered at once),
             priority (none or u8), block
    remove   ranges u32 in `count`; (first u64, last u64) each
    requeue  as remove
    barrier  nothing; as a remove of no ranges
    forget   producers u32 in `count`; (size u16, id) each
    use      nothing; as a remove of no ranges
    time     0 in `count`; milliseconds since 1970 u64
    doom     as remove
    gone     0 in `count`; acknowledged below u64, purged below u64
    lease    see `leases`

Little endian. The replica that applies an op decodes it; the ring never looks inside.
A publish without its block is its *outline*: all that `ReplicatedState` needs of it. Where the
bodies are in the message store, or in memory only, a journal keeps no more than the outline.
"""

from __future__ import annotations

import struct

from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue import leases
from ringmq_node.queue.block import Block, BlockError
from ringmq_node.queue.leases import ChangeLease, LeaseError

PUBLISH = 1
REMOVE = 2
REQUEUE = 3
BARRIER = 4
FORGET = 5
TIME = 6
DOOM = 7
USE = 9
GONE = 20
LEASE = 21

FLAG_TRANSIENT = 1
FLAG_MESSAGE_ID = 2
FLAG_EXPIRES = 4
FLAG_PRIORITY = 8
FLAG_BORN_DOOMED = 16
FLAG_COUNTED = 1
MESSAGE_ID_BYTES = 16
# Ranges in an op that is decoded, and in one that a master sends. Applying one takes some 10 us for
# each range, in one piece on every replica's loop.
RANGES_MAX = 1 << 20
RANGES_SENT_MAX = 1000
# And in a requeue. A master that has just applied it may deliver each of these at once: some 40 us.
REQUEUED_RANGES_MAX = 250

# Producers in an op that forgets: at most 330 kB.
FORGOTTEN_MAX = 5_000

PUBLISH_HEADER = struct.Struct("<BBHIQQ")
RANGES_HEADER = struct.Struct("<BBHI")
ID_SIZE = struct.Struct("<H")
TIME_OP = struct.Struct("<BBHIQ")
GONE_OP = struct.Struct("<BBHIQQ")
EXPIRY = struct.Struct("<Q")
# The deadline of a message that expires unless it is delivered as soon as it is visible.
AT_ONCE = 0
DEADLINE_MS_MAX = 1 << 62


class OpError(ValueError):
    """These bytes are not an op."""


@value
class Outline:
    """`count` messages at `first_position` and after. The producer's sequences run along."""

    first_position: int
    count: int
    # As its publisher has asked. A queue that isn't durable keeps all messages as transient ones,
    # and remembers which are.
    transient: bool = False
    producer_id: bytes = b""
    first_sequence: int = 0
    # Set (16 bytes) if the same block goes to several queues: the message store keeps its
    # bodies once for all of them.
    message_id: bytes = b""
    # When these messages expire, by the master's clock: milliseconds since 1970, `AT_ONCE`, or None
    # for never.
    expires_at_ms: int | None = None
    # 0 to 255; the highest goes first in a queue that has priorities.
    priority: int = 0
    # The queue has no room for these messages: they are dead letters (`DeathReason.MAXLEN`) from
    # the moment in which they are there, and no replica ever has them ready.
    born_doomed: bool = False

    @property
    def last_position(self) -> int:
        return self.first_position + self.count - 1

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1


@value
class Publish:
    """The messages of `block`, at `first_position` and after. The other fields as in `Outline`."""

    first_position: int
    block: Block
    transient: bool = False
    producer_id: bytes = b""
    first_sequence: int = 0
    message_id: bytes = b""
    expires_at_ms: int | None = None
    priority: int = 0
    born_doomed: bool = False

    @property
    def count(self) -> int:
        return self.block.count

    @property
    def last_position(self) -> int:
        return self.first_position + self.block.count - 1

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.block.count - 1


@value
class Remove:
    """These messages leave the queue: acknowledged, discarded, purged or dropped.

    Positions that are not live are passed over, so that applying twice is applying once.
    """

    ranges: tuple[Range, ...]


@value
class Requeue:
    """These messages, if live, may have been delivered: their next delivery says `redelivered`.

    With `counted` a consumer had them, and they have come back: one more for their counts. A new
    master doesn't know which messages were with consumers, so its take-over counts nothing."""

    ranges: tuple[Range, ...]
    counted: bool = False


@value
class Barrier:
    """Changes nothing. Its confirm shows that its master was the master when it was sent, and
    that every op before it is safe (`queue.barriers`)."""


@value
class Forget:
    """The queue no longer remembers the last sequences of these producers; any that it doesn't
    remember are passed over."""

    producer_ids: tuple[bytes, ...]


@value
class NoteTime:
    """It is this time, in milliseconds since 1970, by the master's clock. Producers that publish
    from here on count as seen at this time."""

    time_ms: int


@value
class Use:
    """The queue has had a consumer: one that is deleted without consumers may go from now on."""


@value
class NoteGone:
    """Readers by position have acknowledged all below `acked_end`, and a purge has removed
    messages below `purged_end`. Sent ahead of the removals, so that no reader finds a gap that
    nothing explains."""

    acked_end: int = 0
    purged_end: int = 0


@value
class Doom:
    """These messages, if live, leave the queue as dead letters (`queue.doomed`). They are given
    to no consumer from here on, and stay live until their dead-letter target has them.

    The ranges may come in any order, and overlap: letters go by positions."""

    reason: DeathReason
    ranges: tuple[Range, ...]


# The ops that a master's core asks for. A publish comes from its client.
AskedOp = Barrier | Doom | Remove | Requeue | NoteGone | ChangeLease
Op = Publish | AskedOp | Forget | NoteTime | Use


def encode(op: Op) -> bytes:
    match op:
        case Publish():
            return b"".join((encode_outline(op), op.block.view))
        case Remove(ranges):
            return _encode_ranges(REMOVE, ranges)
        case Requeue(ranges, counted):
            return _encode_ranges(REQUEUE, ranges, FLAG_COUNTED if counted else 0)
        case Barrier():
            return _encode_ranges(BARRIER, ())
        case Doom(reason, ranges):
            return _encode_ranges(DOOM, ranges, reason.code)
        case Use():
            return _encode_ranges(USE, ())
        case Forget(producer_ids):
            return _encode_forget(producer_ids)
        case NoteTime(time_ms):
            return TIME_OP.pack(TIME, 0, 0, 0, time_ms)
        case NoteGone(acked_end, purged_end):
            return GONE_OP.pack(GONE, 0, 0, 0, acked_end, purged_end)
        case ChangeLease():
            return leases.encode_change(LEASE, op)


def encode_outline(op: Publish | Outline) -> bytes:
    """A publish up to its block."""
    flags = FLAG_TRANSIENT if op.transient else 0
    if op.message_id:
        assert len(op.message_id) == MESSAGE_ID_BYTES
        flags |= FLAG_MESSAGE_ID
    tail = op.message_id
    if op.born_doomed:
        flags |= FLAG_BORN_DOOMED
    if op.expires_at_ms is not None:
        flags |= FLAG_EXPIRES
        tail += EXPIRY.pack(op.expires_at_ms)
    if op.priority:
        flags |= FLAG_PRIORITY
        tail += bytes((op.priority,))
    header = PUBLISH_HEADER.pack(
        PUBLISH, flags, len(op.producer_id), op.count, op.first_position, op.first_sequence
    )
    return header + op.producer_id + tail


def decode_outline(payload: bytes) -> tuple[Outline, int]:
    """The outline that `payload` begins with, and its size. Raises `OpError`."""
    flags, id_at, end, count, position, sequence = _publish_fields(payload)
    message_id, expires_at_ms, priority = _attributes(payload, flags, id_at, end)
    outline = Outline(
        first_position=position,
        count=count,
        transient=bool(flags & FLAG_TRANSIENT),
        producer_id=payload[PUBLISH_HEADER.size : id_at],
        first_sequence=sequence,
        message_id=message_id,
        expires_at_ms=expires_at_ms,
        priority=priority,
        born_doomed=bool(flags & FLAG_BORN_DOOMED),
    )
    return outline, end


def _attributes(payload: bytes, flags: int, at: int, end: int) -> tuple[bytes, int | None, int]:
    """The message id, the deadline and the priority, which are `payload[at:end]`."""
    if at == end:
        return b"", None, 0
    message_id, expires_at_ms, priority = b"", None, 0
    if flags & FLAG_MESSAGE_ID:
        message_id = payload[at : at + MESSAGE_ID_BYTES]
        at += MESSAGE_ID_BYTES
    if flags & FLAG_EXPIRES:
        (expires_at_ms,) = EXPIRY.unpack_from(payload, at)
        if expires_at_ms > DEADLINE_MS_MAX:
            raise OpError(f"publish that expires at {expires_at_ms}, {DEADLINE_MS_MAX} is most")
        at += EXPIRY.size
    if flags & FLAG_PRIORITY:
        priority = payload[at]
        if not priority:
            raise OpError("publish with a priority that says 0")
    return message_id, expires_at_ms, priority


def _publish_fields(payload: bytes, at: int = 0) -> tuple[int, int, int, int, int, int]:
    """Of the publish that is `payload[at:]`: the flags, where the attributes (the message id and so
    on) begin, where the outline ends, the count, the position and the sequence."""
    if len(payload) < at + PUBLISH_HEADER.size:
        raise OpError(f"publish of {len(payload) - at} bytes is shorter than its header")
    kind, flags, producer_size, count, position, sequence = PUBLISH_HEADER.unpack_from(payload, at)
    id_at = at + PUBLISH_HEADER.size + producer_size
    end = id_at
    if flags & ~FLAG_TRANSIENT:
        end += _attributes_bytes(flags)
    if kind != PUBLISH:
        raise OpError(f"op of kind {kind} where a publish (kind {PUBLISH}) should be")
    if producer_size > PRODUCER_ID_BYTES_MAX:
        raise OpError(
            f"publish with a producer id of {producer_size} bytes, {PRODUCER_ID_BYTES_MAX} is most"
        )
    if len(payload) < end:
        raise OpError(
            f"publish of {len(payload) - at} bytes, whose header says at least {end - at}"
        )
    if not count:
        raise OpError("publish of no messages")
    return flags, id_at, end, count, position, sequence


def _attributes_bytes(flags: int) -> int:
    if flags >= 2 * FLAG_BORN_DOOMED:
        raise OpError(f"publish with unknown flags {flags:#x}")
    return (
        (MESSAGE_ID_BYTES if flags & FLAG_MESSAGE_ID else 0)
        + (EXPIRY.size if flags & FLAG_EXPIRES else 0)
        + (1 if flags & FLAG_PRIORITY else 0)
    )


def decode(payload: bytes) -> Op:
    """The op of these bytes; raises `OpError` if they are none."""
    if len(payload) < RANGES_HEADER.size:
        raise OpError(f"op of {len(payload)} bytes is shorter than any header")
    kind = payload[0]
    if kind == PUBLISH:
        return _decode_publish(payload)
    if kind == FORGET:
        return _decode_forget(payload)
    if kind == TIME:
        if len(payload) != TIME_OP.size or payload[4:8] != bytes(4):
            raise OpError(f"op of {len(payload)} bytes where a time (kind {TIME}) should be")
        return NoteTime(TIME_OP.unpack(payload)[4])
    if kind in (GONE, LEASE):
        return _decode_of_readers(payload)
    if kind not in (REMOVE, REQUEUE, BARRIER, DOOM, USE):
        raise OpError(f"op of unknown kind {kind}")
    ranges = _decode_ranges(payload)
    if kind == DOOM:
        try:
            return Doom(DeathReason.of_code(payload[1]), ranges)
        except ValueError as error:
            raise OpError(str(error)) from error
    if kind == BARRIER:
        if ranges:
            raise OpError(f"barrier with {len(ranges)} ranges, it has none")
        return Barrier()
    if kind == USE:
        if ranges:
            raise OpError(f"use with {len(ranges)} ranges, it has none")
        return Use()
    if kind == REMOVE:
        return Remove(ranges)
    return Requeue(ranges, counted=bool(payload[1] & FLAG_COUNTED))


def _decode_of_readers(payload: bytes) -> NoteGone | ChangeLease:
    if payload[0] == LEASE:
        try:
            return leases.decode_change(payload)
        except LeaseError as error:
            raise OpError(str(error)) from error
    if len(payload) != GONE_OP.size or payload[4:8] != bytes(4):
        raise OpError(f"op of {len(payload)} bytes where positions (kind {GONE}) should be")
    return NoteGone(*GONE_OP.unpack(payload)[4:])


def block_in(data: bytes, at: int) -> Block | None:
    """The block of the op that is `data[at:]`, not copied; None if it is no publish. Raises
    `OpError`."""
    if len(data) <= at or data[at] != PUBLISH:
        return None
    _, _, end, count, _, _ = _publish_fields(data, at)
    return _block_at(data, end, count)


def _block_at(data: bytes, at: int, count: int) -> Block:
    try:
        block = Block(data, at)
    except BlockError as error:
        raise OpError(str(error)) from error
    if block.count != count:
        raise OpError(f"publish says {count} messages, its block has {block.count}")
    return block


def _decode_publish(payload: bytes) -> Publish:
    flags, id_at, end, count, position, sequence = _publish_fields(payload)
    message_id, expires_at_ms, priority = b"", None, 0
    if id_at < end:
        message_id, expires_at_ms, priority = _attributes(payload, flags, id_at, end)
    return Publish(
        first_position=position,
        block=_block_at(payload, end, count),
        transient=bool(flags & FLAG_TRANSIENT),
        producer_id=payload[PUBLISH_HEADER.size : id_at],
        first_sequence=sequence,
        message_id=message_id,
        expires_at_ms=expires_at_ms,
        priority=priority,
        born_doomed=bool(flags & FLAG_BORN_DOOMED),
    )


def _encode_forget(producer_ids: tuple[bytes, ...]) -> bytes:
    assert len(producer_ids) <= FORGOTTEN_MAX
    pieces = [RANGES_HEADER.pack(FORGET, 0, 0, len(producer_ids))]
    for producer_id in producer_ids:
        pieces += (ID_SIZE.pack(len(producer_id)), producer_id)
    return b"".join(pieces)


def _decode_forget(payload: bytes) -> Forget:
    count = RANGES_HEADER.unpack_from(payload)[3]
    if count > FORGOTTEN_MAX:
        raise OpError(f"op that forgets {count} producers, {FORGOTTEN_MAX} is most")
    found: list[bytes] = []
    at = RANGES_HEADER.size
    for _ in range(count):
        if at + ID_SIZE.size > len(payload):
            raise OpError(f"op of {len(payload)} bytes says that it forgets {count} producers")
        (size,) = ID_SIZE.unpack_from(payload, at)
        at += ID_SIZE.size + size
        if not 1 <= size <= PRODUCER_ID_BYTES_MAX or at > len(payload):
            raise OpError(f"op that forgets a producer with an id of {size} bytes at byte {at}")
        found.append(payload[at - size : at])
    if at != len(payload):
        raise OpError(f"op of {len(payload)} bytes, whose producers end at byte {at}")
    return Forget(tuple(found))


def _encode_ranges(kind: int, ranges: tuple[Range, ...], flags: int = 0) -> bytes:
    assert len(ranges) <= RANGES_MAX
    numbers = [number for pair in ranges for number in pair]
    return RANGES_HEADER.pack(kind, flags, 0, len(ranges)) + struct.pack(
        f"<{len(numbers)}Q", *numbers
    )


def _decode_ranges(payload: bytes) -> tuple[Range, ...]:
    count = RANGES_HEADER.unpack_from(payload)[3]
    if count > RANGES_MAX or len(payload) != RANGES_HEADER.size + 16 * count:
        raise OpError(
            f"op of {len(payload)} bytes says that it has {count} ranges, {RANGES_MAX} is most"
        )
    numbers = struct.unpack_from(f"<{2 * count}Q", payload, RANGES_HEADER.size)
    ranges = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    for first, last in ranges:
        if first > last:
            raise OpError(f"op has the range {first} to {last}, whose end is before its start")
    return ranges
