"""The history of a dead letter, and its bytes beside protobuf's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringmq.v1 import common_pb2 as common
from ringmq_base.protobuf import varint
from ringmq_node.broker.routing.stamp import stamped
from ringmq_node.doors.grpc.fields import field_from_wire, field_to_wire, fields_from_wire
from ringmq_node.model.deaths import (
    Death,
    DeathReason,
    FirstDeath,
    history_headers,
    history_of,
    queues_in_a_cycle,
    with_death,
)
from ringmq_node.model.envelope import dead_envelope, decode_field, read_envelope
from ringmq_node.model.fields import (
    FieldValue,
    field_of_json,
    field_to_json,
    fields_of,
    integer,
    table_of,
    text,
    values_of,
)
from ringmq_node.model.foreign import foreign_properties
from ringmq_node.model.protobuf import EnvelopeError

LARGE = 1 << 20
TEXTS = st.text(max_size=8)
REASONS = st.sampled_from(DeathReason)


def died(
    properties: bytes, reason: DeathReason, queue: str, *, at_ms: int = 7, bytes_max: int = LARGE
) -> common.Properties:
    found = dead_envelope(properties, reason, queue, at_ms=at_ms, bytes_max=bytes_max)
    return common.Properties.FromString(found.properties)


def test_the_first_death_has_all_that_amqp_shows() -> None:
    before = common.Properties(
        message_id="m",
        headers={"a": common.FieldValue(text="1")},
        exchange="orders",
        routing_key="eu.new",
        expiration_ms=500,
    )
    after = died(before.SerializeToString(), DeathReason.EXPIRED, "work", at_ms=1234)
    assert (after.message_id, after.headers["a"].text) == ("m", "1")
    # They are said anew by who publishes the letter; and it must not expire again at once.
    assert (after.exchange, after.routing_key, after.HasField("expiration_ms")) == ("", "", False)
    assert [*after.deaths] == [
        common.Death(
            reason="expired",
            queue="work",
            exchange="orders",
            routing_keys=["eu.new"],
            count=1,
            time_ms=1234,
            original_expiration_ms=500,
        )
    ]
    assert after.first_death == common.FirstDeath(reason="expired", queue="work", exchange="orders")


def test_a_message_to_the_queue_itself_dies_with_the_default_exchange_and_the_queues_name() -> None:
    after = died(b"", DeathReason.REJECTED, "work")
    [death] = after.deaths
    assert (death.exchange, [*death.routing_keys], death.count) == ("", ["work"], 1)
    assert not death.HasField("original_expiration_ms")


def test_a_message_to_the_queue_itself_has_the_queues_name_for_its_key() -> None:
    assert read_envelope(b"").keys_in("q") == ("q",)
    [stamp] = stamped([], "x", ("",))
    assert read_envelope(stamp).keys_in("q") == ("",)


def test_a_repeat_raises_the_count_moves_to_the_front_and_keeps_the_first_times_facts() -> None:
    properties = common.Properties(exchange="x", expiration_ms=0).SerializeToString()
    for queue, reason, at_ms in (
        ("a", DeathReason.EXPIRED, 1),
        ("b", DeathReason.REJECTED, 2),
        ("a", DeathReason.MAXLEN, 3),
        ("a", DeathReason.EXPIRED, 4),
    ):
        properties = died(properties, reason, queue, at_ms=at_ms).SerializeToString()
    found = read_envelope(properties)
    assert [(each.queue, each.reason, each.count, each.at_ms) for each in found.deaths] == [
        ("a", "expired", 2, 1),
        ("a", "maxlen", 1, 3),
        ("b", "rejected", 1, 2),
    ]
    assert found.deaths[0].original_expiration_ms == 0
    first = common.Properties.FromString(properties).first_death
    assert (first.reason, first.queue, first.exchange) == ("expired", "a", "x")


@pytest.mark.parametrize(
    ("history", "now", "excluded"),
    [
        ([], ("expired", "q"), {"q"}),
        ([], ("rejected", "q"), set()),
        ([("expired", "a")], ("expired", "q"), {"a", "q"}),
        ([("expired", "a")], ("rejected", "q"), set()),
        # Somebody has rejected it in between: behind that nothing is a cycle.
        ([("rejected", "b"), ("expired", "a")], ("expired", "q"), {"q"}),
        ([("maxlen", "c"), ("rejected", "b"), ("expired", "a")], ("expired", "q"), {"q", "c"}),
    ],
)
def test_a_cycle_without_a_rejection_is_found(
    history: list[tuple[str, str]], now: tuple[str, str], excluded: set[str]
) -> None:
    """dead_lettering: dead_letter_routing_key_cycle_max_length, _ttl, _with_reject."""
    deaths = [common.Death(reason=reason, queue=queue, count=1) for reason, queue in history]
    properties = common.Properties(deaths=deaths).SerializeToString()
    reason, queue = now
    found = dead_envelope(properties, DeathReason(reason), queue, at_ms=1, bytes_max=LARGE)
    assert found.except_queues == excluded


def test_a_history_is_cut_at_its_oldest_end() -> None:
    properties = common.Properties(message_id="x" * 100).SerializeToString()
    for number in range(50):
        properties = died(
            properties, DeathReason.REJECTED, f"queue-{number}", bytes_max=600
        ).SerializeToString()
        assert len(properties) <= 600
    found = read_envelope(properties)
    queues = [each.queue for each in found.deaths]
    assert queues == [f"queue-{number}" for number in range(49, 49 - len(queues), -1)]
    assert 5 < len(queues) < 50
    assert common.Properties.FromString(properties).first_death.queue == "queue-0"
    # A target would refuse for good what is larger than it may be.
    full = died(properties, DeathReason.EXPIRED, "q", bytes_max=0)
    assert (full.message_id, [*full.deaths]) == ("x" * 100, [])


WIRE_FIELDS: st.SearchStrategy[common.FieldValue] = st.recursive(
    st.one_of(
        st.builds(common.FieldValue),
        st.builds(common.FieldValue, text=TEXTS),
        st.builds(common.FieldValue, integer=st.integers(-(2**63), 2**63 - 1)),
        st.builds(common.FieldValue, boolean=st.booleans()),
        st.builds(common.FieldValue, number=st.floats()),
        st.builds(common.FieldValue, data=st.binary(max_size=3)),
        st.builds(common.FieldValue, timestamp_s=st.integers(0, 2**64 - 1)),
        st.builds(
            common.FieldValue,
            other=st.builds(common.OtherField, type=TEXTS, data=st.binary(max_size=3)),
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(
            lambda values: common.FieldValue(array=common.FieldArray(values=values))
        ),
        st.dictionaries(TEXTS, inner, max_size=3).map(
            lambda fields: common.FieldValue(table=common.FieldTable(fields=fields))
        ),
    ),
    max_leaves=4,
)
PROPERTIES = st.builds(
    common.Properties,
    message_id=TEXTS,
    timestamp_ms=st.integers(0, 2**64 - 1),
    headers=st.dictionaries(TEXTS, WIRE_FIELDS, max_size=3),
    exchange=TEXTS,
    routing_key=TEXTS,
    cc=st.lists(TEXTS, max_size=2),
    expiration_ms=st.none() | st.integers(0, 2**64 - 1),
    deaths=st.lists(
        st.builds(
            common.Death,
            reason=TEXTS,
            queue=TEXTS,
            exchange=TEXTS,
            routing_keys=st.lists(TEXTS, max_size=2),
            count=st.integers(0, 2**64 - 1),
            time_ms=st.integers(0, 2**64 - 1),
            original_expiration_ms=st.none() | st.integers(0, 2**64 - 1),
        ),
        max_size=3,
    ),
)


@given(PROPERTIES, st.integers(21, 1000), st.binary(max_size=5))
def test_the_bytes_are_those_of_protobuf(
    properties: common.Properties, unknown: int, value: bytes
) -> None:
    # A field that nobody knows yet is kept.
    unknown_field = bytes((unknown << 3 & 0x7F | 0x82, unknown >> 4, len(value))) + value
    data = properties.SerializeToString() + unknown_field
    found = read_envelope(data)
    keys = [properties.routing_key] if properties.routing_key else []
    assert (found.exchange, [*found.routing_keys]) == (properties.exchange, [*keys, *properties.cc])
    assert dict(found.headers) == fields_from_wire(properties.headers)
    has_expiration = properties.HasField("expiration_ms")
    assert found.expiration_ms == (properties.expiration_ms if has_expiration else None)
    assert [each.queue for each in found.deaths] == [each.queue for each in properties.deaths]
    after = died(data, DeathReason.REJECTED, "\0 no queue has this name")
    assert after.deaths[0].count == 1
    assert [*after.deaths[1:]] == [*properties.deaths]
    assert after.message_id == properties.message_id
    assert after.timestamp_ms == properties.timestamp_ms
    assert after.headers == properties.headers
    assert unknown_field in after.SerializeToString()


@given(WIRE_FIELDS)
def test_a_value_is_the_same_on_the_wire_in_records_and_in_properties(
    wire: common.FieldValue,
) -> None:
    field = field_from_wire(wire)
    assert decode_field(wire.SerializeToString()) == field
    assert field_from_wire(field_to_wire(field)) == field
    assert field_of_json(json.loads(json.dumps(field_to_json(field)))) == field


def test_values_that_nest_without_end_are_refused() -> None:
    data = common.FieldValue(text="x").SerializeToString()
    for _ in range(2000):
        values = b"\x0a" + varint(len(data)) + data
        data = b"\x3a" + varint(len(values)) + values
    with pytest.raises(EnvelopeError):
        decode_field(data)


@given(st.binary(max_size=60))
@example(b"\xc5\x80\x80\x80\x10\x00\x00\x00\x00")  # A key of 33 bits.
@example(b"\xd0\x80\x80\x80\x80\x00\x01")  # One of six bytes.
@example(b"\x48" + b"\xff" * 9 + b"\x02")  # A number of 65 bits.
def test_garbage_dies_with_a_history_and_is_kept(data: bytes) -> None:
    after = died(data, DeathReason.EXPIRED, "q")
    assert after.deaths[0].reason == "expired"
    try:
        read_envelope(data)
    except EnvelopeError:
        assert (after.format, after.foreign) == ("unreadable", data)
        # And when it dies again.
        again = died(after.SerializeToString(), DeathReason.MAXLEN, "r")
        assert (again.format, again.foreign) == ("unreadable", data)
        assert [each.queue for each in again.deaths] == ["r", "q"]


# --- another protocol's properties ---


class JsonProperties:
    """A format whose properties are JSON: `{"headers": {...}, "expiration": ...}`."""

    def headers(self, foreign: bytes) -> dict[str, FieldValue]:
        try:
            found = json.loads(foreign).get("headers", {})
        except ValueError as error:
            raise EnvelopeError(str(error)) from error
        return {name: field_of_json(value) for name, value in found.items()}

    def reborn(self, foreign: bytes, history: Mapping[str, FieldValue]) -> bytes:
        found = json.loads(foreign)
        found.pop("expiration", None)
        headers = {name: field_to_json(value) for name, value in history.items()}
        return json.dumps(found | {"headers": found.get("headers", {}) | headers}).encode()


CODECS = {"json": JsonProperties()}


def json_properties(**said: object) -> bytes:
    data = json.dumps(said).encode()
    return foreign_properties("json") + varint(len(data)) + data


def test_a_door_keeps_its_bytes_and_the_history_is_in_its_own_headers() -> None:
    headers = {"region": field_to_json(text("eu"))}
    before = json_properties(headers=headers, expiration="500", app="a")
    wire = common.Properties.FromString(before)
    assert (wire.format, json.loads(wire.foreign)["app"]) == ("json", "a")
    # As the broker appends it.
    stamp = common.Properties(exchange="orders", routing_key="k", expiration_ms=500)
    before += stamp.SerializeToString()
    found = dead_envelope(
        before, DeathReason.EXPIRED, "work", at_ms=7999, bytes_max=LARGE, codecs=CODECS
    )
    assert dict(found.headers) == {"region": text("eu")}
    assert (found.routing_keys, [*found.except_queues]) == (("k",), ["work"])
    after = common.Properties.FromString(found.properties)
    assert (after.format, [*after.deaths], after.exchange) == ("json", [], "")
    said = json.loads(after.foreign)
    assert (said["app"], "expiration" in said) == ("a", False)
    shown = CODECS["json"].headers(after.foreign)
    [death] = values_of(shown["x-death"])
    assert table_of(death)["original-expiration"] == text("500")
    assert shown["x-first-death-exchange"] == text("orders")


def test_a_copy_that_a_client_publishes_again_goes_on_with_its_history() -> None:
    properties = json_properties()
    for at_ms in (1000, 2000):
        found = dead_envelope(
            properties, DeathReason.REJECTED, "q", at_ms=at_ms, bytes_max=LARGE, codecs=CODECS
        )
        wire = common.Properties.FromString(found.properties)
        # A client takes the headers that it has got, and makes a message of them.
        properties = json_properties(**json.loads(wire.foreign))
    [death] = values_of(CODECS["json"].headers(wire.foreign)["x-death"])
    assert (table_of(death)["count"], table_of(death)["time"].value) == (integer(2), 1)


@pytest.mark.parametrize("bad", [fields_of({"x-death": "?"}), fields_of({"x-death": [1, "2"]})])
def test_an_x_death_of_another_shape_is_replaced(bad: Mapping[str, FieldValue]) -> None:
    assert history_of(bad) == ((), None)


@pytest.mark.parametrize("codecs", [{}, CODECS])
def test_without_a_codec_or_with_bytes_that_it_refuses_nothing_is_lost(
    codecs: dict[str, JsonProperties],
) -> None:
    before = foreign_properties("json") + b"\x01{"
    found = dead_envelope(before, DeathReason.EXPIRED, "q", at_ms=7, bytes_max=LARGE, codecs=codecs)
    after = common.Properties.FromString(found.properties)
    assert (after.format, after.foreign) == ("json", b"{")
    assert [each.queue for each in after.deaths] == ["q"]


def test_a_history_in_foreign_properties_is_cut_at_its_oldest_end() -> None:
    properties = json_properties()
    for number in range(30):
        properties = dead_envelope(
            *(properties, DeathReason.REJECTED, f"queue-{number}"),
            at_ms=7,
            bytes_max=2000,
            codecs=CODECS,
        ).properties
        assert len(properties) <= 2000
    headers = CODECS["json"].headers(common.Properties.FromString(properties).foreign)
    deaths, first = history_of(headers)
    queues = [each.queue for each in deaths]
    assert queues == [f"queue-{number}" for number in range(29, 29 - len(queues), -1)]
    assert 2 < len(queues) < 30
    assert first == FirstDeath("rejected", "queue-0", "")


def test_the_headers_of_a_history_are_those_of_rabbitmq() -> None:
    """RabbitMQ 3.13: names, types, order, times in seconds, counts of 64 bits."""
    first = Death("expired", "work", 1, 1_700_000_000_999, "orders", ("eu.new", "cc"), 500)
    second = Death("rejected", "late", 3, 1_700_000_001_000, "", ("late",))
    headers = history_headers([second, first], FirstDeath.of(first))
    assert {name: field_to_json(value) for name, value in headers.items()} == {
        "x-death": [
            "array",
            [
                [
                    "table",
                    [
                        ["count", ["integer", 3]],
                        ["reason", ["text", "rejected"]],
                        ["queue", ["text", "late"]],
                        ["time", ["timestamp", 1_700_000_001]],
                        ["exchange", ["text", ""]],
                        ["routing-keys", ["array", [["text", "late"]]]],
                    ],
                ],
                [
                    "table",
                    [
                        ["count", ["integer", 1]],
                        ["reason", ["text", "expired"]],
                        ["queue", ["text", "work"]],
                        ["time", ["timestamp", 1_700_000_000]],
                        ["exchange", ["text", "orders"]],
                        ["routing-keys", ["array", [["text", "eu.new"], ["text", "cc"]]]],
                        ["original-expiration", ["text", "500"]],
                    ],
                ],
            ],
        ],
        "x-first-death-reason": ["text", "expired"],
        "x-first-death-queue": ["text", "work"],
        "x-first-death-exchange": ["text", "orders"],
        "x-last-death-reason": ["text", "rejected"],
        "x-last-death-queue": ["text", "late"],
        "x-last-death-exchange": ["text", ""],
    }
    seconds = [replace(each, at_ms=each.at_ms // 1000 * 1000) for each in (second, first)]
    assert history_of(headers) == (tuple(seconds), FirstDeath.of(first))


def test_histories_are_pure() -> None:
    one = Death("expired", "q", 1, 5, "", ("k",))
    again = with_death([one], Death("expired", "q", 1, 9, "other", ("l",), 3))
    assert again == (Death("expired", "q", 2, 5, "", ("k",)),)
    assert queues_in_a_cycle(again) == {"q"}
