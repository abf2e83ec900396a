"""A vhost and a name in one string, and back."""

from __future__ import annotations

import logging

import pytest

from ringmq_node.cli.node import ShownNames
from ringmq_node.model.names import (
    check_name,
    check_vhost,
    in_vhost,
    join_name,
    shown,
    shown_text,
    split_name,
)
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import queue_key
from ringmq_node.model.topology import exchange_key


@pytest.mark.parametrize(
    ("vhost", "name", "internal", "in_logs"),
    [
        ("/", "q", "q", "q"),
        ("", "q", "q", "q"),
        ("shop", "q", "shop\x1fq", "q (vhost shop)"),
        ("shop", "", "shop\x1f", " (vhost shop)"),
        ("/", "", "", ""),
    ],
)
def test_vhost_and_name_are_one_string(vhost: str, name: str, internal: str, in_logs: str) -> None:
    assert join_name(vhost, name) == internal
    assert split_name(internal) == (vhost or "/", name)
    assert shown(internal) == in_logs
    assert in_vhost(internal, vhost)
    assert not in_vhost(internal, "another")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queue 'q' has no master", "queue 'q' has no master"),
        (f"queue {join_name('shop', 'q')!r} is away", "queue 'q' (vhost 'shop') is away"),
        (f"queue '{join_name('shop', 'q')}' is away", "queue 'q' (vhost 'shop') is away"),
        (f"queue {join_name('shop', 'q')}: away", "queue q (vhost shop): away"),
    ],
)
def test_messages_show_the_vhost_in_words(text: str, told: str) -> None:
    assert shown_text(text) == told


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x1fb", "\x00"])
def test_names_that_reach_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(BrokerError) as caught:
        check_name(name, "an exchange", field="exchange")
    assert caught.value.metadata == {"field": "exchange"}
    with pytest.raises(BrokerError) as caught:
        check_vhost(name)
    assert caught.value.metadata == {"field": "vhost"}


def test_the_longest_names_fit_into_a_key() -> None:
    longest = join_name("ä" * 40, "ä" * 127)
    assert max(len(queue_key(longest)), len(exchange_key(longest))) <= 1024


def test_log_lines_show_the_vhost_in_words() -> None:
    name = join_name("shop", "orders")
    record = logging.makeLogRecord({"msg": "queue %s: deleted", "args": (name,)})
    assert ShownNames("%(message)s").format(record) == "queue orders (vhost shop): deleted"
