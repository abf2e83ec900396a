"""Policies travel with every key, and values that don't exist are refused by name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ringmq.v1 import admin_pb2 as admin
from ringmq_node.doors.grpc.policies import locator_from_wire, policy_from_wire, policy_to_wire
from ringmq_node.model.policies import (
    ApplyTo,
    ForcedPromotion,
    Mirrors,
    Policy,
    PolicyDefinition,
)
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import MasterLocator, QueueMode
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.model.settings import SyncMode

WHOLE = PolicyDefinition(
    Mirrors(2, ("a", "b")),
    2,
    SyncMode.MANUAL,
    4096,
    MasterLocator.CLIENT_LOCAL,
    ForcedPromotion.REFUSED,
    QueueMode.LAZY,
    QueueRules(message_ttl_ms=0, max_length=7, overflow=Overflow.REJECT_PUBLISH),
    "spare",
)


@pytest.mark.parametrize(
    "definition",
    [WHOLE, PolicyDefinition(Mirrors()), PolicyDefinition(Mirrors(None, ("a",)))],
    ids=["whole", "all", "nodes"],
)
def test_a_policy_comes_back_as_it_went(definition: PolicyDefinition) -> None:
    policy = Policy("p", "^x", -3, definition, vhost="shop", apply_to=ApplyTo.ALL)
    assert policy_from_wire(policy_to_wire(policy)) == policy


def test_an_operator_policy_and_one_for_exchanges_come_back() -> None:
    bound = Policy("p", "^x", 0, PolicyDefinition(min_insync=1), is_operator=True)
    spare = PolicyDefinition(alternate_exchange="spare")
    for policy in (bound, Policy("p", "^x", 0, spare, apply_to=ApplyTo.EXCHANGES)):
        assert policy_from_wire(policy_to_wire(policy)) == policy


def test_a_policy_that_does_not_say_for_what_is_for_queues() -> None:
    wire = policy_to_wire(Policy("p", "^x", 0, PolicyDefinition(min_insync=1)))
    wire.ClearField("apply_to")
    assert policy_from_wire(wire).apply_to is ApplyTo.QUEUES


def test_no_vhost_is_the_default_one() -> None:
    wire = policy_to_wire(Policy("p", "^x", 0, WHOLE, apply_to=ApplyTo.ALL))
    wire.ClearField("vhost")
    assert policy_from_wire(wire).vhost == "/"


def test_the_whole_one_has_every_key() -> None:
    assert all(getattr(WHOLE, field.name) is not None for field in fields(PolicyDefinition))
    keys = {field.name for field in fields(PolicyDefinition)} - {"rules"}
    assert set(WHOLE.facts()) == keys | {"message_ttl_ms", "max_length", "overflow"}


@pytest.mark.parametrize("field", ["sync_mode", "master_locator", "forced_promotion", "mode"])
def test_a_value_that_does_not_exist_is_refused(field: str) -> None:
    wire = policy_to_wire(Policy("p", "^x", 0, WHOLE, apply_to=ApplyTo.ALL))
    data = wire.definition.SerializeToString()
    number = admin.PolicyDefinition.DESCRIPTOR.fields_by_name[field].number
    wire.definition.MergeFromString(data + bytes([number << 3, 99]))
    with pytest.raises(BrokerError, match=f"{field} 99") as caught:
        policy_from_wire(wire)
    assert caught.value.metadata == {"field": field}
    assert locator_from_wire(0) is None
