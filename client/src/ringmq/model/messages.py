"""Messages as they are delivered: bodies in batches, and single messages made on demand.

A `Batch` keeps the bodies as the wire gave them and makes a `Message` only when one is asked
for, so that a consumer of whole batches pays nothing per message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import overload

from ringmq.calls.arguments import check_fields
from ringmq.calls.requests import request_of
from ringmq.model.fields import HeaderValue, fields_from_wire, fields_to_wire
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common


@dataclass(frozen=True, slots=True)
class Death:
    """How often a message has left a queue for one reason; the rest is of the first time."""

    #: rejected, expired, maxlen or delivery_limit.
    reason: str
    queue: str
    count: int
    #: Since 1970, by the clock of the queue's master.
    time_ms: int
    #: As it was published to the queue.
    exchange: str
    routing_keys: tuple[str, ...]
    #: The message's own expiration, in milliseconds, if it had one.
    original_expiration_ms: int | None = None

    @classmethod
    def from_wire(cls, wire: common.Death) -> Death:
        expires = wire.HasField("original_expiration_ms")
        return cls(
            reason=wire.reason,
            queue=wire.queue,
            count=wire.count,
            time_ms=wire.time_ms,
            exchange=wire.exchange,
            routing_keys=tuple(wire.routing_keys),
            original_expiration_ms=wire.original_expiration_ms if expires else None,
        )


@dataclass(frozen=True, slots=True)
class Properties:
    """A publisher's notes on a message, which the broker hands on; and below, the broker's own."""

    message_id: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    content_type: str = ""
    timestamp_ms: int = 0
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    content_encoding: str = ""
    type: str = ""
    user_id: str = ""
    app_id: str = ""
    cluster_id: str = ""
    #: Properties in another protocol's encoding, and that encoding's name, such as "amqp-0-9-1".
    format: str = ""
    foreign: bytes = b""
    #: Of a delivered message. One that was published to its queue itself has those of the default
    #: exchange: "" and the queue's name. They aren't sent: the broker says them.
    exchange: str = ""
    routing_key: str = ""
    #: Of a delivered message: the `priority` and the `ttl_ms` that its publisher said. Not sent
    #: with the properties.
    priority: int = 0
    expiration_ms: int | None = None
    #: Of a dead letter, the newest death first. Set by the broker: a publisher's isn't sent.
    deaths: tuple[Death, ...] = ()
    #: Of a delivered message: the further routing keys that its publisher said as `cc`. Not sent.
    cc: tuple[str, ...] = ()

    def to_wire(self) -> common.Properties:
        """Raises `BadRequestError`, which names the field, for what no property can have."""
        try:
            return self._to_wire(common.Properties)
        except (TypeError, ValueError, AttributeError):
            # Checked only now: properties are made for each message that comes or goes.
            check_fields(self)
            return self._to_wire(functools.partial(request_of, common.Properties))

    def _to_wire(self, make: Callable[..., common.Properties]) -> common.Properties:
        return make(
            message_id=self.message_id,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            content_type=self.content_type,
            timestamp_ms=self.timestamp_ms,
            headers=fields_to_wire(self.headers),
            content_encoding=self.content_encoding,
            type=self.type,
            user_id=self.user_id,
            app_id=self.app_id,
            cluster_id=self.cluster_id,
            format=self.format,
            foreign=self.foreign,
        )

    @classmethod
    def from_wire(cls, wire: common.Properties, queue: str = "") -> Properties:
        """Of a message in `queue`."""
        routing_key = wire.routing_key
        if not routing_key and not wire.exchange:
            # No queue has an empty name: nothing comes through the default exchange by that key.
            routing_key = queue
        return cls(
            message_id=wire.message_id,
            correlation_id=wire.correlation_id,
            reply_to=wire.reply_to,
            content_type=wire.content_type,
            timestamp_ms=wire.timestamp_ms,
            headers=fields_from_wire(wire.headers),
            content_encoding=wire.content_encoding,
            type=wire.type,
            user_id=wire.user_id,
            app_id=wire.app_id,
            cluster_id=wire.cluster_id,
            format=wire.format,
            foreign=wire.foreign,
            exchange=wire.exchange,
            routing_key=routing_key,
            priority=wire.priority,
            expiration_ms=wire.expiration_ms if wire.HasField("expiration_ms") else None,
            deaths=tuple(map(Death.from_wire, wire.deaths)),
            cc=tuple(wire.cc),
        )


@lru_cache(maxsize=1024)
def bare_properties(queue: str) -> Properties:
    """Of messages that were published to this queue itself, without any."""
    return Properties(routing_key=queue)


@dataclass(frozen=True, slots=True)
class Message:
    """One delivered message. `generation` names the stream that it came on."""

    position: int
    body: bytes
    redelivered: bool
    properties: Properties
    generation: int
    #: How often it has come back: requeued, or left behind by a consumer. 0 at its first delivery.
    delivery_count: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Messages at consecutive positions, all redelivered or none, with the same count."""

    first: int
    bodies: list[bytes]
    #: None, one for all, or one for each body.
    properties: Sequence[common.Properties]
    redelivered: bool
    delivery_count: int = 0
    #: Where they are.
    queue: str = ""

    def slice(self, start: int, stop: int) -> Part:
        """The messages `start..stop - 1`, counted within this part."""
        one_each = len(self.properties) == len(self.bodies)
        return Part(
            self.first + start,
            self.bodies[start:stop],
            self.properties[start:stop] if one_each else self.properties,
            self.redelivered,
            self.delivery_count,
            self.queue,
        )

    def message(self, index: int, generation: int) -> Message:
        if self.properties:
            wire = self.properties[index if len(self.properties) > 1 else 0]
            properties = Properties.from_wire(wire, self.queue)
        else:
            properties = bare_properties(self.queue)
        return Message(
            self.first + index,
            self.bodies[index],
            self.redelivered,
            properties,
            generation,
            self.delivery_count,
        )


