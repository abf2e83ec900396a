"""Definitions: RabbitMQ's are taken as they are, ours are read as they were written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.definitions.document import (
    Definitions,
    read_definitions,
    write_definitions,
)
from ringmq_node.broker.definitions.node_names import NodeNames
from ringmq_node.broker.topology.arguments import BindingWish, ExchangeArguments
from ringmq_node.model.fields import FieldValue, field_of, fields_of, text
from ringmq_node.model.names import join_name
from ringmq_node.model.policies import ApplyTo, Mirrors, Policy, PolicyDefinition
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import MasterLocator, QueueMode
from ringmq_node.model.rules import OFFERED, Overflow, QueueRules
from ringmq_node.model.settings import SyncMode
from ringmq_node.model.topology import ExchangeKind, sorted_arguments

# In the shape of an export of RabbitMQ 3.11's management plug-in, with something of everything.
RABBITMQ: dict[str, Any] = {
    "rabbit_version": "3.11.20",
    "rabbitmq_version": "3.11.20",
    "product_name": "RabbitMQ",
    "product_version": "3.11.20",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {}}],
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
    "policies": [
        {
            "vhost": "/",
            "name": "two",
            "pattern": "^two\\.",
            "apply-to": "queues",
            "definition": {
                "ha-mode": "exactly",
                "ha-params": 2,
                "ha-sync-mode": "automatic",
                "ha-promote-on-failure": "when-synced",
                "max-length": 1000,
                "queue-mode": "lazy",
            },
            "priority": 3,
        },
        {
            "vhost": "/",
            "name": "all",
            "pattern": ".*",
            "apply-to": "all",
            "definition": {
                "ha-mode": "all",
                "ha-promote-on-failure": "always",
                "ha-sync-batch-size": 100,
                "federation-upstream-set": "all",
            },
            "priority": 0,
        },
        {
            "vhost": "/",
            "name": "named",
            "pattern": "^named",
            "apply-to": "queues",
            "definition": {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"]},
            "priority": 0,
        },
        {
            "vhost": "shop",
            "name": "elsewhere",
            "pattern": ".*",
            "apply-to": "queues",
            "definition": {"ha-mode": "all"},
            "priority": 0,
        },
        {
            "vhost": "/",
            "name": "spare",
            "pattern": ".*",
            "apply-to": "exchanges",
            "definition": {"alternate-exchange": "x"},
            "priority": 0,
        },
    ],
    "queues": [
        {
            "name": "orders",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {
                "x-queue-type": "classic",
                "x-message-ttl": 60000,
                "x-max-length": 10,
                "x-overflow": "reject-publish",
                "x-queue-mode": "lazy",
                "x-queue-master-locator": "min-masters",
                "x-queue-version": 2,
            },
        },
        {
            "name": "q",
            "vhost": "shop",
            "durable": False,
            "auto_delete": True,
            "arguments": {"x-queue-type": "quorum", "x-delivery-limit": -1},
        },
        {
            "name": "log",
            "vhost": "shop",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "stream"},
        },
    ],
    "exchanges": [
        {
            "name": "events",
            "vhost": "/",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "unrouted", "x-other": 1},
        },
        {
            "name": "later",
            "vhost": "/",
            "type": "x-delayed-message",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"x-delayed-type": "direct"},
        },
    ],
    "bindings": [
        {
            "source": "events",
            "vhost": "/",
            "destination": "orders",
            "destination_type": "queue",
            "routing_key": "order.#",
            "arguments": {"h": 1, "i": None, "j": True, "x-match": "any"},
        },
        {
            "source": "later",
            "vhost": "/",
            "destination": "orders",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {},
        },
        {
            "source": "amq.topic",
            "vhost": "shop",
            "destination": "amq.fanout",
            "destination_type": "exchange",
            "routing_key": "#",
            "arguments": {},
        },
    ],
}


def test_definitions_of_rabbitmq_are_taken_as_they_are() -> None:
    found = read_definitions(json.loads(json.dumps(RABBITMQ)))
    assert found.vhosts == ("/", "shop")
    assert found.exchanges == {
        "events": ExchangeArguments(ExchangeKind.TOPIC, alternate="unrouted")
    }
    assert found.queues == {
        "orders": QueueArguments(
            mode=QueueMode.LAZY,
            durable=True,
            master_locator=MasterLocator.MIN_MASTERS,
            rules=QueueRules(message_ttl_ms=60000, max_length=10, overflow=Overflow.REJECT_PUBLISH),
            auto_delete=False,
            opaque=sorted_arguments(fields_of({"x-queue-type": "classic", "x-queue-version": 2})),
        ),
        "shop\x1fq": QueueArguments(
            durable=False, auto_delete=True, opaque=(("x-queue-type", text("quorum")),)
        ),
    }
    assert found.bindings == (
        BindingWish(
            *("events", "orders", False, "order.#"),
            fields_of({"h": 1, "i": None, "j": True, "x-match": "any"}),
        ),
        BindingWish("shop\x1famq.topic", "shop\x1famq.fanout", True, "#", {}),
    )
    assert found.policies == (
        Policy(
            *("two", "^two\\.", 3),
            PolicyDefinition(
                Mirrors(count=2),
                sync_mode=SyncMode.AUTOMATIC,
                mode=QueueMode.LAZY,
                rules=QueueRules(max_length=1000),
            ),
        ),
        Policy("all", ".*", 0, PolicyDefinition(Mirrors()), apply_to=ApplyTo.ALL),
        Policy("named", "^named", 0, PolicyDefinition(Mirrors(nodes=("a", "b")))),
        Policy("elsewhere", ".*", 0, PolicyDefinition(Mirrors()), vhost="shop"),
        Policy(
            *("spare", ".*", 0, PolicyDefinition(alternate_exchange="x")),
            apply_to=ApplyTo.EXCHANGES,
        ),
    )


def test_what_can_not_be_mapped_is_listed() -> None:
    told = read_definitions(RABBITMQ).unmapped
    expected = [
        ("users", "not kept"),
        ("permissions", "not kept"),
        ("global parameter 'internal_cluster_id'", "not kept"),
        ("exchange 'events'", "x-other"),
        ("exchange 'later'", "x-delayed-message"),
        ("exchange 'later'", "x-delayed-type"),
        ("queue 'orders'", "x-queue-version"),
        ("queue 'q' of vhost 'shop'", "quorum"),
        ("queue 'q' of vhost 'shop'", "x-delivery-limit -1"),
        ("queue 'log' of vhost 'shop'", "streams"),
        ("binding from 'later' to 'orders'", "'later' can't be mapped"),
        ("policy 'all'", "ha-promote-on-failure"),
        ("policy 'all'", "ha-sync-batch-size"),
        ("policy 'all'", "federation-upstream-set"),
    ]
    for where, why in expected:
        assert any(line.startswith(where) and why in line for line in told), (where, why, told)
    assert len(told) == len(expected), told


VHOSTS = st.sampled_from(["/", "shop", "ä b"])
NAMES = st.sampled_from(["x", "y", "q.r", "ü"])
INTERNAL = st.builds(join_name, VHOSTS, NAMES)
RULES = st.builds(
    QueueRules,
    message_ttl_ms=st.none() | st.integers(0, 10**9),
    max_length=st.none() | st.integers(0, 10**9),
    overflow=st.sampled_from([None, Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH]),
)
POLICY_RULES = RULES if {"message_ttl_ms", "max_length", "overflow"} <= OFFERED else st.none()
EXCHANGES = st.dictionaries(
    INTERNAL,
    st.builds(
        ExchangeArguments,
        st.sampled_from(ExchangeKind),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
)
QUEUES = st.dictionaries(
    INTERNAL,
    st.builds(
        QueueArguments,
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(QueueMode),
        st.booleans(),
        st.sampled_from([None, *MasterLocator]),
        RULES,
        st.booleans(),
        opaque=st.dictionaries(st.sampled_from(["x-a", "x-queue-type"]), st.just(text("v"))).map(
            sorted_arguments
        ),
    ),
)
FIELDS = [
    *map(field_of, (None, "1", 1, 1.0, True, b"1", [1, "1"], {"a": {"b": 1}})),
    FieldValue("timestamp", 1),
    FieldValue("other", ("amqp:D", b"1")),
]
BINDINGS = st.lists(
    st.builds(
        lambda vhost, source, to, is_exchange, key, arguments: BindingWish(
            join_name(vhost, source), join_name(vhost, to), is_exchange, key, arguments
        ),
        VHOSTS,
        NAMES,
        NAMES,
        st.booleans(),
        st.sampled_from(["", "a.#"]),
        st.dictionaries(NAMES, st.sampled_from(FIELDS)),
    ),
    max_size=4,
)
POLICIES = st.lists(
    st.builds(
        Policy,
        NAMES,
        st.just("^q"),
        st.integers(-5, 5),
        st.builds(
            PolicyDefinition,
            st.sampled_from([Mirrors(), Mirrors(2), Mirrors(nodes=("a", "b"))]),
            rules=RULES,
        ),
        st.booleans(),
        VHOSTS,
    )
    | st.builds(
        Policy,
        NAMES,
        st.just("^x"),
        st.integers(-5, 5),
        st.builds(PolicyDefinition, alternate_exchange=NAMES),
        vhost=VHOSTS,
        apply_to=st.sampled_from([ApplyTo.EXCHANGES, ApplyTo.ALL]),
    ),
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(EXCHANGES, QUEUES, BINDINGS, POLICIES, st.booleans())
def test_what_was_written_is_read_again(
    exchanges: dict[str, ExchangeArguments],
    queues: dict[str, QueueArguments],
    bindings: list[BindingWish],
    policies: list[Policy],
    with_alternates: bool,
) -> None:
    if with_alternates:
        exchanges = {
            name: ExchangeArguments(each.kind, alternate=name) for name, each in exchanges.items()
        }
    written = Definitions(("/", "shop", "ä b"), exchanges, queues, tuple(bindings), tuple(policies))
    document = json.loads(json.dumps(write_definitions(written, "1")))
    # Arguments without an effect are told of each time.
    assert replace(read_definitions(document), unmapped=()) == written


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "definitions"),
        ("x", "definitions"),
        ({"queues": {}}, "queues"),
        ({"queues": [1]}, "queues"),
        ({"queues": [{}]}, "queues[0].name"),
        ({"queues": [{"name": 7}]}, "queues[0].name"),
        ({"queues": [{"name": "a\x1fb"}]}, "queues[0].name"),
        ({"queues": [{"name": "q", "durable": "yes"}]}, "queue 'q'.durable"),
        ({"queues": [{"name": "q", "arguments": [1]}]}, "queue 'q'.arguments"),
        ({"vhosts": [{"name": None}]}, "vhosts[0].name"),
        ({"exchanges": [{"name": "x"}]}, "exchanges[0].type"),
        ({"bindings": [{"source": "x"}]}, "bindings[0].destination"),
        (
            {"bindings": [{"source": "x", "destination": "q", "destination_type": "topic"}]},
            "bindings[0].destination_type",
        ),
        ({"policies": [{"name": "p"}]}, "policies[0]"),
        ({"policies": [{"name": 1, "definition": {}}]}, "policies[0]"),
    ],
)
def test_what_are_no_definitions_is_refused_by_place(document: Any, field: str) -> None:
    with pytest.raises(BrokerError) as caught:
        read_definitions(document)
    assert (caught.value.reason, caught.value.metadata["field"]) == (Reason.BAD_REQUEST, field)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"ha-mode": "most"}, "most"),
        ({"ha-mode": "exactly", "ha-params": "2"}, "ha-params"),
        ({"ha-mode": "nodes", "ha-params": 2}, "ha-params"),
        ({"ha-mode": "exactly", "ha-params": 9}, "at most 7"),
        ({"ha-mode": "all", "ha-sync-mode": "never"}, "never"),
        ({"ha-mode": "all", "queue-master-locator": "near"}, "near"),
        ({"ha-mode": "all", "queue-mode": "slow"}, "slow"),
        ({"ha-mode": "all", "max-length": "many"}, "many"),
    ],
)
def test_a_bad_value_of_a_policy_is_listed(policy: dict[str, Any], why: str) -> None:
    entry = {"vhost": "/", "name": "p", "pattern": "x", "definition": policy, "priority": 0}
    assert any(why in line for line in read_definitions({"policies": [entry]}).unmapped)


def test_a_queue_and_an_exchange_of_the_same_name_are_not_lost_together() -> None:
    document = {
        "exchanges": [
            {"name": "orders", "type": "x-consistent-hash"},
            {"name": "in", "type": "fanout"},
            {"name": "events", "type": "fanout"},
        ],
        "queues": [
            {"name": "orders"},
            {"name": "audit"},
            {"name": "events", "arguments": {"x-queue-type": "stream"}},
        ],
        "bindings": [
            {"source": "in", "destination": "orders"},
            {"source": "events", "destination": "audit"},
            {"source": "in", "destination": "events", "destination_type": "exchange"},
            {"source": "orders", "destination": "audit"},
            {"source": "in", "destination": "events"},
            {"source": "in", "destination": "orders", "destination_type": "exchange"},
        ],
    }
    taken = read_definitions(document).bindings
    assert [(each.source, each.destination, each.to_exchange) for each in taken] == [
        ("in", "orders", False),
        ("events", "audit", False),
        ("in", "events", True),
    ]


@pytest.mark.parametrize("kind", ["exchanges", "queues", "vhosts"])
def test_half_a_surrogate_pair_refuses_the_document(kind: str) -> None:
    with pytest.raises(BrokerError) as caught:
        read_definitions({kind: [{"name": "bad\ud800", "type": "fanout"}]})
    assert caught.value.metadata == {"field": f"{kind}[0].name"}
    str(caught.value).encode()


# RabbitMQ's export of one vhost names it nowhere.
ONE_VHOST: dict[str, Any] = {
    "original_vhost_name": "/",
    "exchanges": [{"name": "x", "type": "fanout", "arguments": {"alternate-exchange": "y"}}],
    "queues": [{"name": "q"}, {"name": "own", "vhost": "other"}],
    "bindings": [{"source": "x", "destination": "q"}],
    "policies": [{"name": "p", "pattern": ".*", "definition": {"max-length": 1}}],
    "parameters": [
        {
            "component": "operator_policy",
            "name": "o",
            "value": {"pattern": ".*", "definition": {"max-length": 2}},
        },
        {"component": "shovel", "name": "s", "value": {}},
    ],
}


def test_entries_without_a_vhost_are_of_the_one_that_is_given() -> None:
    found = read_definitions(ONE_VHOST, vhost="shop")
    x = join_name("shop", "x")
    assert found.exchanges == {
        x: ExchangeArguments(ExchangeKind.FANOUT, alternate=join_name("shop", "y"))
    }
    assert [*(found.queues or ())] == [join_name("shop", "q"), join_name("other", "own")]
    assert [(each.source, each.destination) for each in found.bindings] == [
        (x, join_name("shop", "q"))
    ]
    assert [(each.name, each.vhost) for each in found.policies] == [("p", "shop"), ("o", "shop")]
    assert found.unmapped == (
        "parameter 's' of component 'shovel' in vhost 'shop': is not kept here",
    )
    # Only those that the document lists: the others are to be there.
    assert found.vhosts == ()


def mirrored(*nodes: str) -> dict[str, Any]:
    return {
        "name": "p",
        "pattern": "x",
        "definition": {"ha-mode": "nodes", "ha-params": [*nodes]},
    }


@pytest.mark.parametrize(
    ("given", "nodes", "expected"),
    [
        ({}, ["rabbit@n1", "rabbit@prod-1"], ("n1", "rabbit@prod-1")),
        ({"rabbit@prod-1": "n2"}, ["rabbit@n1", "rabbit@prod-1"], ("n1", "n2")),
        ({"prod-1": "n2"}, ["rabbit@prod-1"], ("n2",)),
        # Two nodes on one host, the whole name before the host's; and two that become one.
        ({"r2@host": "n2", "host": "n1"}, ["r1@host", "r2@host"], ("n1", "n2")),
        ({"r1@host": "n1", "r2@host": "n1"}, ["r1@host", "r2@host", "r@n2"], ("n1", "n2")),
        # A node that is called as one of ours, and is another.
        ({"rabbit@n1": "n2", "rabbit@n2": "n1"}, ["rabbit@n1"], ("n2",)),
    ],
)
def test_nodes_of_policies_are_those_that_they_are_said_to_be(
    given: dict[str, str], nodes: list[str], expected: tuple[str, ...]
) -> None:
    names = NodeNames(given, known=("n1", "n2"))
    [policy] = read_definitions({"policies": [mirrored(*nodes)]}, nodes=names).policies
    assert policy.definition.mirrors == Mirrors(nodes=expected)


def test_nodes_in_policies_of_ours_are_mapped_too() -> None:
    policy = Policy("p", "x", 0, PolicyDefinition(Mirrors(count=1, nodes=("a", "b"))))
    document = write_definitions(Definitions(policies=(policy,)), "1")
    names = NodeNames({"a": "n1", "b": "n2"}, known=("n1", "n2"))
    [found] = read_definitions(document, nodes=names).policies
    assert found.definition.mirrors == Mirrors(count=1, nodes=("n1", "n2"))


def test_a_mapping_of_a_node_that_no_policy_names_is_listed() -> None:
    names = NodeNames({"rabbit@a": "n1", "rabbit@typo": "n2"}, known=("n1", "n2"))
    found = read_definitions({"policies": [mirrored("rabbit@a")]}, nodes=names)
    assert found.unmapped == ("node 'rabbit@typo': no policy of the document names it",)
