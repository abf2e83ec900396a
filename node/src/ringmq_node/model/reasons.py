"""Why a node refuses a call, in words that every door can translate.

A door maps each `Reason` to its protocol in one table: the gRPC door to a status code and the
wire's `Reason`, an AMQP door to a reply code. The table's completeness is tested, so a new reason
can't be forgotten in a door.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class Reason(Enum):
    """Names are those of `ringmq.v1.Reason`, without its prefix."""

    # The caller's fault: mend the request.
    QUEUE_NOT_FOUND = auto()
    QUEUE_EXISTS = auto()
    BAD_REQUEST = auto()
    MESSAGE_TOO_LARGE = auto()
    UNKNOWN_DELIVERY = auto()
    SEQUENCE_GAP = auto()
    UNKNOWN_PRODUCER = auto()
    NOT_SYNCHRONISED = auto()
    QUEUE_NOT_EMPTY = auto()
    QUEUE_IN_USE = auto()
    NOT_A_MEMBER = auto()
    PRODUCER_FENCED = auto()
    MESSAGES_MAY_BE_LOST = auto()
    POLICY_NOT_FOUND = auto()
    FORBIDDEN_BY_POLICY = auto()
    NODE_NOT_FOUND = auto()
    NODE_IS_UP = auto()
    EXCLUSIVE_CONSUMER = auto()
    CONSUMER_REPLACED = auto()
    CONSUMER_TIMEOUT = auto()
    QUEUE_FULL = auto()
    UNROUTABLE = auto()
    SEQUENCE_FORGOTTEN = auto()
    EXCHANGE_NOT_FOUND = auto()
    EXCHANGE_EXISTS = auto()
    EXCHANGE_IN_USE = auto()
    VHOST_NOT_FOUND = auto()
    VHOST_IN_USE = auto()
    ACCESS_REFUSED = auto()
    # Of calls by positions; metadata "first" and "last" name these.
    POSITIONS_MOVED = auto()
    POSITIONS_GONE = auto()
    POSITIONS_HELD = auto()
    LEASE_HELD = auto()
    LEASE_LOST = auto()
    NOT_SUPPORTED = auto()
    QUEUE_LOCKED = auto()
    # The cluster's state: the same call may succeed later.
    NO_MASTER = auto()
    NOT_MASTER = auto()
    TOO_FEW_SYNCHRONISED = auto()
    OUTCOME_UNKNOWN = auto()
    DRAINING = auto()
    REGISTRY_UNAVAILABLE = auto()
    TIMEOUT = auto()
    REPAIRING = auto()
    BUSY = auto()
    QUARANTINED = auto()
    POSITIONS_UNSAFE = auto()
    # The node's limits: an operator has to act.
    DISK_FULL = auto()
    STORE_FAILED = auto()
    LIMIT_EXCEEDED = auto()
    INTERNAL = auto()


# The same call may be sent again after this many milliseconds. A reason that isn't here asks for
# another request, or for an operator.
RETRY_AFTER_MS: dict[Reason, int] = {
    Reason.NO_MASTER: 100,
    Reason.NOT_MASTER: 10,
    Reason.TOO_FEW_SYNCHRONISED: 250,
    Reason.OUTCOME_UNKNOWN: 50,
    Reason.DRAINING: 50,
    Reason.REGISTRY_UNAVAILABLE: 500,
    Reason.SEQUENCE_GAP: 0,
    Reason.REPAIRING: 500,
    Reason.BUSY: 1000,
    Reason.POSITIONS_UNSAFE: 50,
    # Another replica may take over, or an operator put the record right.
    Reason.QUARANTINED: 500,
}


class BrokerError(Exception):
    """A refusal as a client gets it: `metadata` holds the names and numbers of `message`."""

    def __init__(self, reason: Reason, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata: Mapping[str, str] = {key: str(value) for key, value in metadata.items()}

    @property
    def retryable(self) -> bool:
        return self.reason in RETRY_AFTER_MS

    @property
    def retry_after_ms(self) -> int:
        return RETRY_AFTER_MS.get(self.reason, 0)


def quarantined(queue: str, why: str) -> BrokerError:
    """The refusal of a call that meets a record or a replica that has failed."""
    return BrokerError(Reason.QUARANTINED, f"queue {queue!r} is quarantined: {why}", queue=queue)


def bad_request(message: str, *, field: str) -> BrokerError:
    """The refusal of a request whose `field` can't be used."""
    return BrokerError(Reason.BAD_REQUEST, message, field=field)
