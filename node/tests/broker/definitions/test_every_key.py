"""Every key of a full definitions file of RabbitMQ 3.13 is mapped, or listed: none is dropped in
silence, and neither is a key that nobody has heard of."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ringmq_node.broker.definitions.document import Definitions, read_definitions
from ringmq_node.model.policies import Policy, PolicyDefinition
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.rules import QueueRules
from ringmq_node.model.settings import SyncMode

Path = tuple[str | int, ...]

# Values that differ from the defaults, so that each key says something.
ARGUMENTS = {
    "x-message-ttl": 60_000,
    "x-expires": 1_000,
    "x-max-length": 10,
    "x-max-length-bytes": 1_000,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "dead",
    "x-dead-letter-routing-key": "letter",
    "x-max-priority": 5,
    "x-delivery-limit": 3,
    "x-single-active-consumer": True,
    "x-consumer-timeout": 5_000,
    "x-queue-mode": "lazy",
    "x-queue-master-locator": "random",
    "x-queue-leader-locator": "client-local",
    "x-queue-type": "quorum",
    "x-queue-version": 2,
    "x-quorum-initial-group-size": 3,
    "x-max-in-memory-length": 7,
}
KEYS = {
    "ha-mode": "exactly",
    "ha-params": 2,
    "ha-sync-mode": "automatic",
    "ha-sync-batch-size": 100,
    "ha-promote-on-failure": "always",
    "ha-promote-on-shutdown": "always",
    "queue-mode": "lazy",
    "queue-version": 2,
    "queue-master-locator": "random",
    "queue-leader-locator": "client-local",
    "message-ttl": 1,
    "expires": 2,
    "max-length": 3,
    "max-length-bytes": 4,
    "max-in-memory-length": 5,
    "overflow": "reject-publish",
    "dead-letter-exchange": "dead",
    "dead-letter-routing-key": "letter",
    "dead-letter-strategy": "at-least-once",
    "delivery-limit": 6,
    "consumer-timeout": 7,
    "alternate-exchange": "spare",
    "federation-upstream-set": "all",
}
OPERATOR_KEYS = {
    "ha-mode": "exactly",
    "ha-params": 2,
    "ha-sync-mode": "automatic",
    "message-ttl": 1,
    "expires": 2,
    "max-length": 3,
    "max-length-bytes": 4,
    "max-in-memory-length": 5,
    "max-in-memory-bytes": 5,
    "delivery-limit": 6,
    "queue-version": 2,
    "overflow": "reject-publish",
}
FULL: dict[str, Any] = {
    "rabbit_version": "3.13.7",
    "rabbitmq_version": "3.13.7",
    "product_name": "RabbitMQ",
    "product_version": "3.13.7",
    "rabbitmq_definition_format": "cluster",
    "original_cluster_name": "rabbit@a",
    "explanation": "Definitions of cluster 'rabbit@a'",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {}}],
    "vhosts": [
        {
            "name": "shop",
            "description": "of the shop",
            "tags": ["x"],
            "limits": [{"max-queues": 10}],
            "tracing": True,
            "default_queue_type": "quorum",
            "metadata": {"description": "another", "tags": ["y"], "default_queue_type": "stream"},
        },
        {"name": "bare"},
    ],
    "permissions": [{"user": "guest", "vhost": "shop", "configure": ".*"}],
    "topic_permissions": [{"user": "guest", "vhost": "shop", "exchange": "x"}],
    "parameters": [
        {"component": "shovel", "vhost": "shop", "name": "s", "value": {"src-uri": "amqp://"}},
        {
            "component": "operator_policy",
            "vhost": "shop",
            "name": "o",
            "value": {
                "pattern": "^q",
                "apply-to": "all",
                "priority": 2,
                "definition": OPERATOR_KEYS,
            },
        },
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@a"}],
    "policies": [
        {
            "vhost": "shop",
            "name": "p",
            "pattern": "^q",
            "apply-to": "all",
            "priority": 3,
            "definition": KEYS,
        }
    ],
    "queues": [
        {
            "vhost": "shop",
            "name": "q",
            "type": "quorum",
            "durable": False,
            "auto_delete": True,
            "arguments": ARGUMENTS,
        }
    ],
    "exchanges": [
        {
            "vhost": "shop",
            "name": "x",
            "type": "topic",
            "durable": False,
            "auto_delete": True,
            "internal": True,
            "arguments": {"alternate-exchange": "spare", "x-other": 1},
        }
    ],
    "bindings": [
        {
            "vhost": "shop",
            "source": "x",
            "destination": "x",
            "destination_type": "exchange",
            "routing_key": "a.#",
            "arguments": {"x-match": "any"},
        }
    ],
}
POLICY, QUEUE = "policy 'p' of vhost 'shop'", "queue 'q' of vhost 'shop'"
VHOST, EXCHANGE = "vhost 'shop'", "exchange 'x' of vhost 'shop'"
OPERATOR = "operator policy 'o' of vhost 'shop'"
SHOVEL = "parameter 's' of component 'shovel' in vhost 'shop'"
# These lists are left out as a whole.
NOT_KEPT = ("users", "permissions", "topic_permissions")
NEEDED = "the entry is nothing without it"
ABOUT = "a fact about the file"
# Of each key: the list of `Definitions` that it changes; or where it is listed; or both.
FATES: dict[Path, str | tuple[str, str]] = {
    **{(key,): ABOUT for key in FULL if not isinstance(FULL[key], list)},
    **{(key,): key for key in ("vhosts", "exchanges", "queues", "bindings", "policies")},
    **{(key,): (key, "not kept") for key in NOT_KEPT},
    ("global_parameters",): ("global parameter 'cluster_name'", "not kept"),
    ("global_parameters", 0, "name"): NEEDED,
    ("global_parameters", 0, "value"): "it is listed by its name",
    ("parameters",): "policies",
    ("parameters", 0, "component"): NEEDED,
    ("parameters", 0, "vhost"): (SHOVEL, "not kept"),
    ("parameters", 0, "name"): NEEDED,
    ("parameters", 0, "value"): "it is listed by its name",
    ("parameters", 0, "value", "src-uri"): "it is listed by its name",
    ("parameters", 1, "component"): NEEDED,
    ("parameters", 1, "vhost"): "policies",
    ("parameters", 1, "name"): NEEDED,
    ("parameters", 1, "value"): NEEDED,
    ("parameters", 1, "value", "pattern"): (OPERATOR, "pattern"),
    ("parameters", 1, "value", "apply-to"): "the default is all",
    ("parameters", 1, "value", "priority"): "policies",
    ("parameters", 1, "value", "definition"): NEEDED,
    **{("parameters", 1, "value", "definition", key): "policies" for key in OPERATOR_KEYS},
    **{
        ("parameters", 1, "value", "definition", key): (OPERATOR, key)
        for key in (
            *("ha-mode", "ha-params", "max-in-memory-length", "max-in-memory-bytes"),
            *("queue-version", "overflow"),
        )
    },
    ("vhosts", 0, "name"): NEEDED,
    ("vhosts", 1, "name"): NEEDED,
    **{
        ("vhosts", 0, key): (VHOST, key)
        for key in ("description", "tags", "limits", "tracing", "default_queue_type", "metadata")
    },
    **{
        ("vhosts", 0, "metadata", key): (VHOST, f"metadata.{key}")
        for key in ("description", "tags", "default_queue_type")
    },
    ("policies", 0, "vhost"): "policies",
    ("policies", 0, "name"): NEEDED,
    ("policies", 0, "pattern"): (POLICY, "pattern"),
    ("policies", 0, "apply-to"): "the default is all",
    ("policies", 0, "priority"): "policies",
    ("policies", 0, "definition"): NEEDED,
    **{("policies", 0, "definition", key): "policies" for key in KEYS},
    **{
        ("policies", 0, "definition", key): (POLICY, key)
        for key in (
            *("ha-sync-batch-size", "ha-promote-on-failure", "ha-promote-on-shutdown"),
            *("queue-version", "queue-leader-locator", "max-in-memory-length"),
            *("dead-letter-strategy", "federation-upstream-set"),
        )
    },
    ("queues", 0, "vhost"): "queues",
    ("queues", 0, "name"): NEEDED,
    ("queues", 0, "type"): "the argument says it, too",
    **{("queues", 0, key): "queues" for key in ("durable", "auto_delete", "arguments")},
    **{("queues", 0, "arguments", key): "queues" for key in ARGUMENTS},
    **{
        ("queues", 0, "arguments", key): (QUEUE, key)
        for key in (
            *("x-queue-version", "x-quorum-initial-group-size", "x-max-in-memory-length"),
            "x-queue-leader-locator",
        )
    },
    ("exchanges", 0, "name"): NEEDED,
    ("exchanges", 0, "type"): NEEDED,
    **{
        ("exchanges", 0, key): "exchanges"
        for key in ("vhost", "durable", "auto_delete", "internal", "arguments")
    },
    ("exchanges", 0, "arguments", "alternate-exchange"): "exchanges",
    ("exchanges", 0, "arguments", "x-other"): (EXCHANGE, "x-other"),
    ("bindings", 0, "source"): NEEDED,
    ("bindings", 0, "destination"): NEEDED,
    **{
        ("bindings", 0, key): "bindings"
        for key in ("vhost", "destination_type", "routing_key", "arguments")
    },
    ("bindings", 0, "arguments", "x-match"): "bindings",
}


def keys_of(value: object, path: Path = ()) -> Iterator[Path]:
    """Where every key of the document is, those of lists that aren't kept left out."""
    if isinstance(value, dict):
        for key, held in value.items():
            yield (*path, key)
            if path or key not in NOT_KEPT:
                yield from keys_of(held, (*path, key))
    elif isinstance(value, list) and path[-1] not in ("limits", "tags"):
        for index, held in enumerate(value):
            yield from keys_of(held, (*path, index))


