"""From failures of gRPC and reasons on the wire to the exceptions of `ringmq.errors`.

A failed call of a node carries `google.rpc.Status` in its details, with an `ErrorInfo`
(domain "ringmq", reason = a name of `Reason`) and perhaps a `RetryInfo`. `BY_REASON` is the one
table for these. A failure without details comes from gRPC itself, or from a server that is not a
node: `BY_CODE`.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from ringmq import errors
from ringmq.calls.retrying import NotConnectedError
from ringmq.v1 import common_pb2 as common
from ringmq_wire import Code, RpcError

DOMAIN = "ringmq"
REASON_PREFIX = "REASON_"

BY_REASON: dict[common.Reason.ValueType, type[errors.RingMQError]] = {
    common.REASON_QUEUE_NOT_FOUND: errors.QueueNotFoundError,
    common.REASON_QUEUE_EXISTS: errors.QueueExistsError,
    common.REASON_BAD_REQUEST: errors.BadRequestError,
    common.REASON_MESSAGE_TOO_LARGE: errors.MessageTooLargeError,
    common.REASON_UNKNOWN_DELIVERY: errors.UnknownDeliveryError,
    # The publisher's core handles these two; one that escapes is a bug.
    common.REASON_SEQUENCE_GAP: errors.ProtocolError,
    common.REASON_UNKNOWN_PRODUCER: errors.ProtocolError,
    common.REASON_NOT_SYNCHRONISED: errors.NotSynchronisedError,
    common.REASON_QUEUE_NOT_EMPTY: errors.QueueNotEmptyError,
    common.REASON_QUEUE_IN_USE: errors.QueueInUseError,
    common.REASON_NOT_A_MEMBER: errors.NotAMemberError,
    # A newer stream of the same producer id has ended this one. One publisher has one stream at
    # a time, so two publishers share an id, which they must not.
    common.REASON_PRODUCER_FENCED: errors.ProtocolError,
    common.REASON_MESSAGES_MAY_BE_LOST: errors.MessagesMayBeLostError,
    common.REASON_POLICY_NOT_FOUND: errors.PolicyNotFoundError,
    common.REASON_FORBIDDEN_BY_POLICY: errors.ForbiddenByPolicyError,
    common.REASON_NODE_NOT_FOUND: errors.NodeNotFoundError,
    common.REASON_NODE_IS_UP: errors.NodeIsUpError,
    common.REASON_QUEUE_LOCKED: errors.QueueLockedError,
    common.REASON_QUEUE_FULL: errors.QueueFullError,
    common.REASON_UNROUTABLE: errors.UnroutableError,
    common.REASON_SEQUENCE_FORGOTTEN: errors.OutcomeUnknownError,
    common.REASON_EXCHANGE_NOT_FOUND: errors.ExchangeNotFoundError,
    common.REASON_EXCHANGE_EXISTS: errors.ExchangeExistsError,
    common.REASON_EXCHANGE_IN_USE: errors.ExchangeInUseError,
    common.REASON_VHOST_NOT_FOUND: errors.VhostNotFoundError,
    common.REASON_VHOST_IN_USE: errors.VhostInUseError,
    common.REASON_ACCESS_REFUSED: errors.AccessDeniedError,
    common.REASON_POSITIONS_MOVED: errors.PositionsMovedError,
    common.REASON_POSITIONS_GONE: errors.PositionsGoneError,
    common.REASON_POSITIONS_HELD: errors.PositionsHeldError,
    common.REASON_LEASE_HELD: errors.LeaseHeldError,
    common.REASON_LEASE_LOST: errors.LeaseLostError,
    common.REASON_NOT_SUPPORTED: errors.NotSupportedError,
    common.REASON_POSITIONS_UNSAFE: errors.UnavailableError,
    common.REASON_EXCLUSIVE_CONSUMER: errors.ExclusiveUseError,
    # Each consumer has a random id, and one stream at a time.
    common.REASON_CONSUMER_REPLACED: errors.ProtocolError,
    common.REASON_CONSUMER_TIMEOUT: errors.ConsumerTimeoutError,
    common.REASON_BUSY: errors.UnavailableError,
    common.REASON_NO_MASTER: errors.UnavailableError,
    common.REASON_QUARANTINED: errors.UnavailableError,
    common.REASON_NOT_MASTER: errors.UnavailableError,
    common.REASON_TOO_FEW_SYNCHRONISED: errors.TooFewSynchronisedError,
    common.REASON_OUTCOME_UNKNOWN: errors.OutcomeUnknownError,
    common.REASON_DRAINING: errors.UnavailableError,
    common.REASON_REGISTRY_UNAVAILABLE: errors.UnavailableError,
    common.REASON_TIMEOUT: errors.TimedOutError,
    common.REASON_REPAIRING: errors.UnavailableError,
    common.REASON_DISK_FULL: errors.DiskFullError,
    common.REASON_STORE_FAILED: errors.StoreFailedError,
    common.REASON_LIMIT_EXCEEDED: errors.LimitExceededError,
    common.REASON_INTERNAL: errors.ProtocolError,
}

BY_CODE: dict[Code, type[errors.RingMQError]] = {
    Code.UNAVAILABLE: errors.UnavailableError,
    Code.DEADLINE_EXCEEDED: errors.TimedOutError,
    Code.CANCELLED: errors.OutcomeUnknownError,
    Code.ABORTED: errors.OutcomeUnknownError,
    Code.UNIMPLEMENTED: errors.NotRingMQError,
    Code.UNAUTHENTICATED: errors.AccessDeniedError,
    Code.PERMISSION_DENIED: errors.AccessDeniedError,
    Code.INVALID_ARGUMENT: errors.BadRequestError,
    Code.OUT_OF_RANGE: errors.BadRequestError,
    Code.RESOURCE_EXHAUSTED: errors.LimitExceededError,
}


def reason_name(reason: common.Reason.ValueType) -> str:
    """`QUEUE_NOT_FOUND` for `REASON_QUEUE_NOT_FOUND`; a number that is new to us as it is."""
    if reason not in common.Reason.values():
        return str(int(reason))
    return common.Reason.Name(reason).removeprefix(REASON_PREFIX)


def from_reason(
    reason: common.Reason.ValueType, message: str = "", *, retry_after_s: float = 0.0
) -> errors.RingMQError:
    """The exception for a reason that came inside a stream's response."""
    kind = BY_REASON.get(reason, errors.ProtocolError)
    name = reason_name(reason)
    return kind(message or name, reason=name, retry_after_s=retry_after_s)


