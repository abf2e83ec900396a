"""Why messages leave the queue.

`QueueMaster.leave` is the one place that every message with such a reason passes, before its
`Remove` is gathered (`removals`). What depends on the reason, such as dead letters, hooks in there:
until it lets go of a message, the message stays live.
"""

from __future__ import annotations

from enum import Enum

from ringmq_base.ranges import Range
from ringmq_base.values import value

# An owner that nobody is told of: the numbers of consumers and takers begin at 1.
NOBODY = 0


class LeaveReason(Enum):
    # A consumer has processed them.
    ACKNOWLEDGED = "acknowledged"
    # A consumer has refused them, and doesn't want them requeued.
    REJECTED = "rejected"
    # Their time to live is over.
    EXPIRED = "expired"
    # The queue has more messages or bytes than it may.
    MAX_LENGTH = "maxlen"
    # They have come back more often than the queue allows.
    DELIVERY_LIMIT = "delivery_limit"


@value
class Leaving:
    """These messages leave for `reason`. `owner` is told when their removal is safe."""

    reason: LeaveReason
    ranges: tuple[Range, ...]
    owner: int = NOBODY