def at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def without(path: Path) -> dict[str, Any]:
    document = copy.deepcopy(FULL)
    del at(document, path[:-1])[path[-1]]
    return document


def test_the_table_has_every_key() -> None:
    assert set(FATES) == set(keys_of(FULL))


@pytest.mark.parametrize("path", FATES, ids=lambda path: ".".join(map(str, path)))
def test_each_key_is_mapped_or_listed(path: Path) -> None:
    fate, full = FATES[path], read_definitions(FULL)
    if fate == NEEDED:
        with pytest.raises(BrokerError, match=f"{path[-1]}|{path[0]}"):
            read_definitions(without(path))
        return
    less = read_definitions(without(path))
    if isinstance(fate, tuple):
        where, what = fate
        told = less if path[-1] == "pattern" else full
        assert any(line.startswith(f"{where}: ") and what in line for line in told.unmapped)
        assert less.unmapped != full.unmapped
    elif hasattr(full, fate):
        assert getattr(less, fate) != getattr(full, fate)
    else:
        assert less == full


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ((), "made-up"),
        (("vhosts", 0), VHOST),
        (("vhosts", 0, "metadata"), VHOST),
        (("policies", 0), POLICY),
        (("policies", 0, "definition"), POLICY),
        (("queues", 0), QUEUE),
        (("queues", 0, "arguments"), QUEUE),
        (("exchanges", 0), EXCHANGE),
        (("exchanges", 0, "arguments"), EXCHANGE),
        (("parameters", 1), OPERATOR),
        (("parameters", 1, "value"), OPERATOR),
        (("parameters", 1, "value", "definition"), OPERATOR),
        (("bindings", 0), "binding from 'x' of vhost 'shop' to 'x' of vhost 'shop'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [1, False, "x", ["x"], {"x": 1}], ids=repr)
def test_a_key_that_nobody_has_heard_of_is_listed(path: Path, where: str, value: object) -> None:
    document = copy.deepcopy(FULL)
    at(document, path)["made-up"] = value
    found, full = read_definitions(document), read_definitions(FULL)
    (line,) = set(found.unmapped) - set(full.unmapped)
    assert line.startswith(f"{where}: ")
    assert "made-up" in line
    # A queue's argument is kept, so that it is told back.
    if path[0:1] != ("queues",):
        assert replace(found, unmapped=()) == replace(full, unmapped=())


def policies(*entries: dict[str, Any], **more: Any) -> Definitions:
    base = {"vhost": "/", "pattern": "^q", "priority": 0, "definition": {"max-length": 5}}
    return read_definitions({"policies": [base | each for each in entries], **more})


@pytest.mark.parametrize("apply_to", ["quorum_queues", "streams", "cows", None, ["x"]])
def test_a_policy_for_other_things_than_our_queues_displaces_none(apply_to: object) -> None:
    meant = {"name": "meant", "apply-to": "queues"}
    found = policies({"name": "other", "apply-to": apply_to, "priority": 9}, meant)
    assert [each.name for each in found.policies] == ["meant"]
    (line,) = found.unmapped
    assert line.startswith(f"policy 'other': apply-to {apply_to}: ")
    assert "max-length" in line


def test_a_policy_of_classic_queues_is_for_all_queues_and_says_which_others_get_it() -> None:
    queues = [
        {"name": "q1", "durable": True, "arguments": {"x-queue-type": "quorum"}},
        {"name": "other", "durable": True, "arguments": {"x-queue-type": "quorum"}},
        {"name": "q2", "durable": True},
    ]
    entry = {"name": "p", "apply-to": "classic_queues"}
    alone = policies(entry)
    assert [each.name for each in alone.policies] == ["p"]
    (line,) = alone.unmapped
    assert line.startswith("policy 'p': apply-to classic_queues: it is for all queues here, which")
    beside = policies(entry, queues=queues)
    assert beside.policies == alone.policies
    assert beside.unmapped[-1].endswith("so it applies to q1, too")


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ({"ha-params": 2, "max-length": 1}, "ha-params 2 without ha-mode"),
        ({"ha-mode": "all", "ha-params": 2}, "ha-params 2: ha-mode all takes none"),
    ],
)
def test_parameters_without_their_mode_are_listed(definition: dict[str, Any], why: str) -> None:
    assert policies({"name": "p", "definition": definition}).unmapped == (f"policy 'p': {why}",)


