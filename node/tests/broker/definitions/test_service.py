"""Definitions through a node: what it exports it takes again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.broker.test_deleting import with_node

import ringmq
from ringmq_node.node import Node


def test_a_queue_whose_name_the_cluster_gave_comes_back_with_its_bindings(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        given = (await client.declare_queue()).queue
        await client.topology.bind("amq.topic", given, "a.#")
        exported = await client.topology.export_definitions()
        await client.delete_queue(given)
        done = await client.topology.import_definitions(exported)
        assert (done.created, done.unmapped, done.failed) == (2, (), ())
        assert given in [each.queue for each in await client.queues()]
        bound = await client.topology.bindings()
        assert [(each.source, each.destination) for each in bound] == [("amq.topic", given)]
        # A client still can't choose such a name.
        await client.delete_queue(given)
        with pytest.raises(ringmq.AccessDeniedError):
            await client.declare_queue(given)

    with_node(tmp_path, work)


def test_rabbitmq_s_policy_for_all_queues_but_its_own_is_set_and_told_as_it_was_written(
    tmp_path: Path,
) -> None:
    pattern = r"^(?!amq\.).*"
    policy = {"vhost": "/", "name": "ha-all", "pattern": pattern, "apply-to": "all"}
    bound = {"pattern": pattern, "apply-to": "queues", "priority": 0}
    document = {
        "policies": [policy | {"definition": {"ha-mode": "all"}, "priority": 0}],
        "parameters": [
            {"component": "operator_policy", "vhost": "/", "name": "bound"}
            | {"value": bound | {"definition": {"max-length": 7}}}
        ],
    }

    async def work(node: Node, client: ringmq.Client) -> None:
        given = (await client.declare_queue()).queue
        done = await client.topology.import_definitions(json.dumps(document).encode())
        assert (done.created, done.unmapped, done.failed) == (2, (), ())
        mine, others = await client.queue("q"), await client.queue(given)
        assert (mine.policy, mine.operator_policy) == ("ha-all", "bound")
        assert mine.wanted["max_length"] == "7"
        assert (others.policy, others.operator_policy) == ("", "")
        exported = json.loads(await client.topology.export_definitions())
        assert [(each["name"], each["pattern"]) for each in exported["policies"]] == [
            ("ha-all", pattern),
            ("bound", pattern),
        ]
        # The same by hand; of both queues it applies to one.
        again = ringmq.Policy("ha-all", pattern, mirrors=ringmq.Mirrors())
        assert await client.operator.set_policy(again) == 1
        with pytest.raises(ringmq.BadRequestError, match="of lookarounds one is taken"):
            await client.operator.set_policy(replace(again, pattern="a(?=b)"))

    with_node(tmp_path, work)


def test_reserved_names_that_no_cluster_gives_are_refused_in_definitions_too(
    tmp_path: Path,
) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        names = ["amq.rabbitmq.reply-to", "amq.mine", "amq.gen-JzTY20BRgKO-HjmUJj0wLg"]
        document = {"queues": [{"name": name, "durable": True} for name in names]}
        done = await client.topology.import_definitions(json.dumps(document).encode())
        assert done.created == 1
        assert [line.partition(":")[0] for line in sorted(done.failed)] == [
            "queue amq.mine",
            "queue amq.rabbitmq.reply-to",
        ]

    with_node(tmp_path, work)


def test_a_queue_that_has_more_arguments_than_its_definition_is_reported(tmp_path: Path) -> None:
    """A client that leaves an argument out asks for nothing; definitions say all that there is."""

    async def work(node: Node, client: ringmq.Client) -> None:
        rules = ringmq.QueueRules(message_ttl_ms=5000, max_length=7)
        await client.declare_queue("limited", replicas=1, rules=rules)
        exported = await client.topology.export_definitions()
        done = await client.topology.import_definitions(exported)
        assert (done.created, done.existing, done.failed) == (0, 2, ())
        for left_out in ("x-message-ttl", "x-max-length", "x-ringmq-replicas"):
            document = json.loads(exported)
            queue = next(each for each in document["queues"] if each["name"] == "limited")
            del queue["arguments"][left_out]
            done = await client.topology.import_definitions(json.dumps(document).encode())
            assert (done.created, done.existing) == (0, 1)
            [line] = done.failed
            assert line.startswith("queue limited: queue 'limited' exists with "), line
        assert (await client.queue("limited")).wanted["max_length"] == "7"

    with_node(tmp_path, work)


def test_half_a_surrogate_pair_refuses_definitions_before_anything_is_declared(
    tmp_path: Path,
) -> None:
    exchanges = [{"name": name, "type": "fanout"} for name in ("ok", "bad\ud800")]

    async def work(node: Node, client: ringmq.Client) -> None:
        with pytest.raises(ringmq.BadRequestError):
            await client.topology.import_definitions(json.dumps({"exchanges": exchanges}).encode())
        assert "ok" not in [each.exchange for each in await client.topology.exchanges()]

    with_node(tmp_path, work)


def test_entries_without_a_vhost_go_to_the_caller_s(tmp_path: Path) -> None:
    document = json.dumps({"queues": [{"name": "mine"}]}).encode()

    async def work(node: Node, client: ringmq.Client) -> None:
        with pytest.raises(ringmq.VhostNotFoundError, match="there is no vhost 'shop'"):
            await client.topology.import_definitions(document, vhost="shop")
        assert [each.vhost for each in await client.topology.vhosts()] == ["/"]
        await client.topology.create_vhost("shop")
        async with ringmq.connect(node.address, vhost="shop") as shop:
            done = await shop.topology.import_definitions(document)
            assert (done.created, done.unmapped, done.failed) == (1, (), ())
            assert [each.queue for each in await shop.queues()] == ["mine"]
        assert "mine" not in [each.queue for each in await client.queues()]
        # A document may bring the vhost along.
        whole = json.dumps({"vhosts": [{"name": "new"}], "queues": [{"name": "mine"}]}).encode()
        done = await client.topology.import_definitions(whole, vhost="new")
        assert (done.created, done.failed) == (2, ())

    with_node(tmp_path, work)


def test_entries_of_a_vhost_that_nobody_has_are_refused_in_one_line(tmp_path: Path) -> None:
    document = {
        "vhosts": [{"name": "/"}],
        "exchanges": [{"name": "x", "vhost": "typo", "type": "fanout"}],
        "queues": [{"name": each, "vhost": "typo"} for each in "abc"] + [{"name": "here"}],
        "bindings": [{"source": "x", "destination": "a", "vhost": "typo"}],
        "policies": [
            {"name": "p", "vhost": "typo", "pattern": "x", "definition": {"max-length": 1}}
        ],
    }

    async def work(node: Node, client: ringmq.Client) -> None:
        done = await client.topology.import_definitions(json.dumps(document).encode())
        assert done.created == 1
        assert done.failed == (
            "vhost 'typo': the document doesn't list it, and there is no vhost 'typo'; left out: "
            "exchanges 1, queues 3, bindings 1, policies 1",
        )
        assert [each.vhost for each in await client.topology.vhosts()] == ["/"]
        # One that is here need not be in the document.
        await client.topology.create_vhost("typo")
        done = await client.topology.import_definitions(json.dumps(document).encode())
        assert (done.created, done.existing, done.failed) == (6, 1, ())

    with_node(tmp_path, work)


def test_a_policy_s_nodes_of_another_cluster_have_to_be_said(tmp_path: Path) -> None:
    nodes = ["rabbit@prod-1", "rabbit@prod-2"]
    definition = {"ha-mode": "nodes", "ha-params": nodes}
    document = json.dumps(
        {"policies": [{"name": "p", "pattern": "x", "definition": definition}]}
    ).encode()

    async def work(node: Node, client: ringmq.Client) -> None:
        [own] = [each.node for each in (await client.cluster_status()).nodes]
        done = await client.topology.import_definitions(document)
        assert done.failed == (
            "policy p: no node here is called rabbit@prod-1 or rabbit@prod-2; the cluster has "
            f"{own}. Say which nodes these are: "
            "--node rabbit@prod-1=NODE --node rabbit@prod-2=NODE",
        )
        with pytest.raises(ringmq.BadRequestError, match="there is no node 'nobody'") as caught:
            await client.topology.import_definitions(document, nodes={"rabbit@prod-1": "nobody"})
        assert caught.value.field == "nodes"
        said = dict.fromkeys(nodes, own)
        done = await client.topology.import_definitions(document, nodes=said)
        assert (done.created, done.unmapped, done.failed) == (1, (), ())
        [policy] = await client.operator.policies()
        assert policy.mirrors == ringmq.Mirrors(nodes=(own,))

    with_node(tmp_path, work)


def test_a_policy_of_rabbitmq_for_exchanges_takes_effect_and_comes_back(tmp_path: Path) -> None:
    policy = {"vhost": "/", "name": "spare", "pattern": "^x", "priority": 0}
    keys = {"alternate-exchange": "others"}
    document = {
        "exchanges": [{"vhost": "/", "name": name, "type": "fanout"} for name in ("x", "others")],
        "bindings": [{"vhost": "/", "source": "others", "destination": "q"}],
        "policies": [policy | {"apply-to": "exchanges", "definition": keys}],
    }

    async def work(node: Node, client: ringmq.Client) -> None:
        done = await client.topology.import_definitions(json.dumps(document).encode())
        assert (done.created, done.unmapped, done.failed) == (4, (), ())
        async with client.publisher(exchange="x") as publisher:
            await publisher.publish(b"unrouted", mandatory=True)
        assert (await client.get_messages("q")).bodies == [b"unrouted"]
        exported = await client.topology.export_definitions()
        (told,) = json.loads(exported)["policies"]
        assert (told["apply-to"], told["definition"]) == (
            "exchanges",
            {"alternate_exchange": "others"},
        )
        # What a policy says is not written down as the exchange's own.
        arguments = {each["name"]: each["arguments"] for each in json.loads(exported)["exchanges"]}
        assert arguments["x"] == {}
        await client.operator.delete_policy("spare")
        assert (await client.topology.exchange("x")).effective_alternate_exchange == ""
        done = await client.topology.import_definitions(exported)
        assert (done.created, done.unmapped, done.failed) == (1, (), ())
        assert (await client.topology.exchange("x")).policy == "spare"

    with_node(tmp_path, work)
