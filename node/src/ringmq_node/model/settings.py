"""The limits that the broker enforces for every door, and the times that streams keep.

A door tells them to its clients where its protocol can (the gRPC door in `PublishOpened`), but the
broker checks them: a client that ignores them is refused at every door.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringmq_base.limits import GIB, KIB, MIB

# One publish batch. The node tells its client; a larger batch is refused.
BATCH_BYTES_MAX: Final = MIB
BATCH_MESSAGES_MAX: Final = 8192
# One consumer's unacknowledged messages, and the defaults where it names none.
PREFETCH_MESSAGES: Final = 1000
PREFETCH_MESSAGES_MAX: Final = 1_000_000
PREFETCH_BYTES: Final = 16 * MIB
PREFETCH_BYTES_MAX: Final = GIB
# One get without a subscription.
GET_MESSAGES_MAX: Final = 1000
GET_BYTES_MAX: Final = 4 * MIB
# One page of a listing.
LIST_MAX: Final = 1000
# A call that comes without a deadline gets this one.
CALL_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The part of a node's configuration that its broker enforces. Seconds and bytes."""

    message_bytes_max: int
    # Encoded properties of one message.
    properties_bytes_max: int = 128 * KIB
    heartbeat_s: float = 1.0