@pytest.mark.parametrize("key", ["q2", ""])
def test_a_binding_from_the_default_exchange_is_there_by_the_queue_s_name_alone(key: str) -> None:
    binding = {"source": "", "destination": "q", "destination_type": "queue"}
    found = read_definitions({"bindings": [binding | {"routing_key": "q"}]})
    assert (found.bindings, found.unmapped) == ((), ())
    found = read_definitions({"bindings": [binding | {"routing_key": key}]})
    (line,) = found.unmapped
    assert line.startswith(f"binding from '' to 'q': routing key '{key}'")


def test_a_vhost_that_asks_for_nothing_of_its_own_is_listed_nowhere() -> None:
    vhost = {
        "name": "/",
        "description": "",
        "tags": [],
        "limits": [],
        "tracing": False,
        "default_queue_type": "classic",
        "metadata": {"description": "", "tags": [], "default_queue_type": "undefined"},
    }
    assert read_definitions({"vhosts": [vhost]}).unmapped == ()


def parameter(**value: Any) -> dict[str, Any]:
    return {
        "component": "operator_policy",
        "vhost": "shop",
        "name": "o",
        "value": {"pattern": "^q", "apply-to": "queues", "priority": 4} | value,
    }


def test_an_operator_policy_of_rabbitmq_is_one_of_ours() -> None:
    keys = {"max-length": 3, "message-ttl": 5, "ha-sync-mode": "manual"}
    found = read_definitions({"parameters": [parameter(definition=keys)]})
    assert found.policies == (
        Policy(
            *("o", "^q", 4),
            PolicyDefinition(
                sync_mode=SyncMode.MANUAL, rules=QueueRules(message_ttl_ms=5, max_length=3)
            ),
            True,
            "shop",
        ),
    )
    assert found.unmapped == ()


def test_mirrors_of_an_operator_policy_of_rabbitmq_are_a_floor_and_not_taken() -> None:
    """RabbitMQ takes the larger number of the policy's and the operator policy's, and ours the
    smaller one: it would take mirrors away from queues that asked for more."""
    keys = {"max-length": 3, "ha-mode": "exactly", "ha-params": 2}
    found = read_definitions({"parameters": [parameter(definition=keys)]})
    (policy,) = found.policies
    assert policy.definition == PolicyDefinition(rules=QueueRules(max_length=3))
    assert [line.split(": ")[1] for line in found.unmapped] == ["ha-mode", "ha-params"]


def test_an_operator_policy_for_quorum_queues_is_not_taken() -> None:
    entry = parameter(definition={"max-length": 3}, **{"apply-to": "quorum_queues"})
    found = read_definitions({"parameters": [entry]})
    assert found.policies == ()
    (line,) = found.unmapped
    assert line.startswith(f"{OPERATOR}: apply-to quorum_queues: ")


def test_other_parameters_are_listed_one_by_one() -> None:
    shovel = {"component": "shovel", "vhost": "shop", "value": {"src-uri": "amqp://u:secret@h"}}
    names = ["a", "b"]
    limits = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {}}
    entries = [*({**shovel, "name": name} for name in names), limits]
    assert read_definitions({"parameters": entries}).unmapped == (
        "parameter 'a' of component 'shovel' in vhost 'shop': is not kept here",
        "parameter 'b' of component 'shovel' in vhost 'shop': is not kept here",
        "parameter 'limits' of component 'vhost-limits' in vhost '/': is not kept here",
    )


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (1, "parameters"),
        ({}, "parameters[0].component"),
        ({"component": "operator_policy"}, "parameters[0].name"),
        ({"component": "operator_policy", "name": "o", "value": []}, "parameters[0].value"),
        ({"component": "operator_policy", "name": "o", "value": {}}, "parameters[0].value"),
    ],
)
def test_what_is_no_parameter_is_refused_by_place(entry: Any, field: str) -> None:
    with pytest.raises(BrokerError) as caught:
        read_definitions({"parameters": [entry]})
    assert caught.value.metadata["field"] == field


