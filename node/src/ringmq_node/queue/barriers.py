"""Who waits for a trip around the ring that begins after the question.

A node may believe that it is master, and apply ops, when it has long been replaced; and a real
master has ops in its state that the next one may never get. An answer that describes the state is
true only if both are excluded. So its owner, the *waiter*, waits until an op is safe that was sent
after it had asked (compare the read index of Raft, section 6.4 of Ongaro's thesis):

* every synchronised member took that op in this master's epoch, after the question came. So no
  later master had served anybody before the question;
* every op before it, which is all that the state said when the question came, is safe as well.

Any op will do. Only if none has been sent since the question, a `Barrier` is made, and one of them
serves all who wait: while it is on its way to the mirrors, further waiters gather for the next
one. So the openings of 2000 publishers at once cost two ops.

Invariants (`check`):
* waiters are in order of the numbers that they wait for, and none of these is safe;
* at most one `Barrier` is in hand.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from ringmq_node.queue.effects import MulticastOp, ReportBarrier
from ringmq_node.queue.ops import Barrier


@dataclass(frozen=True, slots=True)
class AwaitedTrip:
    """`waiter` waits until an op with at least this number is safe."""

    number: int
    waiter: int


class Barriers:
    """Of one mastership."""

    def __init__(self) -> None:
        self._waiting: deque[AwaitedTrip] = deque()
        # Whether the caller is trying to multicast a `Barrier`.
        self._in_hand = False
        # The number of the newest `Barrier`.
        self._sent = 0

    def wait(self, waiter: int, last_number: int) -> None:
        """`last_number`: of the ops that have been sent before."""
        self._waiting.append(AwaitedTrip(last_number + 1, waiter))

    def leave(self, waiter: int) -> None:
        """It is to be told nothing."""
        self._waiting = deque(entry for entry in self._waiting if entry.waiter != waiter)

    def next_op(self, last_number: int, received: int) -> list[MulticastOp]:
        """The next `Barrier`, if somebody waits for an op that nobody has sent."""
        if not self._waiting or self._waiting[-1].number <= last_number:
            return []
        if self._in_hand or self._sent > received:
            return []
        self._in_hand = True
        return [MulticastOp(Barrier())]

    def sent(self, number: int) -> None:
        """The ring has taken the op of the last `next_op`."""
        assert self._in_hand, number
        self._in_hand = False
        self._sent = number

    def reached(self, persisted: int) -> list[ReportBarrier]:
        """The waiters to be told, now that all members have persisted the ops so far."""
        told: list[ReportBarrier] = []
        while self._waiting and self._waiting[0].number <= persisted:
            told.append(ReportBarrier(self._waiting.popleft().waiter))
        return told

    def check(self, persisted: int) -> None:
        assert all(a.number <= b.number for a, b in pairwise(self._waiting))
        assert not self._waiting or self._waiting[0].number > persisted
