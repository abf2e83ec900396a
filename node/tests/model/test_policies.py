"""Matching and merging of policies, and the values that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringmq_node.model.policies import (
    ApplyTo,
    ExchangeWanted,
    ForcedPromotion,
    Mirrors,
    Policy,
    PolicyDefinition,
    PolicyError,
    Wanted,
    exchange_wanted_of,
    matching,
    wanted_of,
)
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import MasterLocator, QueueMode, QueueRecord
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.model.settings import SyncMode
from ringmq_node.model.topology import ExchangeKind, ExchangeRecord

RECORD = QueueRecord("orders.de", "id", ("a",), 0)
FIVE = "abcde"
ONE_KEY = PolicyDefinition(min_insync=1)


TEXT = {
    **{"name": "p", "pattern": "x", "priority": 0, "is_operator": False, "vhost": "/"},
    "definition": {"rules": {"max_length": "7"}},
}


def policy(name: str = "p", pattern: str = "^orders", priority: int = 0, **keys: Any) -> Policy:
    return Policy(name, pattern, priority, PolicyDefinition(**keys) if keys else ONE_KEY)


def wanted(
    asked: dict[str, Any] | None = None,
    bound: dict[str, Any] | None = None,
    *,
    record: QueueRecord = RECORD,
    known: str = FIVE,
) -> Wanted:
    return wanted_of(
        record,
        policy(**asked) if asked else None,
        policy("o", **bound) if bound else None,
        [*known],
    )


def test_the_highest_priority_applies_and_the_first_name_among_equals() -> None:
    policies = [
        policy("a", ".*", 1),
        policy("c", "^orders", 5),
        policy("b", r"\.de$", 5),
        policy("other", "^bills", 9),
    ]
    applied = matching(policies, "orders.de")
    assert applied is not None
    assert applied.name == "b"
    assert matching(policies[3:], "orders.de") is None


def test_a_policy_is_for_the_queues_of_its_vhost() -> None:
    policies = [Policy("p", "^orders$", 0, ONE_KEY, vhost=vhost) for vhost in ("/", "shop")]
    for queue, vhost in (("orders", "/"), ("shop\x1forders", "shop")):
        applied = matching(policies, queue)
        assert applied is not None
        assert applied.vhost == vhost
    assert matching(policies, "lab\x1forders") is None
    # The pattern sees the name alone.
    assert matching(policies, "shop\x1fshop") is None


def for_exchanges(
    name: str, priority: int = 0, *, apply_to: str = "exchanges", **keys: Any
) -> Policy:
    definition = PolicyDefinition(**keys or {"alternate_exchange": name})
    return Policy(name, "^orders", priority, definition, apply_to=ApplyTo(apply_to))


EXCHANGE = ExchangeRecord("orders", "id", ExchangeKind.DIRECT)


def test_a_policy_for_exchanges_is_none_for_queues() -> None:
    policies = [for_exchanges("high", 9), policy("low", ".*", 1)]
    applied = matching(policies, "orders.de")
    assert applied is not None
    assert applied.name == "low"
    assert exchange_wanted_of(EXCHANGE, policies) == ExchangeWanted("high", "high")
    assert exchange_wanted_of(EXCHANGE, policies[1:]) == ExchangeWanted("")


def test_one_policy_applies_to_an_exchange_and_hides_the_others() -> None:
    """As in RabbitMQ: also one for all that has no key of exchanges."""
    policies = [for_exchanges("b", 1), for_exchanges("a", 1), for_exchanges("c")]
    assert exchange_wanted_of(EXCHANGE, policies) == ExchangeWanted("a", "a")
    for_all = for_exchanges("d", 2, apply_to="all", min_insync=1)
    assert exchange_wanted_of(EXCHANGE, [*policies, for_all]) == ExchangeWanted("", "d")
    applied = matching([*policies, for_all], "orders")
    assert applied is for_all


def test_the_alternate_of_a_declaration_counts_over_that_of_a_policy() -> None:
    declared = replace(EXCHANGE, alternate="mine")
    assert exchange_wanted_of(declared, [for_exchanges("p")]) == ExchangeWanted("mine", "p")
    # It is of the policy's vhost, which is the exchange's.
    elsewhere = replace(EXCHANGE, name="shop\x1forders")
    assert exchange_wanted_of(elsewhere, [for_exchanges("p")]) == ExchangeWanted("")
    there = replace(for_exchanges("p"), vhost="shop")
    assert exchange_wanted_of(elsewhere, [there]).alternate == "shop\x1fp"
    # The default exchange has none, whatever a policy says.
    nameless = replace(EXCHANGE, name="")
    everything = replace(for_exchanges("p"), pattern=".*")
    assert exchange_wanted_of(nameless, [everything]) == ExchangeWanted("")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("alternate_exchange", {"apply_to": ApplyTo.QUEUES}),
        ("apply_to", {"is_operator": True}),
        ("apply_to", {"definition": PolicyDefinition(min_insync=1, alternate_exchange="x")}),
        ("apply_to", {"definition": PolicyDefinition(rules=QueueRules(max_length=1))}),
        ("alternate_exchange", {"definition": PolicyDefinition(alternate_exchange="")}),
        ("alternate_exchange", {"definition": PolicyDefinition(alternate_exchange="a\x1fb")}),
    ],
)
def test_a_key_is_for_what_the_policy_is_for(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(BrokerError) as caught:
        replace(for_exchanges("p"), **change)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize("apply_to", ["exchanges", "all"])
def test_a_policy_for_exchanges_is_read_as_it_was_written(apply_to: str) -> None:
    written = for_exchanges("p", 3, apply_to=apply_to)
    assert Policy.from_json(written.to_json()) == written


def test_a_record_that_does_not_say_for_what_is_of_queues() -> None:
    written = policy().to_json()
    del written["apply-to"]
    assert Policy.from_json(written) == policy()
    with pytest.raises(PolicyError):
        Policy.from_json(written | {"apply-to": "cows"})


def test_a_pattern_that_python_would_never_finish() -> None:
    assert not policy(pattern="^(a+)+$").matches("a" * 254 + "!")


def test_without_policies_a_queue_wants_three_replicas_or_as_many_as_there_are_nodes() -> None:
    assert (wanted().replicas, wanted().min_insync) == (3, 2)
    assert (wanted(known="ab").replicas, wanted(known="ab").min_insync) == (2, 2)
    assert (wanted(known="a").replicas, wanted(known="a").min_insync) == (1, 1)
    declared = replace(RECORD, replicas=5, min_insync=4)
    assert (wanted(record=declared).replicas, wanted(record=declared).min_insync) == (5, 4)


def test_a_policy_says_more_than_the_declaration_but_for_the_locator() -> None:
    declared = replace(RECORD, replicas=5, min_insync=4, master_locator=MasterLocator.CLIENT_LOCAL)
    found = wanted(
        {"mirrors": Mirrors(2), "min_insync": 1, "master_locator": MasterLocator.RANDOM},
        record=declared,
    )
    assert (found.replicas, found.min_insync, found.policy) == (2, 1, "p")
    assert found.master_locator is MasterLocator.CLIENT_LOCAL
    assert wanted({"master_locator": MasterLocator.RANDOM}).master_locator is MasterLocator.RANDOM
    lazy, default = QueueMode.LAZY, QueueMode.DEFAULT
    assert wanted().mode is default
    assert wanted({"mode": lazy}).mode is lazy
    assert wanted({"mode": lazy}, record=replace(RECORD, mode=default)).mode is default
    assert wanted({"mode": default}, {"mode": lazy}).mode is default
    assert wanted({"min_insync": 1}, {"mode": lazy}).mode is lazy
    # What a policy leaves out stays the declaration's.
    assert wanted({"sync_mode": SyncMode.MANUAL}, record=declared).replicas == 5


@pytest.mark.parametrize(
    ("asked", "bound", "merged"),
    [
        (Mirrors(), Mirrors(2), Mirrors(2)),
        (Mirrors(3), Mirrors(2), Mirrors(2)),
        (Mirrors(2), Mirrors(3), Mirrors(2)),
        (Mirrors(2), Mirrors(), Mirrors(2)),
        (Mirrors(), Mirrors(None, ("a", "b")), Mirrors(None, ("a", "b"))),
        (Mirrors(3), Mirrors(None, ("a", "b")), Mirrors(3, ("a", "b"))),
        (Mirrors(None, ("c", "b", "a")), Mirrors(2), Mirrors(2, ("c", "b", "a"))),
        (Mirrors(None, ("c", "b")), Mirrors(None, ("b", "a")), Mirrors(None, ("b",))),
        (Mirrors(None, ("c",)), Mirrors(None, ("b", "a")), Mirrors(None, ("b", "a"))),
    ],
)
def test_operator_policies_cap_the_mirrors(asked: Mirrors, bound: Mirrors, merged: Mirrors) -> None:
    assert wanted({"mirrors": asked}, {"mirrors": bound}).mirrors == merged


def test_operator_policies_raise_min_insync_slow_down_and_override() -> None:
    found = wanted(
        {"min_insync": 1, "sync_rate_bytes_max": 4096},
        {"min_insync": 3, "sync_rate_bytes_max": 2048, "sync_mode": SyncMode.MANUAL},
    )
    assert found.min_insync == 3
    assert found.sync.rate_bytes_max == 2048
    assert found.sync.mode is SyncMode.MANUAL
    assert found.operator_policy == "o"
    manual, automatic = {"sync_mode": SyncMode.MANUAL}, {"sync_mode": SyncMode.AUTOMATIC}
    assert wanted(automatic, manual).sync.mode is SyncMode.MANUAL
    assert wanted(manual, automatic).sync.mode is SyncMode.AUTOMATIC
    assert wanted(None, {"mirrors": Mirrors(2)}).replicas == 2
    assert wanted({"sync_mode": SyncMode.AUTOMATIC}).sync.rate_bytes_max is None


def test_a_loss_is_refused_if_either_policy_refuses_it() -> None:
    allowed, refused = ForcedPromotion.ALLOWED, ForcedPromotion.REFUSED
    for asked, bound, merged in (
        (allowed, allowed, allowed),
        (refused, allowed, refused),
        (allowed, refused, refused),
        (None, refused, refused),
        (None, None, allowed),
    ):
        keys = ({"min_insync": 1, "forced_promotion": each} for each in (asked, bound))
        found = wanted(*keys)
        assert found.forced_promotion is merged, (asked, bound)


def test_an_operator_policys_locator_counts_where_nothing_else_says_one() -> None:
    random, local = MasterLocator.RANDOM, MasterLocator.CLIENT_LOCAL
    bound = {"master_locator": random}
    assert wanted(None, bound).master_locator is random
    assert wanted({"master_locator": local}, bound).master_locator is local
    assert wanted().master_locator is MasterLocator.MIN_MASTERS


def test_a_ring_has_seven_members_however_many_nodes_there_are() -> None:
    for mirrors in (Mirrors(), Mirrors(None, tuple("abcdefghi"))):
        found = wanted({"mirrors": mirrors}, known="abcdefghi")
        assert (found.replicas, found.min_insync) == (7, 4)


def test_min_insync_is_never_above_the_replicas() -> None:
    assert wanted({"min_insync": 3}, {"mirrors": Mirrors(2)}).min_insync == 2
    assert wanted({"mirrors": Mirrors(None, ("a", "z"))}).min_insync == 1


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "a\n"}),
        ("name", {"name": "ä" * 128}),
        ("pattern", {"pattern": "("}),
        ("pattern", {"pattern": "x" * 1025}),
        ("priority", {"priority": 2**31}),
        ("definition", {"definition": PolicyDefinition()}),
        ("mirrors", {"definition": PolicyDefinition(mirrors=Mirrors(0))}),
        ("mirrors", {"definition": PolicyDefinition(mirrors=Mirrors(8))}),
        ("mirrors", {"definition": PolicyDefinition(mirrors=Mirrors(None, ()))}),
        ("mirrors", {"definition": PolicyDefinition(mirrors=Mirrors(None, ("a", "a")))}),
        ("min_insync", {"definition": PolicyDefinition(min_insync=8)}),
        ("min_insync", {"definition": PolicyDefinition(mirrors=Mirrors(2), min_insync=3)}),
        ("sync_rate_bytes_max", {"definition": PolicyDefinition(sync_rate_bytes_max=10)}),
    ],
)
def test_values_that_are_refused(field: str, values: dict[str, Any]) -> None:
    whole: dict[str, Any] = {
        "name": "p",
        "pattern": "x",
        "priority": 0,
        "definition": ONE_KEY,
    } | values
    with pytest.raises(BrokerError) as caught:
        Policy(**whole)
    assert caught.value.metadata == {"field": field}


def test_a_policy_is_read_as_written_and_nothing_else_is() -> None:
    for whole in (
        policy(mirrors=Mirrors(2, ("a", "b")), sync_mode=SyncMode.MANUAL),
        policy(rules=QueueRules(max_length=7, overflow=Overflow.REJECT_PUBLISH)),
        policy(mirrors=Mirrors(), master_locator=MasterLocator.RANDOM, min_insync=2),
        replace(policy(sync_rate_bytes_max=2048), is_operator=True),
    ):
        assert Policy.from_json(whole.to_json()) == whole
    often = {**policy().to_json(), "definition": {"sync_mode": "often"}}
    unknown = {**policy().to_json(), "definition": {"min_insync": 1, "mirrrors": None}}
    odd = {**policy().to_json(), "is_operator": "yes"}
    numbered = {**policy().to_json(), "definition": {"mirrors": {"count": 1, "nodes": ["a", 1]}}}
    for value in (None, 1, {}, often, unknown, TEXT, odd, numbered):
        with pytest.raises(PolicyError):
            Policy.from_json(value)
