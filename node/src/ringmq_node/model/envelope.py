"""What a broker reads and changes in the properties of a message that it dead-letters. Pure.

Properties are a serialized `ringmq.v1.Properties`. Here only its outermost fields are told apart,
and those few that a dead letter needs are read; all others, also unknown ones, are kept byte for
byte. So no room below the doors knows protobuf. The numbers, of proto/ringmq/v1/common.proto:

    Properties  6 headers  7 exchange  8 routing key  9 priority  10 expiration  11 deaths
                12 first death  20 further routing keys
    Death       1 reason  2 queue  3 exchange  4 routing keys  5 count  6 time  7 expiration
    FirstDeath  1 reason  2 queue  3 exchange
    a header    1 key  2 value

A field that comes twice counts with its last value, as protobuf has it: the broker appends fields
to what a publisher has sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ringmq_node.model.deaths import Death, DeathReason, queues_in_a_cycle, with_death
from ringmq_node.model.rules import PRIORITIES_MAX

_HEADERS = 6
_DEATHS = 11
_FIRST_DEATH = 12

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_VARINT_BYTES_MAX = 10


class EnvelopeError(ValueError):
    """These bytes are no encoded properties."""


@dataclass(frozen=True, slots=True)
class MessageEnvelope:
    """`rest`: the fields that none of the others stands for; headers are in it too."""

    exchange: str
    # That its consumers may know of; empty: it was published to its queue itself.
    routing_keys: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    priority: int
    expiration_ms: int | None
    deaths: tuple[Death, ...]
    # Encoded; empty: it has never died.
    first_death: bytes
    rest: bytes


@dataclass(frozen=True, slots=True)
class DeadLetterEnvelope:
    """Of a dead letter: its properties, and what its way depends on."""

    properties: bytes
    # As it was published to the queue that it has left.
    routing_keys: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    # Names, in the same vhost, of queues that must not get it: it would go round for ever.
    except_queues: frozenset[str]
    # Its publisher's. Not in the properties: who publishes the letter says it once more.
    priority: int


def dead_envelope(
    properties: bytes, reason: DeathReason, queue: str, *, at_ms: int, bytes_max: int
) -> DeadLetterEnvelope:
    """The envelope of a message that has left `queue`, its name without a vhost.

    A message that was published to the queue itself has the queue's name for its routing key, as
    if it had come through the default exchange.

    `bytes_max` bounds the properties: the history is cut for it at its oldest end, and left out if
    there is no room for the newest death. Properties that can't be read are kept as they are: only
    a publisher can have made them so.
    """
    try:
        found = read_envelope(properties)
    except EnvelopeError:
        return DeadLetterEnvelope(properties, (queue,), (), frozenset(), 0)
    routing_keys = found.routing_keys or (queue,)
    death = Death(
        reason=reason.value,
        queue=queue,
        count=1,
        at_ms=at_ms,
        exchange=found.exchange,
        routing_keys=routing_keys,
        original_expiration_ms=found.expiration_ms,
    )
    deaths = with_death(found.deaths, death)
    except_queues = frozenset[str]()
    if reason is not DeathReason.REJECTED:
        except_queues = queues_in_a_cycle(deaths)
    first = found.first_death or _first_death(death)
    pieces = [found.rest]
    size = len(found.rest)
    for piece in (
        _field(_FIRST_DEATH, first),
        *(_field(_DEATHS, encode_death(each)) for each in deaths),
    ):
        size += len(piece)
        if size > bytes_max:
            break
        pieces.append(piece)
    return DeadLetterEnvelope(
        b"".join(pieces),
        routing_keys,
        found.headers,
        except_queues,
        # Only a publisher can have made it higher.
        min(found.priority, PRIORITIES_MAX),
    )


def read_envelope(properties: bytes) -> MessageEnvelope:
    """Raises `EnvelopeError`."""
    exchange = ""
    routing_key: tuple[str, ...] = ()
    cc: list[str] = []
    priority = 0
    expiration_ms: int | None = None
    headers: list[tuple[str, str]] = []
    deaths: list[Death] = []
    first_death = b""
    rest: list[bytes] = []
    for number, value, whole in _fields(properties):
        match number, value:
            case 7, bytes():
                exchange = _text_of(value)
            case 8, bytes():
                routing_key = (_text_of(value),)
            case 9, int():
                priority = value
            case 10, int():
                expiration_ms = value
            case 11, bytes():
                deaths.append(decode_death(value))
            case 12, bytes():
                first_death = value
            case 20, bytes():
                cc.append(_text_of(value))
            case _:
                if number == _HEADERS and isinstance(value, bytes):
                    headers.append(_header(value))
                rest.append(whole)
    return MessageEnvelope(
        exchange,
        (*routing_key, *cc),
        tuple(dict(headers).items()),
        priority,
        expiration_ms,
        tuple(deaths),
        first_death,
        b"".join(rest),
    )


def encode_death(death: Death) -> bytes:
    pieces = [
        _text(1, death.reason),
        _text(2, death.queue),
        _text(3, death.exchange),
        *(_field(4, key.encode()) for key in death.routing_keys),
        _number(5, death.count),
        _number(6, death.at_ms),
    ]
    if death.original_expiration_ms is not None:
        pieces.append(_number(7, death.original_expiration_ms))
    return b"".join(pieces)


def decode_death(data: bytes) -> Death:
    """Raises `EnvelopeError`."""
    texts = {1: "", 2: "", 3: ""}
    numbers: dict[int, int] = {}
    routing_keys: list[str] = []
    for number, value, _ in _fields(data):
        if isinstance(value, int):
            numbers[number] = value
        elif number == 4:
            routing_keys.append(_text_of(value))
        elif number in texts:
            texts[number] = _text_of(value)
    return Death(
        reason=texts[1],
        queue=texts[2],
        exchange=texts[3],
        routing_keys=tuple(routing_keys),
        count=numbers.get(5, 0),
        at_ms=numbers.get(6, 0),
        original_expiration_ms=numbers.get(7),
    )


def _first_death(death: Death) -> bytes:
    return _text(1, death.reason) + _text(2, death.queue) + _text(3, death.exchange)


def _header(data: bytes) -> tuple[str, str]:
    texts = {number: value for number, value, _ in _fields(data) if isinstance(value, bytes)}
    return _text_of(texts.get(1, b"")), _text_of(texts.get(2, b""))


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"properties with a text that isn't UTF-8: {error}") from error


# --- protobuf's encoding ---


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Number, value and encoded form of each field; of fixed numbers the bytes, as nobody here
    reads one."""
    at = 0
    while at < len(data):
        start = at
        key, at = _read_varint(data, at)
        value: int | bytes
        match key & 7:
            case 0:
                value, at = _read_varint(data, at)
            case 2:
                size, at = _read_varint(data, at)
                value = data[at : at + size]
                at += size
            case 1 | 5:
                size = 8 if key & 7 == _FIXED64 else 4
                # As a number: it stands for none of the fields that have bytes.
                value = int.from_bytes(data[at : at + size], "little")
                at += size
            case other:
                raise EnvelopeError(f"properties have a field of wire type {other} at byte {start}")
        if at > len(data) or not key >> 3:
            raise EnvelopeError(f"properties of {len(data)} bytes have no field at byte {start}")
        yield key >> 3, value, data[start:at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for end in range(at, min(at + _VARINT_BYTES_MAX, len(data))):
        number |= (data[end] & 0x7F) << shift
        if data[end] < 0x80:
            return number, end + 1
        shift += 7
    raise EnvelopeError(f"properties of {len(data)} bytes have no number at byte {at}")


def varint(number: int) -> bytes:
    """As protobuf writes numbers."""
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode()) if text else b""


def _number(number: int, value: int) -> bytes:
    return varint(number << 3 | _VARINT) + varint(value) if value or number == 7 else b""
