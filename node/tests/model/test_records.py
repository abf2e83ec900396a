"""The names that a queue may have, and its record in the registry."""

from __future__ import annotations

import json

import pytest

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import (
    MasterLocator,
    QueueMode,
    QueueRecord,
    check_queue_name,
    queue_key,
)
from ringmq_node.model.rules import QueueRules


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


@pytest.mark.parametrize("durable", [True, False])
def test_queue_record_is_read_as_written(durable: bool) -> None:
    record = QueueRecord(
        "a/ä",
        "0123",
        ("n1", "n2"),
        2,
        QueueMode.LAZY,
        durable,
        replicas=3,
        master_locator=MasterLocator.CLIENT_LOCAL,
        leaving=("n2",),
        rules=QueueRules(message_ttl_ms=0, dead_letter_exchange=""),
        auto_delete=True,
        owner="n1.7",
    )
    assert QueueRecord.decode(record.encode()) == record
    assert QueueRecord.decode(QueueRecord("q", "1", ("n1",), 0).encode()).master_locator is None
    assert json.loads(record.encode())["nodes"] == ["n1", "n2"]