def _details(data: bytes) -> status_pb2.Status | None:
    try:
        return status_pb2.Status.FromString(data) if data else None
    except DecodeError:
        # Some other server's bytes under the same key: the status code has to do.
        return None


def from_call(failure: RpcError, peer: str) -> errors.RingMQError:
    """The exception for a failed call to `peer`."""
    ended = failure.status
    status = _details(ended.details)
    info = error_details_pb2.ErrorInfo()
    retry_after_s = 0.0
    for detail in status.details if status is not None else ():
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            hint = error_details_pb2.RetryInfo()
            detail.Unpack(hint)
            retry_after_s = hint.retry_delay.seconds + hint.retry_delay.nanos / 1e9
    message = ended.message
    kind = BY_CODE.get(ended.code, errors.ProtocolError)
    if info.domain == DOMAIN and info.reason:
        name = REASON_PREFIX + info.reason
        if name in common.Reason.keys():  # noqa: SIM118 - not a dict
            kind = BY_REASON.get(common.Reason.Value(name), errors.ProtocolError)
        return kind(
            message or info.reason,
            reason=info.reason,
            metadata=dict(info.metadata),
            retry_after_s=retry_after_s,
        )
    if ended.unprocessed:
        kind = NotConnectedError
    elif kind is errors.TimedOutError:
        message = "no answer in time; the call may have been carried out, or still be"
    return kind(
        f"{peer}: {ended.code.name}: {message}",
        metadata={"peer": peer, "code": ended.code.name},
    )
