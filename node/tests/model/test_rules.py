"""Rules of queues: how they are merged, and the values that are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from ringmq_node.broker.arguments import QueueArguments, check_arguments, check_equivalent
from ringmq_node.model.fields import fields_of, integer, text
from ringmq_node.model.policies import Policy, PolicyDefinition, wanted_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import MasterLocator, QueueMode, QueueRecord
from ringmq_node.model.rules import (
    DECLARED_ONLY,
    NO_RULES,
    OFFERED,
    Overflow,
    QueueRules,
    check_offered,
    merged,
)
from ringmq_node.model.topology import sorted_arguments

HEAD, REJECT = Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH


def policy(rules: QueueRules) -> Policy:
    return Policy("p", ".*", 0, PolicyDefinition(rules=rules))


@pytest.mark.parametrize(
    ("declared", "asked", "bound", "wanted"),
    [
        ({}, {}, {}, {}),
        ({"max_length": 5}, {}, {}, {"max_length": 5}),
        ({"max_length": 5}, {"max_length": 3}, {"max_length": 4}, {"max_length": 3}),
        ({"message_ttl_ms": 0}, {"message_ttl_ms": 3}, {}, {"message_ttl_ms": 0}),
        ({}, {"expires_ms": 9}, {"expires_ms": 8}, {"expires_ms": 8}),
        ({"overflow": HEAD}, {"overflow": REJECT}, {"overflow": REJECT}, {"overflow": HEAD}),
        ({}, {"overflow": REJECT}, {"overflow": HEAD}, {"overflow": REJECT}),
        (
            {"max_length": 5},
            {"max_length_bytes": 9},
            {"overflow": REJECT},
            {"max_length": 5, "max_length_bytes": 9, "overflow": REJECT},
        ),
    ],
)
def test_the_smaller_number_and_else_the_declaration(
    declared: dict[str, Any], asked: dict[str, Any], bound: dict[str, Any], wanted: dict[str, Any]
) -> None:
    record = QueueRecord("q", "id", ("a",), 0, rules=QueueRules(**declared))
    rules = QueueRules(**wanted)
    given = [QueueRules(**each) for each in (asked, bound)]
    assert merged(record.rules, *given) == rules
    first, second = (policy(each) if each else None for each in given)
    found = wanted_of(record, first, second, "a")
    assert found.rules == rules
    assert found.rules.facts().items() <= found.facts().items()


@pytest.mark.parametrize(
    "values",
    [
        {"message_ttl_ms": -1},
        {"message_ttl_ms": 2**60},
        {"message_ttl_ms": True},
        {"expires_ms": 0},
        {"max_length": 1.5},
        {"max_length_bytes": "7"},
        {"max_priority": 0},
        {"max_priority": 256},
        {"dead_letter_exchange": "a\n"},
        {"dead_letter_exchange": 7},
        {"dead_letter_routing_key": "x" * 256},
        {"single_active_consumer": 1},
    ],
)
def test_values_that_are_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(BrokerError) as caught:
        QueueRules(**values).check()
    assert caught.value.reason is Reason.BAD_REQUEST
    assert caught.value.metadata == {"field": next(iter(values))}
    with pytest.raises(BrokerError):
        QueueRules.from_json(values)


EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(("message_ttl_ms", "expires_ms", "max_length", "max_length_bytes"), 1),
    **dict.fromkeys(("max_priority", "delivery_limit", "consumer_timeout_ms"), 1),
    **dict.fromkeys(("dead_letter_exchange", "dead_letter_routing_key"), "x"),
    "overflow": HEAD,
    "single_active_consumer": True,
}


# By the type of a rule, found from its example: what it can't be.
WRONG: dict[type, list[Any]] = {
    int: [-1, 2**60, True, 1.5, "7", "", [], {}, b"1"],
    str: [7, True, "a\n", "x" * 256, [], {}, b"x"],
    bool: [1, 0, "yes", [], {}],
    Overflow: ["drop-tail", "", 1, True, [], {}],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, wrong) for name, good in EXAMPLES.items() for wrong in WRONG[type(good)]],
)
def test_what_a_rule_can_not_be_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(BrokerError) as caught:
        QueueRules.from_json({name: value})
    assert (caught.value.reason, caught.value.metadata) == (Reason.BAD_REQUEST, {"field": name})


@pytest.mark.parametrize("name", ["max_lenght", "x-max-length", "", "check", "MAX_LENGTH"])
def test_a_rule_that_there_is_not_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(BrokerError) as caught:
        QueueRules.from_json({"max_length": 1, name: 1})
    assert caught.value.metadata == {"field": name}


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {each.name for each in fields(QueueRules)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_what_has_an_effect_is_offered(name: str) -> None:
    rules = QueueRules(**{name: EXAMPLES[name]})
    assert QueueRules.from_json(rules.to_json()) == rules
    if name == "dead_letter_routing_key":
        rules = replace(rules, dead_letter_exchange="")
    for declared in (True, False):
        if name in OFFERED and (declared or name not in DECLARED_ONLY):
            check_offered(rules, declared=declared)
            continue
        with pytest.raises(BrokerError) as caught:
            check_offered(rules, declared=declared)
        assert caught.value.metadata == {"field": name}


def test_a_key_for_dead_letters_needs_an_exchange_where_it_is_declared() -> None:
    rules = QueueRules(dead_letter_routing_key="k")
    check_offered(rules, declared=False)
    with pytest.raises(BrokerError) as caught:
        check_offered(rules, declared=True)
    assert caught.value.metadata == {"field": "dead_letter_routing_key"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_wrong_redeclare_says_what_there_is_and_what_was_asked(name: str) -> None:
    rules = QueueRules(**{name: EXAMPLES[name]})
    there = QueueRecord("q", "id", ("a",), 0, rules=rules)
    bare = QueueRecord("q", "id", ("a",), 0)
    wanted = wanted_of(there, None, None, "a")
    # What is left out matches anything.
    check_equivalent(there, wanted, QueueArguments())
    check_equivalent(there, wanted, QueueArguments(rules=rules))
    with pytest.raises(BrokerError, match=f"exists with {name} none, not ") as caught:
        check_equivalent(bare, wanted, QueueArguments(rules=rules))
    assert caught.value.reason is Reason.QUEUE_EXISTS
    asked = caught.value.metadata["asked"]
    assert caught.value.metadata == {
        "queue": "q",
        "field": name,
        "existing": "none",
        "asked": asked,
    }
    # Exactly: what is left out is asked for as well.
    exact = QueueArguments(rules=rules, exact=True)
    check_equivalent(there, wanted, exact)
    for record, arguments, existing, wants in (
        (there, QueueArguments(exact=True), asked, "none"),
        (bare, exact, "none", asked),
    ):
        with pytest.raises(BrokerError) as caught:
            check_equivalent(record, wanted, arguments)
        found = caught.value.metadata
        assert (found["field"], found["existing"], found["asked"]) == (name, existing, wants)


@pytest.mark.parametrize(
    ("record", "arguments", "field"),
    [
        ({"durable": False}, {}, "durable"),
        ({}, {"durable": False}, "durable"),
        ({"auto_delete": True}, {}, "auto_delete"),
        ({"owner": "a.1.2"}, {}, "exclusive"),
        ({"master_locator": MasterLocator.RANDOM}, {}, "master_locator"),
        ({}, {"master_locator": MasterLocator.RANDOM}, "master_locator"),
        ({"opaque": (("x-queue-type", text("quorum")),)}, {}, "x-queue-type"),
        ({}, {"opaque": (("x-queue-version", integer(2)),)}, "x-queue-version"),
        # What RabbitMQ doesn't compare; and what leaving out means.
        ({"opaque": (("x-queue-type", text("classic")),)}, {}, None),
        ({}, {"opaque": (("x-ha-policy", text("all")),)}, None),
        ({"replicas": 3, "min_insync": 2, "mode": QueueMode.LAZY}, {}, None),
        ({"durable": True, "auto_delete": False}, {}, None),
        # An exchange may have this name.
        ({"rules": QueueRules(dead_letter_exchange="none")}, {}, "dead_letter_exchange"),
    ],
)
def test_an_exact_redeclare_takes_what_is_left_out_for_the_default(
    record: dict[str, Any], arguments: dict[str, Any], field: str | None
) -> None:
    """AMQP: `PRECONDITION_FAILED - inequivalent arg`."""
    there = QueueRecord("q", "id", ("a",), **{"min_insync": 0} | record)
    wanted = wanted_of(there, None, None, "a")
    assert QueueRecord.decode(there.encode()) == there
    exact = QueueArguments(**arguments, exact=True)
    if field is None:
        check_equivalent(there, wanted, exact)
        return
    with pytest.raises(BrokerError) as caught:
        check_equivalent(there, wanted, exact)
    assert caught.value.metadata["field"] == field
    assert {"existing", "asked"} <= {*caught.value.metadata}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("names_replicas", [False, True])
@pytest.mark.parametrize(
    ("field", "declared", "asked"),
    [
        ("replicas", 3, 2),
        ("min_insync", 2, 1),
        ("mode", QueueMode.LAZY, QueueMode.DEFAULT),
        ("mode", QueueMode.DEFAULT, QueueMode.LAZY),
    ],
)
def test_mode_and_numbers_of_replicas_are_compared_when_they_are_said(
    field: str, declared: Any, asked: Any, exact: bool, names_replicas: bool
) -> None:
    there = QueueRecord("q", "id", ("a",), **{"min_insync": 0, field: declared})
    wanted = wanted_of(there, None, None, "a")

    def check(**arguments: Any) -> None:
        check_equivalent(
            there, wanted, QueueArguments(**arguments, exact=exact, names_replicas=names_replicas)
        )

    check(**{field: declared})
    with pytest.raises(BrokerError, match=f"queue 'q' exists with {field} ") as caught:
        check(**{field: asked})
    assert caught.value.reason is Reason.QUEUE_EXISTS
    shown = [str(getattr(each, "value", each)) for each in (declared, asked)]
    metadata = caught.value.metadata
    assert [metadata[key] for key in ("field", "existing", "asked")] == [field, *shown]
    # Left out: an operator may have changed the mode, and AMQP has no words for the numbers.
    if exact and names_replicas and field != "mode":
        with pytest.raises(BrokerError, match=f"exists with {field} {declared}, not none"):
            check()
    else:
        check()


@pytest.mark.parametrize(
    "arguments",
    [
        {"": 1},
        {"x" * 1025: 1},
        {"x": "v" * 1025},
        {str(n): n for n in range(65)},
        # The registry takes no larger record than 1 MiB: these would be 12 times their size.
        {str(n): [""] * 1016 for n in range(64)},
    ],
)
def test_more_further_arguments_than_a_record_may_hold_are_refused(
    arguments: dict[str, object],
) -> None:
    with pytest.raises(BrokerError) as caught:
        check_arguments(QueueArguments(opaque=sorted_arguments(fields_of(arguments))))
    assert caught.value.metadata["field"] == "arguments"


def test_no_rules_cost_nothing() -> None:
    assert not NO_RULES
    assert NO_RULES.to_json() == {}
    assert merged(NO_RULES, NO_RULES) is NO_RULES
