"""The options of the source: what they mean, and the refusal of each that can't be used."""

from __future__ import annotations

from typing import Any

import pytest

from ringmq_pipeline import sink_options
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.options import (
    KNOWN,
    AckMode,
    PayloadEncoding,
    ReadFrom,
    StartingOffsets,
    parse,
)

NEEDED = {"endpoints": "a:7801,b:7802", "queue": "orders"}


def test_the_defaults() -> None:
    options = parse(NEEDED)
    assert options.endpoints == ("a:7801", "b:7802")
    assert options.queues == ("orders",)
    assert options.starting_offsets is StartingOffsets.EARLIEST
    assert options.ending_offsets is StartingOffsets.LATEST
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger) == (50_000, 64 << 20)
    assert options.fail_on_data_loss
    assert options.body_bytes_max is None
    assert options.ack_mode is AckMode.COMMITTED
    assert options.lease_ttl_s == 30.0


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("maxBytesPerTrigger", "512k", "max_bytes_per_trigger", 512 << 10),
        ("maxBytesPerTrigger", "1 GiB", "max_bytes_per_trigger", 1 << 30),
        ("MAXMESSAGESPERTRIGGER", "7", "max_messages_per_trigger", 7),
        ("payload", "none", "body_bytes_max", 0),
        ("payload", "head:16", "body_bytes_max", 16),
        ("payload", "full", "body_bytes_max", None),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("startingOffsets", "latest", "starting_offsets", StartingOffsets.LATEST),
        ("startingOffsets", '{"orders": 12}', "starting_offsets", {"orders": 12}),
        ("endingOffsets", '{"orders": 12}', "ending_offsets", {"orders": 12}),
        ("leaseTtl", "500ms", "lease_ttl_s", 0.5),
        ("requestTimeout", "2m", "request_timeout_s", 120.0),
        ("readFrom", "mirror", "read_from", ReadFrom.MIRROR),
        ("encoding", "ARROW", "encoding", PayloadEncoding.ARROW),
        ("includeHeaders", "true", "include_headers", True),
        ("includeProperties", "true", "include_properties", True),
        ("path", "anything", "include_headers", False),
    ],
)
def test_a_value_is_read(name: str, value: str, field: str, expected: Any) -> None:
    assert getattr(parse(NEEDED | {name: value}), field) == expected


@pytest.mark.parametrize(
    ("changes", "option", "why"),
    [
        ({"endpoints": ""}, "endpoints", "at least one node"),
        ({"endpoints": "a"}, "endpoints", "'a' is not host:port"),
        ({"queues": "a,b"}, "queues", "one of 'queue', 'queues'"),
        ({"queue": " "}, "queue", "empty"),
        ({"failOnDataLos": "true"}, "failOnDataLos", "did you mean 'failOnDataLoss'"),
        ({"subscribe": "t"}, "subscribe", "no such option"),
        ({"startingTimestamp": "1"}, "startingTimestamp", "no position by time"),
        ({"startingoffsetsbytimestamp": "{}"}, "startingoffsetsbytimestamp", "by published_at"),
        (
            {"minOffsetsPerTrigger": "11", "maxMessagesPerTrigger": "10"},
            "minOffsetsPerTrigger",
            "11 is above maxMessagesPerTrigger, 10",
        ),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss", "neither true nor false"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger", "1 or more"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger", "not a size"),
        ({"maxBytesPerTrigger": "64x"}, "maxBytesPerTrigger", "not a size"),
        ({"payload": "head"}, "payload", "none of 'full'"),
        ({"payload": "head:0"}, "payload", "1 or more"),
        ({"leaseTtl": "soon"}, "leaseTtl", "not a duration"),
        ({"leaseTtl": "0s"}, "leaseTtl", "not a duration"),
        ({"ackMode": "always"}, "ackMode", "none of 'committed', 'never'"),
        ({"startingOffsets": "first"}, "startingOffsets", "none of 'earliest'"),
        ({"startingOffsets": "{"}, "startingOffsets", "no JSON"),
        ({"startingOffsets": '{"q": -1}'}, "startingOffsets", "not a position"),
        ({"startingOffsets": '{"q": true}'}, "startingOffsets", "not a position"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "doesn't end"),
        ({"startingOffsets": '{"ordres": 5}'}, "startingOffsets", "'ordres' isn't read"),
        ({"endingOffsets": '{"ordres": 5}'}, "endingOffsets", "'ordres' isn't read"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    changes: dict[str, str], option: str, why: str
) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        parse(NEEDED | changes)
    assert refused.value.option == option


def test_queues_by_list_and_by_pattern() -> None:
    nodes = {"endpoints": "a:1"}
    assert parse(nodes | {"queues": "a, b,a"}).queues == ("a", "b")
    assert parse(nodes | {"queuePattern": "orders.*"}).queue_pattern == "orders.*"
    with pytest.raises(OptionError, match="no regular expression"):
        parse(nodes | {"queuePattern": "("})
    with pytest.raises(OptionError, match="one of"):
        parse(nodes)
    with pytest.raises(OptionError, match="names no queue"):
        parse(nodes | {"queues": " , "})


def test_a_queues_name_keeps_its_spaces() -> None:
    """Without them, it is another queue's."""
    nodes = {"endpoints": "a:1"}
    assert parse(nodes | {"queue": " trail "}).queues == (" trail ",)
    assert parse(nodes | {"queuePattern": "trail "}).queue_pattern == "trail "
    assert sink_options.parse(nodes | {"queue": "trail "}).queue == "trail "
    with pytest.raises(OptionError, match="empty"):
        sink_options.parse(nodes | {"queue": " "})


def test_no_two_options_differ_by_case_alone() -> None:
    assert len({name.lower() for name in KNOWN}) == len(KNOWN)
