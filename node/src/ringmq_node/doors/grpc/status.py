"""`BrokerError` as a gRPC status with `google.rpc` details, and back.

The two tables are the only place that knows both the broker's reasons and gRPC's codes; a test
keeps them complete.
"""

from __future__ import annotations

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from ringmq.v1 import common_pb2 as common
from ringmq_node.model.names import SEPARATOR, shown_text, split_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import Code, RpcError

DOMAIN = "ringmq"

CODES: dict[Reason, Code] = {
    Reason.QUEUE_NOT_FOUND: Code.NOT_FOUND,
    Reason.QUEUE_EXISTS: Code.FAILED_PRECONDITION,
    Reason.BAD_REQUEST: Code.INVALID_ARGUMENT,
    Reason.MESSAGE_TOO_LARGE: Code.INVALID_ARGUMENT,
    Reason.UNKNOWN_DELIVERY: Code.FAILED_PRECONDITION,
    Reason.SEQUENCE_GAP: Code.FAILED_PRECONDITION,
    Reason.UNKNOWN_PRODUCER: Code.FAILED_PRECONDITION,
    Reason.NOT_SYNCHRONISED: Code.FAILED_PRECONDITION,
    Reason.QUEUE_NOT_EMPTY: Code.FAILED_PRECONDITION,
    Reason.QUEUE_IN_USE: Code.FAILED_PRECONDITION,
    Reason.NOT_A_MEMBER: Code.FAILED_PRECONDITION,
    Reason.PRODUCER_FENCED: Code.FAILED_PRECONDITION,
    Reason.MESSAGES_MAY_BE_LOST: Code.FAILED_PRECONDITION,
    Reason.POLICY_NOT_FOUND: Code.NOT_FOUND,
    Reason.FORBIDDEN_BY_POLICY: Code.FAILED_PRECONDITION,
    Reason.NODE_NOT_FOUND: Code.NOT_FOUND,
    Reason.NODE_IS_UP: Code.FAILED_PRECONDITION,
    Reason.EXCLUSIVE_CONSUMER: Code.FAILED_PRECONDITION,
    Reason.CONSUMER_REPLACED: Code.FAILED_PRECONDITION,
    Reason.CONSUMER_TIMEOUT: Code.FAILED_PRECONDITION,
    Reason.QUEUE_FULL: Code.RESOURCE_EXHAUSTED,
    Reason.UNROUTABLE: Code.FAILED_PRECONDITION,
    Reason.SEQUENCE_FORGOTTEN: Code.ABORTED,
    Reason.EXCHANGE_NOT_FOUND: Code.NOT_FOUND,
    Reason.EXCHANGE_EXISTS: Code.FAILED_PRECONDITION,
    Reason.EXCHANGE_IN_USE: Code.FAILED_PRECONDITION,
    Reason.VHOST_NOT_FOUND: Code.NOT_FOUND,
    Reason.VHOST_IN_USE: Code.FAILED_PRECONDITION,
    Reason.ACCESS_REFUSED: Code.PERMISSION_DENIED,
    Reason.POSITIONS_MOVED: Code.FAILED_PRECONDITION,
    Reason.POSITIONS_GONE: Code.OUT_OF_RANGE,
    Reason.POSITIONS_HELD: Code.FAILED_PRECONDITION,
    Reason.LEASE_HELD: Code.FAILED_PRECONDITION,
    Reason.LEASE_LOST: Code.FAILED_PRECONDITION,
    Reason.NOT_SUPPORTED: Code.UNIMPLEMENTED,
    Reason.POSITIONS_UNSAFE: Code.UNAVAILABLE,
    Reason.QUEUE_LOCKED: Code.FAILED_PRECONDITION,
    Reason.BUSY: Code.UNAVAILABLE,
    Reason.NO_MASTER: Code.UNAVAILABLE,
    Reason.QUARANTINED: Code.UNAVAILABLE,
    Reason.NOT_MASTER: Code.UNAVAILABLE,
    Reason.TOO_FEW_SYNCHRONISED: Code.UNAVAILABLE,
    Reason.OUTCOME_UNKNOWN: Code.ABORTED,
    Reason.DRAINING: Code.UNAVAILABLE,
    Reason.REGISTRY_UNAVAILABLE: Code.UNAVAILABLE,
    Reason.TIMEOUT: Code.DEADLINE_EXCEEDED,
    Reason.REPAIRING: Code.UNAVAILABLE,
    Reason.DISK_FULL: Code.RESOURCE_EXHAUSTED,
    Reason.STORE_FAILED: Code.INTERNAL,
    Reason.LIMIT_EXCEEDED: Code.RESOURCE_EXHAUSTED,
    Reason.INTERNAL: Code.INTERNAL,
}

