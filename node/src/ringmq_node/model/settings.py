"""The limits that the broker enforces for every door, and what policies decide for one replica.

A door tells the limits to its clients where its protocol can (the gRPC door in `PublishOpened`),
but the broker checks them: a client that ignores them is refused at every door.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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


class SyncMode(Enum):
    """When a replica that lacks messages fetches them. The values are those of policies."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """How a replica that joins its ring gets what it lacks, as the queue's policies decide.

    `MANUAL`: it takes the ops that come, and fetches the earlier ones only when an operator asks
    for it. Without that it is synchronised once it lacks nothing any more, because everything from
    before it joined has been consumed.
    """

    mode: SyncMode = SyncMode.AUTOMATIC
    # Bytes of bodies fetched per second, by one replica; None: as fast as both ends can.
    rate_bytes_max: int | None = None
