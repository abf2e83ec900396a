"""What a broker reads and changes in the properties of a message that it dead-letters. Pure.

Properties are a serialized `ringmq.v1.Properties`. Here only its outermost fields are told apart,
and those few that a dead letter needs are read; all others, also unknown ones, are kept byte for
byte. So no room below the doors knows protobuf. The numbers, of proto/ringmq/v1/common.proto:

    Properties  6 headers  7 exchange  8 routing key  9 priority  10 expiration  11 deaths
                12 first death  18 format  19 foreign  20 further routing keys
    Death       1 reason  2 queue  3 exchange  4 routing keys  5 count  6 time  7 expiration
    FirstDeath  1 reason  2 queue  3 exchange
    a header    1 key  2 value
    FieldValue  1 text  2 integer  3 boolean  4 number  5 data  6 timestamp  7 array  8 table
                9 other

A field that comes twice counts with its last value, as protobuf has it: the broker appends fields
to what a publisher has sent.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ringmq_node.model.deaths import (
    Death,
    DeathReason,
    FirstDeath,
    history_headers,
    history_of,
    queues_in_a_cycle,
    with_death,
)
from ringmq_node.model.fields import VOID, FieldValue, array, table
from ringmq_node.model.foreign import NO_CODECS, UNREADABLE, PropertiesCodec, PropertiesCodecs
from ringmq_node.model.protobuf import (
    EnvelopeError,
    bytes_field,
    encoded_fields,
    number_field,
    text_field,
)
from ringmq_node.model.rules import PRIORITIES_MAX

_HEADERS = 6
_DEATHS = 11
_FIRST_DEATH = 12
_FORMAT = 18
_FOREIGN = 19
# As protobuf's own readers: deeper ones refuse the message.
_NESTED_MAX = 50


@dataclass(frozen=True, slots=True)
class MessageEnvelope:
    """`rest`: the fields that none of the others stands for; headers are in it too."""

    exchange: str
    # That its consumers may know of; empty: it was published to its queue itself. See `keys_in`.
    routing_keys: tuple[str, ...]
    headers: tuple[tuple[str, FieldValue], ...]
    priority: int
    expiration_ms: int | None
    deaths: tuple[Death, ...]
    # None: it has never died.
    first_death: FirstDeath | None
    # Properties in another protocol's encoding (`foreign`), if it has a format.
    format: str
    foreign: bytes
    rest: bytes

    def keys_in(self, queue: str) -> tuple[str, ...]:
        """The routing keys that consumers of `queue` are told, its name without a vhost.

        A message that was published to the queue itself has the queue's name for its key, as if it
        had come through the default exchange. No message stores that.
        """
        return self.routing_keys or (queue,)


@dataclass(frozen=True, slots=True)
class DeadLetterEnvelope:
    """Of a dead letter: its properties, and what its way depends on."""

    properties: bytes
    # As it was published to the queue that it has left.
    routing_keys: tuple[str, ...]
    headers: tuple[tuple[str, FieldValue], ...]
    # Names, in the same vhost, of queues that must not get it: it would go round for ever.
    except_queues: frozenset[str]
    # Its publisher's. Not in the properties: who publishes the letter says it once more.
    priority: int


def dead_envelope(
    properties: bytes,
    reason: DeathReason,
    queue: str,
    *,
    at_ms: int,
    bytes_max: int,
    codecs: PropertiesCodecs = NO_CODECS,
) -> DeadLetterEnvelope:
    """The envelope of a message that has left `queue`, its name without a vhost.

    `bytes_max` bounds the properties: the history is cut for it at its oldest end, and left out if
    there is no room for the newest death. Properties that can't be read are kept whole, as foreign
    ones, beside the history that begins.
    """
    found = _readable(properties)
    codec = codecs.get(found.format)
    if codec is not None:
        try:
            found = _with_foreign(found, codec)
        except EnvelopeError:
            # Only a publisher can have made them so. They are kept as they are.
            codec = None
    routing_keys = found.keys_in(queue)
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
    first = found.first_death or FirstDeath.of(death)
    except_queues = frozenset[str]()
    if reason is not DeathReason.REJECTED:
        except_queues = queues_in_a_cycle(deaths)
    return DeadLetterEnvelope(
        _cut(lambda count: _encoded(found, deaths[:count], first, codec), len(deaths), bytes_max),
        routing_keys,
        found.headers,
        except_queues,
        # Only a publisher can have made it higher.
        min(found.priority, PRIORITIES_MAX),
    )


def _readable(properties: bytes) -> MessageEnvelope:
    try:
        return read_envelope(properties)
    except EnvelopeError:
        return MessageEnvelope("", (), (), 0, None, (), None, UNREADABLE, properties, b"")


def _with_foreign(found: MessageEnvelope, codec: PropertiesCodec) -> MessageEnvelope:
    """With headers and history of the foreign properties. Raises `EnvelopeError`."""
    headers = codec.headers(found.foreign)
    deaths, first = history_of(headers)
    # A node without the codec has written them beside, if there are any.
    return replace(
        found,
        headers=(*found.headers, *headers.items()),
        deaths=deaths or found.deaths,
        first_death=first or found.first_death,
    )


def _encoded(
    found: MessageEnvelope,
    deaths: Sequence[Death],
    first: FirstDeath,
    codec: PropertiesCodec | None,
) -> bytes:
    pieces = [found.rest]
    if codec is None:
        if found.format:
            pieces += text_field(_FORMAT, found.format), bytes_field(_FOREIGN, found.foreign)
        if deaths:
            pieces.append(bytes_field(_FIRST_DEATH, encode_first_death(first)))
        pieces += (bytes_field(_DEATHS, encode_death(each)) for each in deaths)
    else:
        reborn = codec.reborn(found.foreign, history_headers(deaths, first))
        pieces += text_field(_FORMAT, found.format), bytes_field(_FOREIGN, reborn)
    return b"".join(pieces)


def _cut(encoded: Callable[[int], bytes], count: int, bytes_max: int) -> bytes:
    """With as many of `count` deaths as fit."""
    whole = encoded(count)
    if len(whole) <= bytes_max:
        return whole
    fitting = bisect_right(range(count), bytes_max, key=lambda kept: len(encoded(kept))) - 1
    return encoded(max(fitting, 0))


def read_envelope(properties: bytes) -> MessageEnvelope:
    """Raises `EnvelopeError`."""
    exchange = format_name = ""
    routing_key: tuple[str, ...] = ()
    cc: list[str] = []
    priority = 0
    expiration_ms: int | None = None
    headers: list[tuple[str, FieldValue]] = []
    deaths: list[Death] = []
    first_death: FirstDeath | None = None
    foreign = b""
    rest: list[bytes] = []
    for number, value, whole in encoded_fields(properties):
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
                first_death = _decode_first_death(value)
            case 18, bytes():
                format_name = _text_of(value)
            case 19, bytes():
                foreign = value
            case 20, bytes():
                cc.append(_text_of(value))
            case _:
                if number == _HEADERS and isinstance(value, bytes):
                    headers.append(_named(value))
                rest.append(whole)
    return MessageEnvelope(
        exchange,
        (*routing_key, *cc),
        tuple(dict(headers).items()),
        priority,
        expiration_ms,
        tuple(deaths),
        first_death,
        format_name,
        foreign,
        b"".join(rest),
    )


def encode_death(death: Death) -> bytes:
    pieces = [
        text_field(1, death.reason),
        text_field(2, death.queue),
        text_field(3, death.exchange),
        *(bytes_field(4, key.encode()) for key in death.routing_keys),
        number_field(5, death.count),
        number_field(6, death.at_ms),
    ]
    if death.original_expiration_ms is not None:
        pieces.append(number_field(7, death.original_expiration_ms))
    return b"".join(pieces)


def decode_death(data: bytes) -> Death:
    """Raises `EnvelopeError`."""
    texts = {1: "", 2: "", 3: ""}
    numbers: dict[int, int] = {}
    routing_keys: list[str] = []
    for number, value, _ in encoded_fields(data):
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


def encode_first_death(first: FirstDeath) -> bytes:
    return text_field(1, first.reason) + text_field(2, first.queue) + text_field(3, first.exchange)


def _decode_first_death(data: bytes) -> FirstDeath:
    death = decode_death(data)
    return FirstDeath.of(death)


# --- values of headers ---


def _named(data: bytes, nested: int = 0) -> tuple[str, FieldValue]:
    """An entry of a map: a name and its value."""
    parts = {number: value for number, value, _ in encoded_fields(data) if isinstance(value, bytes)}
    return _text_of(parts.get(1, b"")), decode_field(parts.get(2, b""), nested)


def decode_field(data: bytes, nested: int = 0) -> FieldValue:
    """Of an encoded `ringmq.v1.FieldValue`. Raises `EnvelopeError`."""
    if nested > _NESTED_MAX:
        raise EnvelopeError(f"a header with values in values, {_NESTED_MAX} deep")
    found = VOID
    for number, value, _ in encoded_fields(data):
        match number, value:
            case 1, bytes():
                found = FieldValue("text", _text_of(value))
            case 2, int():
                # Zigzag: small negative numbers are short.
                found = FieldValue("integer", value >> 1 ^ -(value & 1))
            case 3, int():
                found = FieldValue("boolean", bool(value))
            case 4, int():
                [number_value] = struct.unpack("<d", struct.pack("<Q", value))
                # What is no number equals nothing, not even itself.
                found = FieldValue("float", number_value) if math.isfinite(number_value) else VOID
            case 5, bytes():
                found = FieldValue("bytes", value)
            case 6, int():
                found = FieldValue("timestamp", value)
            case 7, bytes():
                held = [each for n, each, _ in encoded_fields(value) if n == 1]
                found = array([decode_field(_bytes(each), nested + 1) for each in held])
            case 8, bytes():
                held = [each for n, each, _ in encoded_fields(value) if n == 1]
                found = table(dict(_named(_bytes(each), nested + 1) for each in held))
            case 9, bytes():
                parts = {n: each for n, each, _ in encoded_fields(value)}
                name = _text_of(_bytes(parts.get(1, b"")))
                found = FieldValue("other", (name, _bytes(parts.get(2, b""))))
    return found


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise EnvelopeError("a header with a number for a value that holds others")
    return value


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"properties with a text that isn't UTF-8: {error}") from error
