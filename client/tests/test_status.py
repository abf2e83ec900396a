"""Every failure that the wire can say has its exception."""

from __future__ import annotations

import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

import ringmq
from ringmq import errors
from ringmq.calls import status
from ringmq.calls.retrying import NotConnectedError, is_refused
from ringmq.v1 import common_pb2 as common
from ringmq_wire import Code, RpcError, RpcStatus


def failure(code: Code, details: bytes | None = None) -> RpcError:
    return RpcError(RpcStatus(code, "it says", details or b""))


def test_every_reason_is_in_the_table() -> None:
    assert set(status.BY_REASON) == set(common.Reason.values()) - {common.REASON_UNSPECIFIED}
    for reason, kind in status.BY_REASON.items():
        error = status.from_reason(reason, retry_after_s=2)
        assert type(error) is kind
        assert (error.reason, error.retry_after_s) == (status.reason_name(reason), 2)


def test_the_tree_is_the_one_printed_at_the_top() -> None:
    printed = [
        line.split("── ")[-1].split()[0]
        for line in (errors.__doc__ or "").splitlines()
        if "── " in line
    ]
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ringmq.RingMQError)
    }
    assert {*printed, "RingMQError"} == kinds
    assert kinds <= set(ringmq.__all__)


def test_details_win_over_the_code() -> None:
    rich = status_pb2.Status(code=9, message="it says")
    info = error_details_pb2.ErrorInfo(
        reason="MESSAGE_TOO_LARGE",
        domain="ringmq",
        metadata={"limit_bytes": "10", "size_bytes": "11"},
    )
    hint = error_details_pb2.RetryInfo()
    hint.retry_delay.FromMilliseconds(1500)
    for detail in (info, hint):
        rich.details.add().Pack(detail)
    error = status.from_call(failure(Code.UNKNOWN, rich.SerializeToString()), "a:1")
    assert isinstance(error, ringmq.MessageTooLargeError)
    assert (error.limit_bytes, error.size_bytes, error.retry_after_s) == (10, 11, 1.5)
    assert isinstance(error.copy(), ringmq.MessageTooLargeError)
    assert error.copy().metadata == error.metadata


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.UNAVAILABLE, ringmq.UnavailableError),
        (Code.DEADLINE_EXCEEDED, ringmq.TimedOutError),
        (Code.UNIMPLEMENTED, ringmq.NotRingMQError),
        (Code.UNKNOWN, ringmq.ProtocolError),
    ],
)
def test_without_details_the_code_has_to_do(code: Code, kind: type[ringmq.RingMQError]) -> None:
    for details in (None, b"\xff garbage"):
        error = status.from_call(failure(code, details), "a:1")
        assert type(error) is kind
        assert "a:1" in str(error)
        assert error.reason == ""


def test_a_reason_or_domain_that_is_new_to_us_falls_back_on_the_code() -> None:
    for reason, domain in (("BRAND_NEW", "ringmq"), ("NO_MASTER", "other")):
        rich = status_pb2.Status(code=14)
        rich.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
        error = status.from_call(failure(Code.UNAVAILABLE, rich.SerializeToString()), "a:1")
        assert type(error) is ringmq.UnavailableError
        assert error.reason == ("BRAND_NEW" if domain == "ringmq" else "")


def test_a_call_that_surely_was_not_seen_may_be_made_again() -> None:
    for code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
        error = status.from_call(RpcError(RpcStatus(code, "away", unprocessed=True)), "a:1")
        assert type(error) is NotConnectedError
        assert is_refused(error)
    assert not is_refused(status.from_call(failure(Code.UNAVAILABLE), "a:1"))
