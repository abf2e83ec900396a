"""The names that a queue may have, and its record in the registry."""

from __future__ import annotations

import json

import pytest

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode, QueueRecord, check_queue_name, queue_key


@pytest.mark.parametrize("name", ["q", "ä" * 127, "a b/c:%?#", "x" * 255])
def test_queue_names_that_are_allowed(name: str) -> None:
    check_queue_name(name)
    key = queue_key(name)
    assert key.startswith("queues/")
    assert key.count("/") == 1
    assert key.isascii()


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "a\nb", "\x00"])
def test_queue_names_that_are_refused(name: str) -> None:
    with pytest.raises(BrokerError) as caught:
        check_queue_name(name)
    assert caught.value.reason is Reason.BAD_REQUEST
    assert caught.value.metadata == {"field": "queue"}
    assert not caught.value.retryable


def test_queue_record_is_read_as_written() -> None:
    for durable in (True, False):
        record = QueueRecord("a/ä", "0123", ("n1", "n2"), 2, QueueMode.LAZY, durable)
        assert QueueRecord.decode(record.encode()) == record
    assert json.loads(record.encode())["nodes"] == ["n1", "n2"]


def test_old_queue_record_is_of_a_default_durable_queue() -> None:
    record = QueueRecord.decode(b'{"name":"q","id":"0123","nodes":["n1"],"min_insync":1}')
    assert record.mode is QueueMode.DEFAULT
    assert record.durable
