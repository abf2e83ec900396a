"""Exchanges and bindings, as clients see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ringmq.errors import BadRequestError, WrongTypeError
from ringmq.model.fields import HeaderValue, fields_from_wire, fields_to_wire
from ringmq.v1 import topology_pb2 as wire


class ExchangeType(Enum):
    """How an exchange chooses the queues of a message."""

    # Those bound with the message's routing key.
    DIRECT = "direct"
    # All.
    FANOUT = "fanout"
    # Those bound with a pattern for the routing key: `*` is one word, `#` any number of words.
    TOPIC = "topic"
    # Those bound with headers that the message has.
    HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class Exchange:
    """`type` is that of an `ExchangeType`, as text: a newer node may know more of them.

    `alternate_exchange` is the declaration's, `effective_alternate_exchange` the one that counts,
    which may be that of the policy named `policy`.
    """

    exchange: str
    type: str
    vhost: str = "/"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate_exchange: str = ""
    effective_alternate_exchange: str = ""
    policy: str = ""

    @classmethod
    def from_wire(cls, exchange: wire.Exchange) -> Exchange:
        return cls(
            exchange.exchange,
            exchange.type,
            exchange.vhost,
            exchange.durable,
            exchange.auto_delete,
            exchange.internal,
            exchange.alternate_exchange,
            exchange.effective_alternate_exchange,
            exchange.policy,
        )


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue, or to an exchange if `to_exchange`. None as an argument's value
    is "whatever the value"."""

    source: str
    destination: str
    routing_key: str = ""
    arguments: Mapping[str, HeaderValue] = field(default_factory=dict)
    to_exchange: bool = False
    vhost: str = "/"

    def to_wire(self) -> wire.Binding:
        """Raises `BadRequestError` for text that isn't UTF-8, and values that no field has."""
        try:
            return wire.Binding(
                vhost=self.vhost,
                source=self.source,
                destination=self.destination,
                to_exchange=self.to_exchange,
                routing_key=self.routing_key,
                arguments=fields_to_wire(self.arguments),
            )
        except WrongTypeError:
            raise
        except (ValueError, TypeError) as error:
            raise BadRequestError(
                f"a binding has names that aren't UTF-8, or arguments of no known type: {error}",
                metadata={"field": "binding"},
            ) from error

    @classmethod
    def from_wire(cls, binding: wire.Binding) -> Binding:
        return cls(
            binding.source,
            binding.destination,
            binding.routing_key,
            fields_from_wire(binding.arguments),
            binding.to_exchange,
            binding.vhost,
        )


@dataclass(frozen=True, slots=True)
class Vhost:
    """While it is `deleting`, nothing is declared in it: repeat the deletion that did not end."""

    vhost: str
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ImportedDefinitions:
    """How many things are new and how many were there; and, as lines for people, what the document
    says that can't be here, and what was refused."""

    created: int
    existing: int
    unmapped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
