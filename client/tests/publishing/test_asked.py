"""The options of a publish: refused by name before anything is sent."""

from __future__ import annotations

import pytest

import ringmq
from ringmq.publishing.asked import MessageOptions, attributes_of
from ringmq.publishing.tickets import PERSISTENT, Attributes

WRONG: list[tuple[MessageOptions, str]] = [
    ({"ttl_ms": -1}, "ttl_ms"),
    ({"ttl_ms": 2**63}, "ttl_ms"),
    ({"priority": 256}, "priority"),
    ({"routing_key": "ü" * 128}, "routing_key"),
    ({"cc": ["k" * 256]}, "routing_key"),
    # Its characters would be the keys.
    ({"cc": "key"}, "cc"),
    ({"bcc": "key"}, "bcc"),
]
OF_EXCHANGES: list[tuple[MessageOptions, str]] = [
    ({"routing_key": "k"}, "routing_key"),
    ({"mandatory": True}, "mandatory"),
    ({"exchange": "e"}, "exchange"),
    ({"cc": ["k"]}, "cc"),
    ({"bcc": ["k"]}, "bcc"),
]


@pytest.mark.parametrize(("options", "field"), WRONG, ids=str)
def test_options_that_no_message_can_have(options: MessageOptions, field: str) -> None:
    with pytest.raises(ringmq.BadRequestError) as caught:
        attributes_of(options, is_routed=True)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(("options", "field"), OF_EXCHANGES, ids=str)
def test_options_of_exchanges_alone(options: MessageOptions, field: str) -> None:
    assert attributes_of(options, is_routed=True) != PERSISTENT
    with pytest.raises(ringmq.BadRequestError, match="for exchanges") as caught:
        attributes_of(options, is_routed=False)
    assert caught.value.metadata["field"] == field


def test_no_options_are_a_persistent_message_and_keys_are_the_callers_no_more() -> None:
    assert attributes_of({}, is_routed=False) is PERSISTENT
    keys = ["a"]
    asked = attributes_of({"cc": keys, "transient": True}, is_routed=True)
    keys.append("b")
    assert asked == Attributes(transient=True, cc=("a",))