_TO_WIRE: dict[Reason, common.Reason.ValueType] = {
    reason: common.Reason.Value(f"REASON_{reason.name}") for reason in Reason
}
_FROM_WIRE = {wire: reason for reason, wire in _TO_WIRE.items()}


def reason_to_wire(reason: Reason) -> common.Reason.ValueType:
    return _TO_WIRE[reason]


def reason_from_wire(reason: common.Reason.ValueType) -> Reason:
    """INTERNAL for one that a newer node knows alone."""
    return _FROM_WIRE.get(reason, Reason.INTERNAL)


# Characters of a text in an error. Its headers carry it twice, encoded, and most peers take 8 KiB.
QUOTED_MAX = 512
# Of a value in its details, which they carry once: the replicas of a queue that can't be promoted
# are one, in JSON.
DETAIL_MAX = 3000


def told(message: str) -> str:
    """A message for people: internal names as they know them, and not beyond `QUOTED_MAX`."""
    return _cut(shown_text(message), QUOTED_MAX)


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."


def status_details(error: BrokerError) -> bytes:
    """A serialized `google.rpc.Status` with ErrorInfo and, for a retryable error, RetryInfo."""
    metadata = {name: _cut(_shown(value), DETAIL_MAX) for name, value in error.metadata.items()}
    details = [
        _pack(
            error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN, metadata=metadata)
        )
    ]
    if error.retryable:
        delay = Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    status = status_pb2.Status(
        code=CODES[error.reason], message=told(error.message), details=details
    )
    data: bytes = status.SerializeToString()
    return data


def _shown(value: str) -> str:
    """A name as clients know it: without its vhost, which is theirs."""
    return split_name(value)[1] if value.count(SEPARATOR) == 1 else value


def _pack(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed


def from_call(error: RpcError, *, repeatable: bool) -> BrokerError:
    """The peer's `BrokerError`; or, if the call failed on its way, one that says its outcome.

    `repeatable`: the call does no harm if it is carried out twice.
    """
    ended = error.status
    said = _told(ended.details)
    if said is not None:
        return said
    if ended.unprocessed:
        return no_answer()
    match ended.code:
        case Code.UNAVAILABLE if repeatable:
            return no_answer()
        case Code.UNAVAILABLE:
            return BrokerError(
                Reason.OUTCOME_UNKNOWN,
                "the node of the master does not answer any more: it may have been done",
            )
        case Code.DEADLINE_EXCEEDED:
            return BrokerError(Reason.TIMEOUT, "no answer in time; it may have been done")
        case code:
            return BrokerError(
                Reason.INTERNAL, f"the node of the master answered {code.name}: {ended.message}"
            )


def no_answer() -> BrokerError:
    """The refusal of a call that surely had no effect."""
    return BrokerError(Reason.NO_MASTER, "the node of the master does not answer")


def _told(details: bytes) -> BrokerError | None:
    """The error that the peer's `status_details` describe; None if these aren't such."""
    try:
        status = status_pb2.Status.FromString(details)
    except DecodeError:
        return None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN and info.reason in Reason.__members__:
            return BrokerError(Reason[info.reason], status.message, **info.metadata)
    return None
