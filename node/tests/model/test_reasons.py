"""What a client gets when a node says no, and the names that a queue may have."""

from __future__ import annotations

import json

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from ringmq.v1 import common_pb2 as common
from ringmq_node.model.reasons import CODES, DOMAIN, RETRY_AFTER_MS, BrokerError
from ringmq_node.model.records import (
    QueueMode,
    QueueRecord,
    check_queue_name,
    mode_from_wire,
    mode_to_wire,
    queue_key,
)

REASONS = [reason for reason in common.Reason.values() if reason != common.REASON_UNSPECIFIED]


@pytest.mark.parametrize("reason", REASONS, ids=common.Reason.Name)
def test_every_reason_has_a_status_and_travels_whole(reason: common.Reason.ValueType) -> None:
    error = BrokerError(reason, "what happened", queue="q", size_bytes=5)
    assert error.code == CODES[reason]
    assert error.code not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)
    status = status_pb2.Status.FromString(error.status_details())
    assert (status.code, status.message) == (error.code.value[0], "what happened")
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert f"REASON_{info.reason}" == common.Reason.Name(reason)
    assert info.domain == DOMAIN
    assert dict(info.metadata) == {"queue": "q", "size_bytes": "5"}
    if error.retryable:
        retry = error_details_pb2.RetryInfo()
        assert status.details[1].Unpack(retry)
        delay: Duration = retry.retry_delay
        assert delay.ToMilliseconds() == error.retry_after_ms
    else:
        assert len(status.details) == 1


def test_whoever_may_try_again_is_told_when() -> None:
    """A status that clients and proxies repeat by themselves says so in its details, too."""
    assert set(RETRY_AFTER_MS) <= set(CODES)
    unavailable = {reason for reason, code in CODES.items() if code.name == "UNAVAILABLE"}
    assert unavailable <= set(RETRY_AFTER_MS)
    assert all(0 <= delay <= 1000 for delay in RETRY_AFTER_MS.values())


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
    assert caught.value.reason == common.REASON_BAD_REQUEST
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


def test_modes_on_the_wire() -> None:
    for mode in QueueMode:
        assert mode_from_wire(mode_to_wire(mode)) is mode
    assert mode_from_wire(common.QUEUE_MODE_UNSPECIFIED) is None
    with pytest.raises(BrokerError, match="no queue mode 3") as caught:
        mode_from_wire(common.QueueMode.ValueType(3))
    assert caught.value.reason == common.REASON_BAD_REQUEST
    assert caught.value.metadata == {"field": "mode"}
