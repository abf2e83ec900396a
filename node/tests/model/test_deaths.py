"""The history of a dead letter, and its bytes beside protobuf's."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq.v1 import common_pb2 as common
from ringmq_node.model.deaths import Death, DeathReason, queues_in_a_cycle, with_death
from ringmq_node.model.envelope import EnvelopeError, dead_envelope, read_envelope

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
        headers={"a": "1"},
        exchange="orders",
        routing_key="eu.new",
        expiration_ms=500,
    )
    after = died(before.SerializeToString(), DeathReason.EXPIRED, "work", at_ms=1234)
    assert (after.message_id, dict(after.headers)) == ("m", {"a": "1"})
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


PROPERTIES = st.builds(
    common.Properties,
    message_id=TEXTS,
    timestamp_ms=st.integers(0, 2**64 - 1),
    headers=st.dictionaries(TEXTS, TEXTS, max_size=3),
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


@given(PROPERTIES, st.integers(16, 1000), st.binary(max_size=5))
def test_the_bytes_are_those_of_protobuf(
    properties: common.Properties, unknown: int, value: bytes
) -> None:
    # A field that nobody knows yet is kept.
    foreign = bytes((unknown << 3 & 0x7F | 0x82, unknown >> 4, len(value))) + value
    data = properties.SerializeToString() + foreign
    found = read_envelope(data)
    keys = [properties.routing_key] if properties.routing_key else []
    assert (found.exchange, [*found.routing_keys]) == (properties.exchange, [*keys, *properties.cc])
    assert dict(found.headers) == dict(properties.headers)
    has_expiration = properties.HasField("expiration_ms")
    assert found.expiration_ms == (properties.expiration_ms if has_expiration else None)
    assert [each.queue for each in found.deaths] == [each.queue for each in properties.deaths]
    after = died(data, DeathReason.REJECTED, "\0 no queue has this name")
    assert after.deaths[0].count == 1
    assert [*after.deaths[1:]] == [*properties.deaths]
    assert after.message_id == properties.message_id
    assert after.timestamp_ms == properties.timestamp_ms
    assert after.headers == properties.headers
    assert foreign in after.SerializeToString()


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read_and_a_letter_of_it_stays_a_letter(data: bytes) -> None:
    with suppress(EnvelopeError):
        read_envelope(data)
    found = dead_envelope(data, DeathReason.EXPIRED, "q", at_ms=1, bytes_max=LARGE)
    assert isinstance(found.properties, bytes)


def test_histories_are_pure() -> None:
    one = Death("expired", "q", 1, 5, "", ("k",))
    again = with_death([one], Death("expired", "q", 1, 9, "other", ("l",), 3))
    assert again == (Death("expired", "q", 2, 5, "", ("k",)),)
    assert queues_in_a_cycle(again) == {"q"}
