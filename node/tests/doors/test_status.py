"""How a refusal travels over gRPC, and comes back from another node as it was."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc.status import (
    CODES,
    DOMAIN,
    from_call,
    reason_to_wire,
    status_details,
)
from ringmq_node.doors.grpc.wire import mode_from_wire, mode_to_wire
from ringmq_node.model.reasons import RETRY_AFTER_MS, BrokerError, Reason
from ringmq_node.model.records import QueueMode
from ringmq_wire import Code, RpcError, RpcStatus


def failed_call(error: BrokerError) -> RpcError:
    """The call that a node has refused with `error`."""
    return RpcError(RpcStatus(CODES[error.reason], error.message, status_details(error)))


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_status_and_travels_whole(reason: Reason) -> None:
    error = BrokerError(reason, "what happened", queue="q", size_bytes=5)
    assert CODES[reason] not in (Code.OK, Code.UNKNOWN)
    status = status_pb2.Status.FromString(status_details(error))
    assert (status.code, status.message) == (CODES[reason], "what happened")
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert f"REASON_{info.reason}" == common.Reason.Name(reason_to_wire(reason))
    assert info.domain == DOMAIN
    assert dict(info.metadata) == {"queue": "q", "size_bytes": "5"}
    if error.retryable:
        retry = error_details_pb2.RetryInfo()
        assert status.details[1].Unpack(retry)
        delay: Duration = retry.retry_delay
        assert delay.ToMilliseconds() == error.retry_after_ms
    else:
        assert len(status.details) == 1


def test_the_wire_has_the_same_reasons() -> None:
    names = {name.removeprefix("REASON_") for name in common.Reason.keys()}  # noqa: SIM118
    assert names == {"UNSPECIFIED", *Reason.__members__}


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_refusal_of_another_node_is_passed_on_as_it_was(reason: Reason, repeatable: bool) -> None:
    told = from_call(
        failed_call(BrokerError(reason, "what happened", queue="q")), repeatable=repeatable
    )
    assert (told.reason, told.message, told.metadata) == (reason, "what happened", {"queue": "q"})


@pytest.mark.parametrize(
    ("code", "repeatable", "reason"),
    [
        (Code.UNAVAILABLE, True, Reason.NO_MASTER),
        (Code.UNAVAILABLE, False, Reason.OUTCOME_UNKNOWN),
        (Code.DEADLINE_EXCEEDED, True, Reason.TIMEOUT),
        (Code.DEADLINE_EXCEEDED, False, Reason.TIMEOUT),
        (Code.UNIMPLEMENTED, True, Reason.INTERNAL),
    ],
)
def test_a_call_that_failed_on_its_way(code: Code, repeatable: bool, reason: Reason) -> None:
    for details in (b"", b"\xff garbage"):
        error = RpcError(RpcStatus(code, "socket closed", details))
        assert from_call(error, repeatable=repeatable).reason is reason
    # Not if it surely wasn't seen.
    unseen = RpcError(RpcStatus(code, "no connection", unprocessed=True))
    assert from_call(unseen, repeatable=repeatable).reason is Reason.NO_MASTER


def test_a_client_that_may_try_again_is_told_when() -> None:
    """A status that clients and proxies repeat by themselves says so in its details, too."""
    unavailable = {reason for reason, code in CODES.items() if code.name == "UNAVAILABLE"}
    assert unavailable <= set(RETRY_AFTER_MS)
    assert all(0 <= delay <= 1000 for delay in RETRY_AFTER_MS.values())


def test_modes_on_the_wire() -> None:
    for mode in QueueMode:
        assert mode_from_wire(mode_to_wire(mode)) is mode
    assert mode_from_wire(common.QUEUE_MODE_UNSPECIFIED) is None
    with pytest.raises(BrokerError, match="no queue mode 3") as caught:
        mode_from_wire(common.QueueMode.ValueType(3))
    assert caught.value.reason is Reason.BAD_REQUEST
    assert caught.value.metadata == {"field": "mode"}