class Batch(Sequence[Message]):
    """Messages that came together, in order: a sequence, whose slices are batches too.

    `bodies` and `positions` make no object per message; indexing and iterating make `Message`s.
    """

    __slots__ = ("_count", "_parts", "generation")

    def __init__(self, parts: Sequence[Part], generation: int = 0) -> None:
        self._parts = tuple(part for part in parts if part.bodies)
        self._count = sum(len(part.bodies) for part in self._parts)
        #: The stream that it came on; 0 if `get_messages` returned it.
        self.generation = generation

    @classmethod
    def from_wire(
        cls, deliveries: Sequence[broker.Delivery], queue: str, generation: int = 0
    ) -> Batch:
        return cls(
            [
                Part(
                    d.first_position,
                    list(d.bodies),
                    d.properties,
                    d.redelivered,
                    d.delivery_count,
                    queue,
                )
                for d in deliveries
            ],
            generation,
        )

    @property
    def bodies(self) -> list[bytes]:
        if len(self._parts) == 1:
            return self._parts[0].bodies
        return [body for part in self._parts for body in part.bodies]

    @property
    def positions(self) -> list[tuple[int, int]]:
        """(first, last), both included; neighbours are not merged."""
        return [(part.first, part.first + len(part.bodies) - 1) for part in self._parts]

    @property
    def redelivered(self) -> list[tuple[int, int]]:
        """The positions that may have been delivered before, as `positions` gives them."""
        return [
            (part.first, part.first + len(part.bodies) - 1)
            for part in self._parts
            if part.redelivered
        ]

    @property
    def parts(self) -> tuple[Part, ...]:
        return self._parts

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        for part in self._parts:
            for index in range(len(part.bodies)):
                yield part.message(index, self.generation)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step != 1:
                raise ValueError("a batch can be sliced only with step 1")
            return self._slice(start, stop)
        wanted = index + self._count if index < 0 else index
        for part in self._parts:
            if 0 <= wanted < len(part.bodies):
                return part.message(wanted, self.generation)
            wanted -= len(part.bodies)
        raise IndexError(f"batch of {self._count} messages has no index {index}")

    def _slice(self, start: int, stop: int) -> Batch:
        parts = []
        for part in self._parts:
            count = len(part.bodies)
            low, high = max(start, 0), min(stop, count)
            if low < high:
                parts.append(part.slice(low, high))
            start, stop = start - count, stop - count
        return Batch(parts, self.generation)

    def __repr__(self) -> str:
        ranges = self.positions
        where = f"{ranges[0][0]}..{ranges[-1][1]} in {len(ranges)} ranges" if ranges else "-"
        return f"<Batch of {self._count} messages, positions {where}>"
