"""A queue's rules as protobuf messages, and back; the values' rules are `model.rules`'."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ringmq.v1 import common_pb2 as common
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.rules import NO_RULES, Overflow, QueueRules

_OVERFLOWS = {each: common.Overflow.Value(f"OVERFLOW_{each.name}") for each in Overflow}
_PLAIN = tuple(each.name for each in fields(QueueRules) if each.name != "overflow")


def rules_from_wire(wire: common.QueueRules) -> QueueRules:
    """Raises `BrokerError` for an overflow that doesn't exist; other values aren't looked at."""
    overflow = None
    if wire.overflow:
        overflow = next((each for each, at in _OVERFLOWS.items() if at == wire.overflow), None)
        if overflow is None:
            names = ", ".join(f"{each.value} ({at})" for each, at in _OVERFLOWS.items())
            raise bad_request(
                f"there is no overflow {wire.overflow}; there are {names}", field="overflow"
            )
    values: dict[str, Any] = {field.name: value for field, value in wire.ListFields()}
    return QueueRules(**values | {"overflow": overflow}) if values else NO_RULES


def rules_to_wire(rules: QueueRules) -> common.QueueRules | None:
    """None if no rule is set."""
    if not rules:
        return None
    wire = common.QueueRules(**{name: getattr(rules, name) for name in _PLAIN})
    if rules.overflow is not None:
        wire.overflow = _OVERFLOWS[rules.overflow]
    return wire
