"""Records of vhosts, exchanges and bindings: read as written, and refused if they are not such."""

from __future__ import annotations

import json

import pytest

from ringmq_node.model.fields import FieldValue, fields_of
from ringmq_node.model.topology import (
    BindingRecord,
    ExchangeKind,
    ExchangeRecord,
    TopologyRecordError,
    VhostRecord,
    exchange_key,
    predeclared,
    sorted_arguments,
    vhost_key,
)

ARGUMENTS: dict[str, object] = {
    "a": None,
    "b": "v",
    "c": -(2**63),
    "d": True,
    "e": 0.5,
    "f": b"\xff",
    "g": [1, {"z": 1, "a": "1"}],
}
FIELDS = fields_of(ARGUMENTS) | {
    "h": FieldValue("timestamp", 2**64 - 1),
    "i": FieldValue("other", ("amqp:D", b"\x01\x02")),
}
BINDING = BindingRecord(
    *("shop\x1fx", "1", "shop\x1fq", "2", False, "a.#"), sorted_arguments(FIELDS)
)


def test_records_are_read_as_written() -> None:
    vhost = VhostRecord("shöp/1", "id")
    assert VhostRecord.decode(vhost.key, vhost.encode()) == vhost
    exchange = ExchangeRecord(
        "shop\x1fx", "id", ExchangeKind.TOPIC, False, True, True, "shop\x1fy", "life", True
    )
    assert ExchangeRecord.decode(exchange.key, exchange.encode()) == exchange
    assert BindingRecord.decode(BINDING.key, BINDING.encode()) == BINDING


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", "x" * 256),
        ("id", 1),
        ("name", None),
        ("name", "another"),
        ("name", "\ud800"),
        ("name", "v\x1fa\x1fb"),
        ("kind", "x-random"),
        ("kind", 1),
        ("durable", 1),
        ("internal", "yes"),
        ("alternate", 7),
    ],
)
def test_a_bad_field_of_an_exchange_is_named(field: str, value: object) -> None:
    record = json.loads(ExchangeRecord("x", "id", ExchangeKind.DIRECT).encode())
    key = exchange_key("v\x1fa\x1fb" if value == "v\x1fa\x1fb" else "x")
    with pytest.raises(TopologyRecordError, match=r"registry key 'topology/exchanges/"):
        ExchangeRecord.decode(key, json.dumps(record | {field: value}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 5000, b"{}"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(TopologyRecordError):
        VhostRecord.decode(vhost_key("v"), data)
    with pytest.raises(TopologyRecordError):
        ExchangeRecord.decode(exchange_key("x"), data)
    with pytest.raises(TopologyRecordError):
        BindingRecord.decode(BINDING.key, data)


def test_bindings_whose_arguments_differ_in_type_alone_are_different_ones() -> None:
    records = [
        BindingRecord("x", "1", "q", "2", False, "", sorted_arguments(fields_of({"h": value})))
        for value in (1, 1.0, True, "1", b"1", None, [1], [1.0])
    ]
    assert len({each.key for each in records}) == len(set(records)) == len(records)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["x"], {"x": 1}, {"x": {}}, "x", {"x": ["text", 1]}, {"x": ["integer", True]}),
        *({"x": ["integer", 2**63]}, {"x": ["bytes", "!"]}, {"x": ["other", "y"]}),
        *({"x": ["table", [["y"]]]}, {"x": ["array", [1]]}, {"x": ["timestamp", -1]}),
        *({"x": ["text", "\ud800"]}, {"x": ["float", float("nan")]}),
    ],
)
def test_arguments_that_are_no_fields_are_refused(arguments: object) -> None:
    record = json.loads(BINDING.encode())
    with pytest.raises(TopologyRecordError):
        BindingRecord.decode(BINDING.key, json.dumps(record | {"arguments": arguments}).encode())


def test_a_binding_at_another_key_is_refused() -> None:
    with pytest.raises(TopologyRecordError, match="belongs at"):
        BindingRecord.decode("topology/bindings/00", BINDING.encode())


def test_exchanges_of_each_vhost_are_predeclared() -> None:
    names = ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]
    names.append("amq.rabbitmq.trace")
    assert [each.name for each in predeclared(VhostRecord("/", "1"))] == names
    assert [each.name for each in predeclared(VhostRecord("v", "2"))] == [
        f"v\x1f{n}" for n in names
    ]
    assert predeclared(VhostRecord("v", "2"))[0].is_default
    # Nobody publishes to it.
    inner = [each.name for each in predeclared(VhostRecord("/", "1")) if each.internal]
    assert inner == ["amq.rabbitmq.trace"]
