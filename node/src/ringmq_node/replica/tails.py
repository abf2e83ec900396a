"""Whether the end of a log that a replica is about to cut has to be set aside. Pure.

A replica that joins installs the ring's state, and what its own log has beyond is gone. In nearly
all cases nobody misses it. A master that is killed has ops on its disk that nobody else has, hence
that were never confirmed, and its publishers have sent them again. Setting those aside would leave
files behind with every failover, and drown the one that matters. So the end of a log is kept if

* the ring was begun again without it, after an operator had accepted a loss, or from logs that
  were shorter (`View.overrules`). A failover doesn't do that: the new master was in the ring, and
  has all that was confirmed. A ring that is begun again from logs relies on the disks, and each of
  them may have lost ops without noticing;
* or this replica knows that some of it was confirmed. Then one of the ring's rules was broken.

What is kept are the messages. The ops themselves are of no use: acks of messages that the ring
still has are lost, and these messages come again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ringmq_node.queue.state import ReplicatedState


class Beginning(Protocol):
    """When the ring was begun again, and the last op of the log that it was begun from."""

    @property
    def epoch(self) -> int: ...
    @property
    def log_epoch(self) -> int: ...
    @property
    def log_number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Tail:
    """The live messages from `first_position` up to `next_position` (not included), of a log that
    ends with op `log_number` of epoch `log_epoch`."""

    log_epoch: int
    log_number: int
    first_position: int
    next_position: int
    # When and from where the ring was begun again: epoch, and the last op there; 0 if it wasn't.
    ring_epoch: int
    ring_log_epoch: int
    ring_log_number: int
    # Whether some of it is known to have been confirmed.
    confirmed: bool


def tail_of(
    state: ReplicatedState,
    keep_below: int,
    *,
    overruled: Beginning | None,
    confirmed_below: int,
) -> Tail | None:
    """What has to be kept of a log with this `state`, which is about to be cut at `keep_below`.

    `overruled`: as `View.overrules` says of the log's end. Messages below `confirmed_below` are
    known to have been confirmed.
    """
    live, end = state.live, state.next_position
    if keep_below >= end or not live.intersection(keep_below, end - 1):
        return None
    confirmed = confirmed_below > keep_below and bool(
        live.intersection(keep_below, confirmed_below - 1)
    )
    if overruled is None and not confirmed:
        return None
    return Tail(
        log_epoch=state.epoch,
        log_number=state.last_number,
        first_position=keep_below,
        next_position=end,
        ring_epoch=0 if overruled is None else overruled.epoch,
        ring_log_epoch=0 if overruled is None else overruled.log_epoch,
        ring_log_number=0 if overruled is None else overruled.log_number,
        confirmed=confirmed,
    )
