"""Policies as protobuf messages, and back; the values' rules are `model.policies`'."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc.rules import rules_from_wire, rules_to_wire
from ringmq_node.doors.grpc.wire import mode_from_wire, mode_to_wire
from ringmq_node.model.names import DEFAULT_VHOST
from ringmq_node.model.policies import (
    ApplyTo,
    ForcedPromotion,
    Mirrors,
    Policy,
    PolicyDefinition,
)
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.records import MasterLocator
from ringmq_node.model.settings import SyncMode

E = TypeVar("E", bound=Enum)

_LOCATORS = {
    each: common.MasterLocator.Value(f"MASTER_LOCATOR_{each.name}") for each in MasterLocator
}
_SYNC_MODES = {each: admin.SyncMode.Value(f"SYNC_MODE_{each.name}") for each in SyncMode}
_FORCED = {
    each: admin.ForcedPromotion.Value(f"FORCED_PROMOTION_{each.name}") for each in ForcedPromotion
}
_TARGETS = {each: admin.PolicyTarget.Value(f"POLICY_TARGET_{each.name}") for each in ApplyTo}


def locator_from_wire(value: int) -> MasterLocator | None:
    """None if unspecified. Raises `BrokerError` for one that doesn't exist."""
    return _from_wire(value, dict(_LOCATORS), "master_locator")


def _from_wire(value: int, known: dict[E, int], field: str) -> E | None:
    if not value:
        return None
    found = next((each for each, number in known.items() if number == value), None)
    if found is None:
        names = ", ".join(f"{each.value} ({number})" for each, number in known.items())
        raise bad_request(f"there is no {field} {value}; there are {names}", field=field)
    return found


def policy_from_wire(wire: admin.Policy) -> Policy:
    """Raises `BrokerError` for values that can't be a policy's."""
    keys = wire.definition
    mirrors: Mirrors | None = None
    if keys.HasField("mirrors"):
        mirrors = Mirrors(keys.mirrors.count or None, tuple(keys.mirrors.nodes) or None)
    definition = PolicyDefinition(
        mirrors,
        keys.min_insync or None,
        _from_wire(keys.sync_mode, dict(_SYNC_MODES), "sync_mode"),
        keys.sync_rate_bytes_max or None,
        locator_from_wire(keys.master_locator),
        _from_wire(keys.forced_promotion, dict(_FORCED), "forced_promotion"),
        mode_from_wire(keys.mode),
        rules_from_wire(keys.rules),
        keys.alternate_exchange or None,
    )
    return Policy(
        wire.name,
        wire.pattern,
        wire.priority,
        definition,
        wire.is_operator,
        wire.vhost or DEFAULT_VHOST,
        _from_wire(wire.apply_to, dict(_TARGETS), "apply_to") or ApplyTo.QUEUES,
    )


def policy_to_wire(policy: Policy) -> admin.Policy:
    keys = policy.definition
    wire = admin.PolicyDefinition(
        min_insync=keys.min_insync or 0,
        sync_rate_bytes_max=keys.sync_rate_bytes_max or 0,
        rules=rules_to_wire(keys.rules),
        alternate_exchange=keys.alternate_exchange or "",
    )
    if keys.mirrors is not None:
        mirrors = admin.Mirrors(count=keys.mirrors.count or 0, nodes=keys.mirrors.nodes or ())
        wire.mirrors.CopyFrom(mirrors)
    if keys.sync_mode is not None:
        wire.sync_mode = _SYNC_MODES[keys.sync_mode]
    if keys.master_locator is not None:
        wire.master_locator = _LOCATORS[keys.master_locator]
    if keys.forced_promotion is not None:
        wire.forced_promotion = _FORCED[keys.forced_promotion]
    if keys.mode is not None:
        wire.mode = mode_to_wire(keys.mode)
    return admin.Policy(
        name=policy.name,
        pattern=policy.pattern,
        priority=policy.priority,
        definition=wire,
        is_operator=policy.is_operator,
        vhost=policy.vhost,
        apply_to=_TARGETS[policy.apply_to],
    )
