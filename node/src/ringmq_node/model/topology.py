"""The registry's records of vhosts, exchanges and bindings. Pure.

    topology/vhosts/<name, percent-encoded>      VhostRecord, as JSON
    topology/exchanges/<name, percent-encoded>   ExchangeRecord, as JSON
    topology/bindings/<hash of what it joins>    BindingRecord, as JSON

Names are internal ones (`model.names`). Each declaration makes a new id, and a binding names the
ids of both its ends. So a binding is dead the moment that one of its ends is deleted, wherever
the node dies that was to remove it, and doesn't come to life when a namesake is declared.

The vhost "/" and the predeclared exchanges of each vhost have no records: they are always there.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from ringmq_node.model.fields import (
    FieldError,
    FieldValue,
    Headers,
    field_of_json,
    field_to_json,
)
from ringmq_node.model.names import DEFAULT_VHOST, SEPARATOR, join_name, split_name

TOPOLOGY = "topology/"
VHOSTS = TOPOLOGY + "vhosts/"
EXCHANGES = TOPOLOGY + "exchanges/"
BINDINGS = TOPOLOGY + "bindings/"

# AMQP's short strings.
ROUTING_KEY_BYTES_MAX = 255
# Of one binding, and of each key and value.
BINDING_ARGUMENTS_MAX = 64
ARGUMENT_BYTES_MAX = 1024
ID_BYTES_MAX = 255


class TopologyRecordError(ValueError):
    """These bytes are not the record of a vhost, an exchange or a binding."""


class ExchangeKind(Enum):
    """How an exchange chooses. The values are stored in the registry."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class HeaderMatch(Enum):
    """How many headers of a binding have to be those of the message; the values are AMQP's.

    Without `-with-x`, headers whose names begin with "x-" are not looked at.
    """

    ALL = "all"
    ANY = "any"
    ALL_WITH_X = "all-with-x"
    ANY_WITH_X = "any-with-x"


# The argument of a binding that holds a `HeaderMatch`.
X_MATCH = "x-match"


@dataclass(frozen=True, slots=True)
class VhostRecord:
    """While it is `deleting`, nothing is declared in it, so that what it has can be counted."""

    name: str
    id: str
    deleting: bool = False

    @property
    def key(self) -> str:
        return vhost_key(self.name)

    def encode(self) -> bytes:
        return _encode({"name": self.name, "id": self.id, "deleting": self.deleting})

    @staticmethod
    def decode(key: str, data: bytes) -> VhostRecord:
        """Raises `TopologyRecordError`, also for a record that belongs at another key."""
        fields = _Fields(key, data)
        return fields.at_home(
            VhostRecord(fields.text("name"), fields.id("id"), fields.flag("deleting"))
        )


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """`alternate`, an internal name, gets what this exchange can't route; "" is none.

    `life` is the life of the cluster in which a transient exchange was declared, and "" for a
    durable one (see `broker.topology.life`). `was_bound`: an exchange with `auto_delete` had a
    binding from it, and goes with the last one.
    """

    name: str
    id: str
    kind: ExchangeKind
    durable: bool = True
    auto_delete: bool = False
    # Takes messages from exchanges alone, and none from clients.
    internal: bool = False
    alternate: str = ""
    life: str = ""
    was_bound: bool = False

    @property
    def key(self) -> str:
        return exchange_key(self.name)

    @property
    def is_default(self) -> bool:
        """Whether every queue of the vhost is bound to it, by its name."""
        return not split_name(self.name)[1]

    @property
    def is_predeclared(self) -> bool:
        return is_predeclared(self.name)

    def encode(self) -> bytes:
        return _encode(
            {
                "name": self.name,
                "id": self.id,
                "kind": self.kind.value,
                "durable": self.durable,
                "auto_delete": self.auto_delete,
                "internal": self.internal,
                "alternate": self.alternate,
                "life": self.life,
                "was_bound": self.was_bound,
            }
        )

    @staticmethod
    def decode(key: str, data: bytes) -> ExchangeRecord:
        """Raises `TopologyRecordError`, also for a record that belongs at another key."""
        fields = _Fields(key, data)
        record = ExchangeRecord(
            fields.text("name"),
            fields.id("id"),
            fields.one_of("kind", ExchangeKind),
            fields.flag("durable"),
            fields.flag("auto_delete"),
            fields.flag("internal"),
            fields.text("alternate"),
            fields.text("life"),
            fields.flag("was_bound"),
        )
        return fields.at_home(record)


