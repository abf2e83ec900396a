"""What the user asks a publisher for: checked before anything is sent, and made wire messages."""

from __future__ import annotations

from collections.abc import Sequence

from ringmq.errors import BadRequestError
from ringmq.model.messages import Properties
from ringmq.publishing.tickets import Attributes
from ringmq.v1 import common_pb2 as common

ROUTING_KEY_BYTES_MAX = 255
PRIORITY_MAX = 255
# Attributes that only messages to exchanges have, and what the others have instead.
OF_EXCHANGES = {"routing_key": "", "mandatory": False, "exchange": None, "cc": (), "bcc": ()}


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


def check_attributes(asked: Attributes, *, is_routed: bool) -> None:
    """Raises `BadRequestError` if no message can have them. `is_routed`: it goes to an exchange."""
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


def properties_to_wire(
    properties: Properties | Sequence[Properties], count: int
) -> Sequence[common.Properties]:
    if isinstance(properties, Properties):
        return (properties.to_wire(),)
    if len(properties) != count:
        raise BadRequestError(
            f"{len(properties)} properties for {count} bodies: give none, one, or one for each",
            metadata={"field": "properties"},
        )
    return [each.to_wire() for each in properties]
