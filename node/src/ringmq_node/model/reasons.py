"""What a node says no with.

BrokerError      to a client: a reason from the wire's list, and what to do
StartError       to whoever starts a node: one line
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import (  # type: ignore[import-untyped]
    code_pb2,
    error_details_pb2,
    status_pb2,
)

from ringmq.v1 import common_pb2 as common

DOMAIN = "ringmq"
STATUS_DETAILS_KEY = "grpc-status-details-bin"

Code = grpc.StatusCode

# The one place that says which gRPC status a reason has.
CODES: dict[common.Reason.ValueType, grpc.StatusCode] = {
    common.REASON_QUEUE_NOT_FOUND: Code.NOT_FOUND,
    common.REASON_QUEUE_EXISTS: Code.FAILED_PRECONDITION,
    common.REASON_BAD_REQUEST: Code.INVALID_ARGUMENT,
    common.REASON_MESSAGE_TOO_LARGE: Code.INVALID_ARGUMENT,
    common.REASON_UNKNOWN_DELIVERY: Code.FAILED_PRECONDITION,
    common.REASON_SEQUENCE_GAP: Code.FAILED_PRECONDITION,
    common.REASON_UNKNOWN_PRODUCER: Code.FAILED_PRECONDITION,
    common.REASON_NOT_SYNCHRONISED: Code.FAILED_PRECONDITION,
    common.REASON_QUEUE_NOT_EMPTY: Code.FAILED_PRECONDITION,
    common.REASON_QUEUE_IN_USE: Code.FAILED_PRECONDITION,
    common.REASON_NOT_A_MEMBER: Code.FAILED_PRECONDITION,
    common.REASON_PRODUCER_FENCED: Code.FAILED_PRECONDITION,
    common.REASON_NO_MASTER: Code.UNAVAILABLE,
    common.REASON_NOT_MASTER: Code.UNAVAILABLE,
    common.REASON_TOO_FEW_SYNCHRONISED: Code.UNAVAILABLE,
    common.REASON_OUTCOME_UNKNOWN: Code.ABORTED,
    common.REASON_DRAINING: Code.UNAVAILABLE,
    common.REASON_REGISTRY_UNAVAILABLE: Code.UNAVAILABLE,
    common.REASON_TIMEOUT: Code.DEADLINE_EXCEEDED,
    common.REASON_REPAIRING: Code.UNAVAILABLE,
    common.REASON_DISK_FULL: Code.RESOURCE_EXHAUSTED,
    common.REASON_STORE_FAILED: Code.INTERNAL,
    common.REASON_LIMIT_EXCEEDED: Code.RESOURCE_EXHAUSTED,
    common.REASON_INTERNAL: Code.INTERNAL,
}

# The same call may be sent again, after this many milliseconds.
RETRY_AFTER_MS: dict[common.Reason.ValueType, int] = {
    common.REASON_NO_MASTER: 100,
    common.REASON_NOT_MASTER: 10,
    common.REASON_TOO_FEW_SYNCHRONISED: 250,
    common.REASON_OUTCOME_UNKNOWN: 50,
    common.REASON_DRAINING: 50,
    common.REASON_REGISTRY_UNAVAILABLE: 500,
    common.REASON_SEQUENCE_GAP: 0,
    common.REASON_REPAIRING: 500,
}


class StartError(Exception):
    """A node can't start; the message says why, in one line."""


class BrokerError(Exception):
    """A refusal, as a client gets it."""

    def __init__(
        self,
        reason: common.Reason.ValueType,
        message: str,
        **metadata: object,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata: Mapping[str, str] = {key: str(value) for key, value in metadata.items()}

    @property
    def code(self) -> grpc.StatusCode:
        return CODES[self.reason]

    @property
    def retryable(self) -> bool:
        return self.reason in RETRY_AFTER_MS

    @property
    def retry_after_ms(self) -> int:
        return RETRY_AFTER_MS.get(self.reason, 0)

    def status_details(self) -> bytes:
        """A serialized `google.rpc.Status` with ErrorInfo and, where it helps, RetryInfo."""
        name = common.Reason.Name(self.reason).removeprefix("REASON_")
        details = [
            _pack(
                error_details_pb2.ErrorInfo(
                    reason=name, domain=DOMAIN, metadata=dict(self.metadata)
                )
            )
        ]
        if self.retryable:
            delay = Duration()
            delay.FromMilliseconds(self.retry_after_ms)
            details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
        number = code_pb2.Code.Value(self.code.name)
        status = status_pb2.Status(code=number, message=self.message, details=details)
        data: bytes = status.SerializeToString()
        return data


def _pack(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed
