"""The client's exceptions, sorted by the caller's way out.

    RingMQError
    ├── RetryableError               try again later; nothing was changed
    │   ├── UnavailableError         nobody answers, no master, a node that shuts down
    │   ├── TooFewSynchronisedError  fewer synchronised replicas than min_insync
    │   └── WindowFullError          publish_nowait with a full window
    ├── RequestError                 mend the request; a repeat fails the same way
    │   ├── BadRequestError          (ValueError) a field is wrong: `field`
    │   │   └── WrongTypeError       (TypeError) an argument of another type
    │   ├── QueueNotFoundError       (LookupError)
    │   ├── QueueExistsError         declared again with other arguments
    │   ├── QueueLockedError         it is exclusive to another connection
    │   ├── QueueNotEmptyError       delete with if_empty
    │   ├── QueueInUseError          delete with if_unused
    │   ├── MessageTooLargeError     (ValueError) `size_bytes`, `limit_bytes`
    │   ├── UnknownDeliveryError     an ack of a message this consumer does not hold
    │   ├── ProducerForgottenError   the queue no longer has the sequences of an id of one's own
    │   ├── NotSynchronisedError     promotion of a mirror that is behind
    │   ├── NotAMemberError          promotion of a node that holds no replica
    │   ├── MessagesMayBeLostError   promotion of a replica that may lack some: `replicas`
    │   ├── PolicyNotFoundError      (LookupError)
    │   ├── ForbiddenByPolicyError   a policy of the queue refuses it
    │   ├── NodeNotFoundError        (LookupError)
    │   ├── NodeIsUpError            a node that is up can't be forgotten
    │   ├── QueueFullError           it takes no more; later there may be room
    │   ├── UnroutableError          a mandatory message that no queue is bound for
    │   ├── ExchangeNotFoundError    (LookupError)
    │   ├── ExchangeExistsError      declared again otherwise: `metadata` says what differs
    │   ├── ExchangeInUseError       delete with if_unused
    │   ├── VhostNotFoundError       (LookupError)
    │   ├── VhostInUseError          a vhost with queues is deleted by force only
    │   ├── PositionsError           of readers by position: `first`, `last`
    │   │   ├── PositionsMovedError  declared anew, or a loss was accepted: they mean others now
    │   │   ├── PositionsGoneError   acknowledged, purged, or never there
    │   │   └── PositionsHeldError   consumers have some of them
    │   ├── LeaseHeldError           another one has it: `holder`
    │   ├── LeaseLostError           another one has got it since: `holder`
    │   ├── NotSupportedError        the node lacks an optional part
    │   ├── ExclusiveUseError        the queue has an exclusive consumer, or others than such a one
    │   ├── ConsumerTimeoutError     a message was held for longer than the queue allows
    │   ├── AccessDeniedError        this client may not do that
    │   └── ClosedError              this client, publisher or consumer is closed
    ├── OperatorError                an operator has to act at the nodes
    │   ├── DiskFullError
    │   ├── StoreFailedError         a node's disk failed
    │   ├── LimitExceededError       `limit`
    │   └── NotRingMQError           the server there is not a RingMQ node of this version
    ├── OutcomeUnknownError          the call may have had effect, or not: look, then repeat
    │   └── TimedOutError            (TimeoutError) no answer within the deadline
    └── ProtocolError                a bug, ours or the node's: please report

Every one carries `reason` (the name of the wire's `Reason` without its prefix, empty if the
client noticed the failure itself), `metadata` (facts as text: queue, master, limits) and
`retry_after_s` (the node's hint, 0 without one).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class RingMQError(Exception):
    """The root. On the error of a publish, `failed` has the index ranges of the failed bodies."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.retry_after_s = retry_after_s
        #: The unconfirmed bodies of one publish call: (first, last) indexes, both included.
        #: Empty for every other call.
        self.failed: tuple[tuple[int, int], ...] = ()

    def copy(self) -> RingMQError:
        """The same error, for another caller: tracebacks and `failed` are not shared."""
        twin = type(self)(
            self.message,
            reason=self.reason,
            metadata=self.metadata,
            retry_after_s=self.retry_after_s,
        )
        twin.__cause__ = self.__cause__
        return twin

    def number(self, key: str) -> int:
        """`metadata[key]` as a number, 0 if it is not there or not a number."""
        text = self.metadata.get(key, "")
        return int(text) if text.isdecimal() else 0


class RetryableError(RingMQError):
    """The cluster's state is in the way. Nothing was changed; the same call may pass later."""


class UnavailableError(RetryableError):
    """No node answers, the queue is between two masters, the node is shutting down, or the
    queue's next message was found damaged and is being fetched from another replica."""


class TooFewSynchronisedError(RetryableError):
    """Fewer synchronised replicas than `min_insync`: the queue confirms nothing."""


class WindowFullError(RetryableError):
    """`publish_nowait` found the publisher's window full."""


class RequestError(RingMQError):
    """The request is wrong. The same call fails again until it is mended."""


class BadRequestError(RequestError, ValueError):
    """A field of the request is not acceptable."""

    @property
    def field(self) -> str:
        return self.metadata.get("field", "")


class WrongTypeError(BadRequestError, TypeError):
    """An argument, or a field of one, has another type than it should. Nothing was done."""


class QueueNotFoundError(RequestError, LookupError):
    """There is no queue of this name."""


class QueueExistsError(RequestError):
    """The queue exists with other arguments."""


class QueueNotEmptyError(RequestError):
    """The queue holds messages, and was to be deleted only if empty."""


