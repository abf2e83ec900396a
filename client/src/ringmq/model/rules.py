"""The rules of a queue: arguments of its declaration, and keys of policies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ringmq.calls.arguments import check_fields
from ringmq.calls.requests import request_of
from ringmq.v1 import common_pb2 as common


class Overflow(Enum):
    """What becomes of messages beyond a queue's length."""

    #: The oldest ready messages go.
    DROP_HEAD = common.OVERFLOW_DROP_HEAD
    #: The new ones are refused.
    REJECT_PUBLISH = common.OVERFLOW_REJECT_PUBLISH
    #: They are refused, and sent to the queue's dead-letter exchange.
    REJECT_PUBLISH_DLX = common.OVERFLOW_REJECT_PUBLISH_DLX


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Limits of a queue and its messages; None: not set.

    Of a number that a declaration and policies set, the smallest one holds; of anything else the
    declaration's, then the policy's. A rule that the cluster doesn't know yet is refused.
    """

    #: How long a message may be ready, in milliseconds; 0: it goes unless a consumer takes it at
    #: once.
    message_ttl_ms: int | None = None
    #: How long the queue may be unused before it is deleted.
    expires_ms: int | None = None
    #: Ready messages, and bytes of their bodies.
    max_length: int | None = None
    max_length_bytes: int | None = None
    #: None: the oldest messages go.
    overflow: Overflow | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    #: Only in declarations.
    max_priority: int | None = None
    delivery_limit: int | None = None
    #: Only in declarations.
    single_active_consumer: bool | None = None
    consumer_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def to_wire(self) -> common.QueueRules | None:
        """None if no rule is set. Raises `BadRequestError` for a value that the wire can't hold."""
        values: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                values[each.name] = value.value if isinstance(value, Enum) else value
        return request_of(common.QueueRules, **values) if values else None

    @classmethod
    def from_wire(cls, wire: common.QueueRules) -> QueueRules:
        values: dict[str, Any] = {field.name: value for field, value in wire.ListFields()}
        if wire.overflow:
            values["overflow"] = Overflow(wire.overflow)
        return cls(**values)

    def facts(self) -> dict[str, Any]:
        """The rules that are set, by name, as a policy shows them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.name.lower().replace("_", "-") if isinstance(value, Enum) else value
            for name, value in values.items()
            if value is not None
        }


NO_RULES = QueueRules()
