"""Ways through exchanges: each queue once, alternates, circles, and ends that are gone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ringmq_node.broker.topology.router import Router
from ringmq_node.model.fields import fields_of
from ringmq_node.model.policies import ApplyTo, ExchangeWanted, Policy, PolicyDefinition
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.topology import (
    ROOT_VHOST,
    BindingRecord,
    ExchangeKind,
    ExchangeRecord,
    VhostRecord,
    predeclared,
    sorted_arguments,
)


class Queues:
    """Queues by name, each with its id."""

    def __init__(self, *names: str) -> None:
        self.ids = {name: f"id of {name}" for name in names}

    def has(self, queue: str) -> bool:
        return queue in self.ids

    def has_id(self, queue: str, queue_id: str) -> bool:
        return self.ids.get(queue) == queue_id


class Topology:
    """A router, and verbs with names alone."""

    def __init__(self, *queues: str) -> None:
        self.queues = Queues(*queues)
        self.router = Router(self.queues)
        for record in predeclared(ROOT_VHOST):
            self.router.put_exchange(record)

    def exchange(
        self, name: str, kind: ExchangeKind = ExchangeKind.FANOUT, alternate: str = ""
    ) -> ExchangeRecord:
        record = ExchangeRecord(name, f"id of {name}", kind, alternate=alternate)
        self.router.put_exchange(record)
        return record

    def binding(self, source: str, to: str, key: str = "", **arguments: str) -> BindingRecord:
        return BindingRecord(
            source,
            f"root:{source}" if source.startswith("amq.") else f"id of {source}",
            to,
            f"id of {to}",
            to not in self.queues.ids,
            key,
            sorted_arguments(fields_of(arguments)),
        )

    def bind(self, source: str, to: str, key: str = "", **arguments: str) -> BindingRecord:
        record = self.binding(source, to, key, **arguments)
        self.router.bind(record)
        return record

    def route(self, exchange: str, *keys: str, **headers: str) -> tuple[str, ...]:
        return self.router.route(exchange, keys or ("",), fields_of(headers))


def test_every_queue_is_bound_to_the_default_exchange_by_its_name() -> None:
    topology = Topology("q")
    assert topology.route("", "q") == ("q",)
    assert topology.route("", "p") == ()


def test_a_key_reaches_no_queue_of_another_vhost() -> None:
    topology = Topology("v\x1fq", "q")
    assert topology.route("", "v\x1fq") == ()
    for record in predeclared(VhostRecord("v", "v1")):
        topology.router.put_exchange(record)
    assert topology.route("v\x1f", "q") == ("v\x1fq",)
    assert topology.route("", "q") == ("q",)


def test_a_missing_exchange_is_refused_by_name_and_vhost() -> None:
    with pytest.raises(BrokerError, match="no exchange 'x' in vhost 'v'") as caught:
        Topology().route("v\x1fx")
    assert caught.value.reason is Reason.EXCHANGE_NOT_FOUND
    assert caught.value.metadata == {"exchange": "x", "vhost": "v"}


def test_a_queue_is_found_once_and_queues_come_in_order() -> None:
    topology = Topology("q", "p", "r")
    for key in ("a.b", "a.*", "#", "*.b"):
        for queue in ("r", "q", "p"):
            topology.bind("amq.topic", queue, key)
    topology.bind("amq.topic", "r", "a.b", argument="another binding")
    assert topology.route("amq.topic", "a.b") == ("p", "q", "r")
    assert topology.route("amq.topic", "a") == ("p", "q", "r")


def test_exchanges_bound_to_exchanges_in_a_circle_end() -> None:
    topology = Topology("p", "q")
    for name in "xyz":
        topology.exchange(name)
    for source, to in (("x", "y"), ("y", "z"), ("z", "x"), ("x", "x"), ("y", "p"), ("z", "q")):
        topology.bind(source, to)
    assert topology.route("x") == topology.route("z") == ("p", "q")


def test_an_alternate_exchange_gets_what_its_exchange_can_not_route() -> None:
    topology = Topology("p", "q")
    topology.exchange("x", ExchangeKind.DIRECT, alternate="y")
    topology.exchange("y", ExchangeKind.DIRECT, alternate="z")
    topology.exchange("z", alternate="x")
    topology.bind("x", "p", "a")
    topology.bind("z", "q")
    assert topology.route("x", "a") == ("p",)
    assert topology.route("x", "b") == ("q",)
    topology.router.remove_exchange("z")
    assert topology.route("x", "b") == ()


def test_each_exchange_on_the_way_has_its_own_alternate() -> None:
    topology = Topology("p", "q")
    topology.exchange("x")
    topology.exchange("y", ExchangeKind.DIRECT, alternate="z")
    topology.exchange("z")
    topology.bind("x", "p")
    topology.bind("x", "y")
    topology.bind("z", "q")
    assert topology.route("x", "unbound in y") == ("p", "q")


def test_a_binding_to_a_queue_that_is_gone_counts_as_none() -> None:
    topology = Topology("q", "spare")
    topology.exchange("x", alternate="y")
    topology.exchange("y")
    topology.bind("x", "q")
    topology.bind("y", "spare")
    assert topology.route("x") == ("q",)
    topology.queues.ids["q"] = "that of a namesake"
    assert topology.route("x") == ("spare",)
    del topology.queues.ids["q"]
    assert topology.route("x") == ("spare",)


def spare(
    name: str = "spare", pattern: str = "^x", apply_to: ApplyTo = ApplyTo.EXCHANGES
) -> Policy:
    definition = PolicyDefinition(alternate_exchange=name)
    return Policy(name, pattern, 0, definition, apply_to=apply_to)


def test_a_policy_gives_exchanges_an_alternate_until_it_is_gone() -> None:
    topology = Topology("q", "mine", "other")
    for alternate, queue in (("spare", "q"), ("declared", "mine"), ("another", "other")):
        topology.exchange(alternate)
        topology.bind(alternate, queue)
    topology.exchange("x")
    topology.exchange("x with its own", alternate="declared")
    topology.exchange("y")
    router, version = topology.router, topology.router.version
    router.follow_policies((spare(),))
    assert router.version > version
    assert topology.route("x") == ("q",)
    assert topology.route("x with its own") == ("mine",)
    assert topology.route("y") == ()
    # Of an exchange that comes later, and one whose record is written anew.
    topology.exchange("x later")
    assert topology.route("x later") == ("q",)
    topology.exchange("x with its own")
    assert topology.route("x with its own") == ("q",)
    version = router.version
    router.follow_policies((spare(),))
    assert router.version == version
    router.follow_policies((spare("another", ".*"),))
    assert topology.route("x") == topology.route("y") == topology.route("amq.topic") == ("other",)
    # Messages to the default exchange are for queues.
    assert topology.route("", "nobody") == ()
    router.follow_policies(())
    assert topology.route("x") == ()
    assert router.wanted_of(router.exchange("x")) == ExchangeWanted("")


def test_a_policy_s_alternate_may_be_missing_or_the_exchange_itself_or_look_at_headers() -> None:
    topology = Topology("q")
    topology.exchange("x")
    for alternate in ("nothing", "x"):
        topology.router.follow_policies((spare(alternate),))
        assert topology.route("x") == ()
    assert not topology.router.looks_at_headers("x")
    topology.exchange("by headers", ExchangeKind.HEADERS)
    topology.bind("by headers", "q", kind="new")
    topology.router.follow_policies((spare("by headers"),))
    assert topology.router.looks_at_headers("x")
    assert topology.route("x", kind="new") == ("q",)
    assert topology.route("x", kind="old") == ()


def test_a_binding_does_not_outlive_its_exchanges() -> None:
    topology = Topology("q")
    for name in "xy":
        topology.exchange(name)
    first, second = topology.bind("x", "y"), topology.bind("y", "q")
    assert topology.route("x") == ("q",)
    for name in "xy":
        record = topology.router.exchange(name)
        topology.router.put_exchange(replace(record, id="that of a namesake"))
        assert topology.route("x") == ()
        topology.router.put_exchange(record)
        assert topology.route("x") == ("q",)
    assert topology.router.is_live(first)
    topology.router.remove_exchange("y")
    assert not topology.router.is_live(first)
    assert not topology.router.is_live(second)


def test_records_may_arrive_in_any_order() -> None:
    whole = Topology("p", "q")
    bindings = [whole.binding("x", "y"), whole.binding("y", "p"), whole.binding("x", "q")]
    exchanges = [ExchangeRecord(name, f"id of {name}", ExchangeKind.FANOUT) for name in "xy"]
    for seed in range(20):
        topology = Topology("p", "q")
        records: list[BindingRecord | ExchangeRecord] = [*bindings, *exchanges]
        random.Random(seed).shuffle(records)
        for record in records:
            if isinstance(record, BindingRecord):
                topology.router.bind(record)
            else:
                topology.router.put_exchange(record)
        assert topology.route("x") == ("p", "q")


def test_a_record_that_comes_twice_counts_once() -> None:
    topology = Topology("q")
    topology.exchange("x")
    binding = topology.bind("x", "q")
    topology.router.bind(binding)
    topology.router.unbind(binding)
    topology.router.unbind(binding)
    assert topology.route("x") == ()


def test_headers_are_asked_for_only_where_they_decide() -> None:
    topology = Topology("q")
    topology.exchange("x")
    topology.exchange("y", ExchangeKind.HEADERS)
    topology.exchange("z", alternate="x")
    assert not topology.router.looks_at_headers("x")
    binding = topology.bind("x", "y")
    topology.bind("y", "q", kind="report", **{"x-match": "any"})
    assert topology.router.looks_at_headers("x")
    assert topology.router.looks_at_headers("z")
    assert topology.route("z", kind="report") == ("q",)
    assert topology.route("z", kind="invoice") == ()
    topology.router.unbind(binding)
    assert not topology.router.looks_at_headers("z")


def test_an_alternate_exchange_is_for_what_none_of_the_keys_has_led_anywhere() -> None:
    topology = Topology("p", "q", "spare")
    topology.exchange("alternate")
    topology.exchange("x", ExchangeKind.DIRECT, alternate="alternate")
    topology.bind("alternate", "spare")
    topology.bind("x", "p", "a")
    topology.bind("x", "q", "b")
    topology.bind("x", "p", "b")
    assert topology.route("x", "a", "b") == topology.route("x", "b") == ("p", "q")
    assert topology.route("x", "none", "a") == topology.route("x", "a", "none") == ("p",)
    assert topology.route("x", "none", "no") == ("spare",)
    assert topology.route("", "none", "q", "p", "q") == ("p", "q")


def test_clients_publish_to_no_internal_exchange() -> None:
    topology = Topology("q")
    topology.router.put_exchange(
        ExchangeRecord("v\x1fx", "id of x", ExchangeKind.FANOUT, internal=True)
    )
    topology.router.check_publish("")
    for exchange, reason in (
        ("v\x1fx", Reason.ACCESS_REFUSED),
        ("none", Reason.EXCHANGE_NOT_FOUND),
    ):
        with pytest.raises(BrokerError) as caught:
            topology.router.check_publish(exchange)
        assert caught.value.reason is reason