class QueueInUseError(RequestError):
    """The queue has consumers, and was to be deleted only if unused."""


class MessageTooLargeError(RequestError, ValueError):
    """A body is over the limit. Found here before it is sent, or said by the node."""

    @property
    def size_bytes(self) -> int:
        return self.number("size_bytes")

    @property
    def limit_bytes(self) -> int:
        return self.number("limit_bytes")


class UnknownDeliveryError(RequestError):
    """An ack or nack of positions that the consumer does not hold (any more)."""


class ProducerForgottenError(RequestError):
    """The queue once had more of this producer than it has now: it has forgotten it, or was
    declared anew, or lost transient messages. Repeats of the messages between `last_sequence` and
    `known_sequence` would not be recognised. Open a publisher anew to go on from there."""

    @property
    def last_sequence(self) -> int:
        return self.number("last_sequence")

    @property
    def known_sequence(self) -> int:
        return self.number("known_sequence")


class NotSynchronisedError(RequestError):
    """The mirror to be promoted is behind."""


class NotAMemberError(RequestError):
    """The node to be promoted holds no replica of the queue."""


class MessagesMayBeLostError(RequestError):
    """The queue has no master, and the replica to be promoted may lack confirmed messages.

    `promote_mirror(..., accept_loss=True)` promotes it all the same.
    """

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """What each replica of the queue has, as far as its node answers."""
        found: list[dict[str, Any]] = json.loads(self.metadata.get("replicas", "[]"))
        return found


class PolicyNotFoundError(RequestError, LookupError):
    """There is no policy of this name."""


class ForbiddenByPolicyError(RequestError):
    """A policy of the queue refuses this. Change the policy first, if it has to be."""


class NodeNotFoundError(RequestError, LookupError):
    """No node of this name belongs to the cluster."""


class QueueLockedError(RequestError):
    """The queue is exclusive to another connection."""


class NodeIsUpError(RequestError):
    """The node is up, and can't be forgotten."""


class QueueFullError(RequestError):
    """The queue has its `max_length`, and refuses publishes until messages have left it; or it has
    no master, and as much as may wait for it waits (publishers to exchanges)."""


class UnroutableError(RequestError):
    """A mandatory message was routed to no queue, or only to queues that are deleted by now."""


class ExchangeNotFoundError(RequestError, LookupError):
    """There is no exchange of this name in the vhost."""


class ExchangeExistsError(RequestError):
    """The exchange exists and was declared otherwise: `metadata` has `field`, `existing` and
    `asked`."""


class ExchangeInUseError(RequestError):
    """The exchange has bindings, and was to be deleted only without any."""


class VhostNotFoundError(RequestError, LookupError):
    """There is no vhost of this name."""


class VhostInUseError(RequestError):
    """The vhost has queues. `force` deletes them with it."""


class PositionsError(RequestError):
    """A reader by position asked for what it can't have."""

    @property
    def first(self) -> int:
        return self.number("first")

    @property
    def last(self) -> int:
        return self.number("last")


class PositionsMovedError(PositionsError):
    """The queue was deleted and declared anew, or an operator has accepted that its end is lost:
    the positions that the reader has noted belong to other messages now."""

    @property
    def lost_from(self) -> int:
        """Positions below it are what they were: 0 in a queue that was declared anew."""
        return self.number("lost_from")


class PositionsGoneError(PositionsError):
    """Some of these positions have been acknowledged by a reader, or purged; or the queue never
    had them."""


class PositionsHeldError(PositionsError):
    """Consumers have some of these messages, or are giving them back."""


class LeaseHeldError(RequestError):
    """Somebody else has the lease."""

    @property
    def holder(self) -> str:
        return self.metadata.get("holder", "")

    @property
    def expires_in_s(self) -> float:
        return self.number("expires_in_ms") / 1000


class LeaseLostError(RequestError):
    """The lease isn't this holder's any more. `holder`: whose it is; empty: nobody's."""

    @property
    def holder(self) -> str:
        return self.metadata.get("holder", "")


class NotSupportedError(RequestError):
    """The node was installed without an optional part that the call needs."""


class ExclusiveUseError(RequestError):
    """The queue has an exclusive consumer; or this one wants to be alone, and the queue has others,
    or was declared with `single_active_consumer`."""


class ConsumerTimeoutError(RequestError):
    """The consumer held a message for longer than the queue's `consumer_timeout_ms`. Its unsettled
    messages have gone back to their places; open a consumer anew to go on."""


class AccessDeniedError(RequestError):
    """The node does not allow this client to make the call; or nobody may, as what is predeclared
    can't be changed."""


class ClosedError(RequestError):
    """The client, publisher or consumer has been closed."""


class OperatorError(RingMQError):
    """A node's limit or a node's fault. An operator has to act."""


class DiskFullError(OperatorError):
    """The disk of a node is full, or below its limit of free space."""


class StoreFailedError(OperatorError):
    """A node's disk failed a write. The node uses it no more: a failed fsync is never retried."""


class LimitExceededError(OperatorError):
    """A configured limit is reached."""

    @property
    def limit(self) -> str:
        return self.metadata.get("limit", "")


class NotRingMQError(OperatorError):
    """Something answers there, but does not serve this API."""


class OutcomeUnknownError(RingMQError):
    """The call may have had effect, or not. Publishes retried under one producer id stay single."""


class TimedOutError(OutcomeUnknownError, TimeoutError):
    """No answer within the deadline; the call may still have effect."""


class ProtocolError(RingMQError):
    """The node or this client broke the protocol, or failed inside. A bug: please report it."""