def test_an_alternate_exchange_is_taken_of_policies_for_exchanges() -> None:
    keys = {"alternate-exchange": "spare", "max-length": 5}
    taken = {}
    for apply_to in ("exchanges", "all", "queues"):
        found = policies({"name": "p", "apply-to": apply_to, "definition": keys})
        (policy,) = found.policies
        assert policy.apply_to.value == apply_to
        taken[apply_to] = (policy.definition, found.unmapped)
    limit = QueueRules(max_length=5)
    assert taken == {
        "exchanges": (
            PolicyDefinition(alternate_exchange="spare"),
            ("policy 'p': max-length has no meaning for exchanges here",),
        ),
        "all": (PolicyDefinition(rules=limit, alternate_exchange="spare"), ()),
        "queues": (
            PolicyDefinition(rules=limit),
            ("policy 'p': alternate-exchange 'spare': the policy isn't for exchanges",),
        ),
    }


@pytest.mark.parametrize("value", [7, "", ["spare"]])
def test_an_alternate_exchange_that_is_no_name_is_listed(value: Any) -> None:
    keys = {"alternate-exchange": value}
    found = policies({"name": "p", "apply-to": "exchanges", "definition": keys})
    assert found.policies == ()
    assert found.unmapped[0] == f"policy 'p': alternate-exchange {value!r} is no name"


def test_an_operator_policy_for_exchanges_is_not_taken() -> None:
    entry = parameter(definition={"max-length": 3}, **{"apply-to": "exchanges"})
    found = read_definitions({"parameters": [entry]})
    assert found.policies == ()
    (line,) = found.unmapped
    assert line.startswith(f"{OPERATOR}: apply-to exchanges: operator policies are for queues")
