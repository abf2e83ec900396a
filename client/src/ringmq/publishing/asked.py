"""Requests of the user to a publisher: checked before anything is sent, and made wire messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from ringmq.calls.arguments import check_argument, check_options
from ringmq.errors import BadRequestError, WrongTypeError
from ringmq.model.messages import Properties
from ringmq.publishing.tickets import PERSISTENT, Attributes

ROUTING_KEY_BYTES_MAX = 255
PRIORITY_MAX = 255
PROPERTIES = Properties | Sequence[Properties] | None
# Attributes that only messages to exchanges have; the others have these values.
OF_EXCHANGES = {"routing_key": "", "mandatory": False, "exchange": None, "cc": (), "bcc": ()}


class MessageOptions(TypedDict, total=False):
    """The options of each call that publishes; none of them by default."""

    #: Confirmed before it is on disk, and gone when all replicas stop.
    transient: bool
    #: To an exchange. If no queue is bound for a `mandatory` message, `UnroutableError`.
    routing_key: str
    mandatory: bool
    #: Another exchange than the publisher's.
    exchange: str | None
    #: Further keys: each queue gets the message once, and consumers are told those of `cc`.
    cc: Sequence[str]
    bcc: Sequence[str]
    #: How long it may be ready before it expires, in milliseconds, if the queue doesn't say less;
    #: 0: it expires unless a consumer takes it at once.
    ttl_ms: int | None
    #: 0 to 255, the highest first, in a queue that was declared with `max_priority`.
    priority: int


def attributes_of(options: MessageOptions, *, is_routed: bool) -> Attributes:
    """Raises `BadRequestError` if no message can have them. `is_routed`: it goes to an exchange."""
    if not options:
        return PERSISTENT
    check_options(MessageOptions, options)
    cc, bcc = options.get("cc", ()), options.get("bcc", ())
    # The caller's own sequences may change.
    asked = Attributes(**(options | {"cc": tuple(cc), "bcc": tuple(bcc)}))
    _check_attributes(asked, is_routed=is_routed)
    return asked


def check_target(
    queue: str, exchange: str | None, producer_id: bytes | None, first_sequence: int | None
) -> None:
    """Raises `BadRequestError` if there can be no publisher with these."""
    if (exchange is None) == (not queue):
        raise BadRequestError(
            "a publisher publishes to a queue or to an exchange: give one of them",
            metadata={"field": "queue" if exchange is None else "exchange"},
        )
    if exchange is None and first_sequence is not None:
        raise BadRequestError(
            "a queue says which sequence is next: first_sequence is for exchanges",
            metadata={"field": "first_sequence"},
        )
    if first_sequence is not None and not 1 <= first_sequence < 2**63:
        raise BadRequestError(
            f"sequences begin with 1 or more, not with {first_sequence}",
            metadata={"field": "first_sequence"},
        )
    if exchange is not None and producer_id is not None and first_sequence is None:
        # Nobody could tell it how far it was before.
        raise BadRequestError(
            "with a producer_id of your own say which first_sequence the next message has",
            metadata={"field": "first_sequence"},
        )


def _check_attributes(asked: Attributes, *, is_routed: bool) -> None:
    if asked.ttl_ms is not None and not 0 <= asked.ttl_ms < 2**63:
        raise BadRequestError(
            f"ttl_ms {asked.ttl_ms} is out of range", metadata={"field": "ttl_ms"}
        )
    if not 0 <= asked.priority <= PRIORITY_MAX:
        raise BadRequestError(
            f"a message's priority is 0 to {PRIORITY_MAX}, not {asked.priority}",
            metadata={"field": "priority"},
        )
    if not is_routed:
        for field, default in OF_EXCHANGES.items():
            if getattr(asked, field) != default:
                raise BadRequestError(
                    f"a message to a queue has no {field}: that is for exchanges",
                    metadata={"field": field},
                )
    for key in (asked.routing_key, *asked.cc, *asked.bcc):
        if len(key.encode(errors="surrogateescape")) > ROUTING_KEY_BYTES_MAX:
            raise BadRequestError(
                f"a routing key has at most {ROUTING_KEY_BYTES_MAX} bytes",
                metadata={"field": "routing_key"},
            )


def check_bodies(bodies: Iterable[bytes]) -> None:
    """Each body is looked at later, as that of a single message is."""
    if not isinstance(bodies, Iterable) or isinstance(bodies, bytes | str):
        raise WrongTypeError(
            f"bodies is an iterable of bytes, not {type(bodies).__name__}",
            metadata={"field": "bodies"},
        )


def listed_bodies(bodies: Iterable[bytes]) -> list[bytes]:
    check_bodies(bodies)
    return list(bodies)


def encoded_properties(
    properties: Properties | Sequence[Properties], count: int
) -> Sequence[bytes]:
    if isinstance(properties, Properties):
        return (properties.to_wire().SerializeToString(),)
    check_argument("properties", properties, PROPERTIES)
    if len(properties) != count:
        raise BadRequestError(
            f"{len(properties)} properties for {count} bodies: give none, one, or one for each",
            metadata={"field": "properties"},
        )
    return [each.to_wire().SerializeToString() for each in properties]