@dataclass(frozen=True, slots=True)
class BindingRecord:
    """From an exchange to a queue, or to an exchange if `to_exchange`, of the same vhost.

    `arguments` are sorted by name; void as a value is "whatever the value". Only a headers
    exchange looks at them; they tell bindings apart everywhere, with their types.
    """

    source: str
    source_id: str
    destination: str
    destination_id: str
    to_exchange: bool = False
    routing_key: str = ""
    arguments: tuple[tuple[str, FieldValue], ...] = ()

    @property
    def key(self) -> str:
        identity = [
            self.source_id,
            self.destination_id,
            self.to_exchange,
            self.routing_key,
            _arguments_to_json(self.arguments),
        ]
        return BINDINGS + hashlib.sha256(_encode(identity)).hexdigest()[:40]

    def encode(self) -> bytes:
        return _encode(
            {
                "source": self.source,
                "source_id": self.source_id,
                "destination": self.destination,
                "destination_id": self.destination_id,
                "to_exchange": self.to_exchange,
                "routing_key": self.routing_key,
                "arguments": dict(_arguments_to_json(self.arguments)),
            }
        )

    @staticmethod
    def decode(key: str, data: bytes) -> BindingRecord:
        """Raises `TopologyRecordError`, also for a record that belongs at another key."""
        fields = _Fields(key, data)
        record = BindingRecord(
            fields.text("source"),
            fields.id("source_id"),
            fields.text("destination"),
            fields.id("destination_id"),
            fields.flag("to_exchange"),
            fields.text("routing_key"),
            sorted_arguments(fields.arguments("arguments")),
        )
        return fields.at_home(record)


def vhost_key(vhost: str) -> str:
    return VHOSTS + quote(vhost, safe="")


def exchange_key(name: str) -> str:
    return EXCHANGES + quote(name, safe="")


def name_of_topology_key(key: str) -> str:
    """The name whose record belongs at `key`; of a binding, its hash."""
    return unquote(key.removeprefix(TOPOLOGY).partition("/")[2], errors="replace")


def new_topology_id() -> str:
    return uuid.uuid4().hex


def sorted_arguments(arguments: Headers) -> tuple[tuple[str, FieldValue], ...]:
    return tuple(sorted(arguments.items()))


def _arguments_to_json(
    arguments: tuple[tuple[str, FieldValue], ...],
) -> list[tuple[str, list[Any]]]:
    return [(name, field_to_json(value)) for name, value in arguments]


# What RabbitMQ's tracing publishes to; here nothing does. Programs may bind to it, not publish.
TRACE = "amq.rabbitmq.trace"
# By name, as in every vhost; all of them are durable.
_PREDECLARED = {
    "": ExchangeKind.DIRECT,
    "amq.direct": ExchangeKind.DIRECT,
    "amq.fanout": ExchangeKind.FANOUT,
    "amq.topic": ExchangeKind.TOPIC,
    "amq.headers": ExchangeKind.HEADERS,
    "amq.match": ExchangeKind.HEADERS,
    TRACE: ExchangeKind.TOPIC,
}


def is_predeclared(name: str) -> bool:
    return split_name(name)[1] in _PREDECLARED


def predeclared(vhost: VhostRecord) -> list[ExchangeRecord]:
    """The exchanges that the vhost has from the beginning. Their ids end with the vhost's."""
    return [
        ExchangeRecord(
            join_name(vhost.name, name), f"{vhost.id}:{name}", kind, internal=name == TRACE
        )
        for name, kind in _PREDECLARED.items()
    ]


# The vhost that is always there, without a record.
ROOT_VHOST = VhostRecord(DEFAULT_VHOST, "root")


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


R = TypeVar("R", VhostRecord, ExchangeRecord, BindingRecord)
E = TypeVar("E", bound=Enum)
T = TypeVar("T")


class _Fields:
    """The fields of a record, each checked when it is read: whatever can write to the registry
    can have written this."""

    def __init__(self, key: str, data: bytes) -> None:
        self._key = key
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TopologyRecordError(f"registry key {key!r}: no JSON: {data[:80]!r}") from error
        if type(value) is not dict:
            raise self._error(f"{data[:80]!r} is no object")
        self._value = value

    def _error(self, why: str) -> TopologyRecordError:
        return TopologyRecordError(f"registry key {self._key!r}: {why}")

    def _checked(self, field: str, kind: type[T]) -> T:
        value = self._value.get(field)
        # Not `isinstance`: for Python a bool is an int.
        if type(value) is not kind:
            raise self._error(f"{field} is {value!r}, and no {kind.__name__}")
        return value

    def text(self, field: str) -> str:
        value = self._checked(field, str)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # JSON can write half a surrogate pair, and no frame or file can.
            raise self._error(f"{field} is {value!r}, and no text") from error
        return value

    def id(self, field: str) -> str:
        value = self.text(field)
        if not 1 <= len(value.encode()) <= ID_BYTES_MAX:
            raise self._error(f"{field} is {value!r}")
        return value

    def flag(self, field: str) -> bool:
        return self._checked(field, bool)

    def one_of(self, field: str, kinds: type[E]) -> E:
        value = self.text(field)
        try:
            return kinds(value)
        except ValueError as error:
            raise self._error(f"{field} is {value!r}") from error

    def arguments(self, field: str) -> dict[str, FieldValue]:
        try:
            return {name: field_of_json(json) for name, json in self._checked(field, dict).items()}
        except FieldError as error:
            raise self._error(f"{field}: {error}") from error

    def at_home(self, record: R) -> R:
        """The record, if it belongs at this key."""
        if record.key != self._key:
            raise self._error(f"the record belongs at {record.key!r}")
        if SEPARATOR in split_name(_name_of(record))[1]:
            raise self._error("a name with a control character")
        return record


def _name_of(record: VhostRecord | ExchangeRecord | BindingRecord) -> str:
    return record.source if isinstance(record, BindingRecord) else record.name
