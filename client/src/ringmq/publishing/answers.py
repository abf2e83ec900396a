"""What a node's answers tell a publisher's core, in the core's own words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Origin:
    """The master that has answered: `epoch` of its view, in the ring of the queue `queue_id`."""

    queue_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest message and the largest request that the node takes."""

    message_bytes_max: int
    batch_bytes_max: int
    batch_messages_max: int
    #: Of one message, encoded.
    properties_bytes_max: int = 2**63


NO_LIMITS = Limits(2**63, 2**63, 2**31)


class PublishRefusal(Enum):
    """How the node has refused messages, by the way on."""

    #: The cluster's state is in the way: the same messages may pass on the next stream.
    RETRY = auto()
    #: These messages will never be taken; the messages after them may be.
    FOR_GOOD = auto()
    #: One or more of these messages will never be taken. The node looks at a request as a whole,
    #: and doesn't say which; without those the others may be taken.
    SOME_FOR_GOOD = auto()
    #: The echo of an earlier refusal, or a numbering that only a new `opened` can put right.
    GAP = auto()
    #: The node has forgotten the producer: a new `opened` says so too.
    FORGOTTEN = auto()
