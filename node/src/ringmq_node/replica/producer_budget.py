"""How many producers a node remembers, over all its queues, and for how long.

A queue remembers the last sequence of each producer, to recognise repeats (guarantee G4). A
client takes a random producer id for each publisher, so nearly all of them never come back, and
10 000 for each of 2 000 queues would be gigabytes. So the node has a budget, `producers_max`. Above
it all queues get the same allowance, the largest that fits. Queues below it are left alone: one
with ten producers that matter doesn't pay for one with ten thousand.

Only a queue's master can make its replicas forget, by an op (`Forget`), so that they agree. A node
cuts the queues that it is master of, by an allowance that counts all that it holds. The masters of
the other queues count these as well, and do the same.

A producer that hasn't published for `producer_expiry_s` is forgotten in any case. Each replica
knows the time of its last publish, by ops of the masters (`NoteTime`), so a new master goes on
where the one before has ended, and restarts don't begin anew.

A producer that has ended in good order is forgotten at the next look, or with 99 others. One whose
publisher is connected, or was a minute ago without a word, is never forgotten. For a while after
a take-over no producer is, because clients are still coming over from the old master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ringmq_base.pieces import Pieces
from ringmq_node.replica.replica import Replica

logger = logging.getLogger(__name__)

LOOK_S = 10.0
# At most so much later than its last publish a producer counts as seen.
TIME_STEP_MS_MAX = 60_000
# What a queue forgets at one look, so that a look doesn't hold up the ring or the loop.
FORGOTTEN_MAX = 5_000


def allowance(counts: Iterable[int], producers_max: int) -> int | None:
    """The most that each queue may remember, so that all together are within `producers_max`;
    None if they are."""
    ordered = sorted(counts)
    if sum(ordered) <= producers_max:
        return None
    left = producers_max
    for index, count in enumerate(ordered):
        share = left // (len(ordered) - index)
        if count > share:
            return share
        left -= count
    raise AssertionError("they are within the budget")


def time_step_ms(expiry_s: float) -> int:
    """How exactly replicas have to know the time of a producer's last publish. An op for each step
    is the price."""
    return max(1000, min(TIME_STEP_MS_MAX, int(expiry_s * 1000 / 10)))


class ProducerBudget:
    """`replicas` gives those of this node."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[Replica]],
        producers_max: int,
        *,
        expiry_s: float = 0.0,
    ) -> None:
        """`expiry_s` 0: no producer is forgotten for its age."""
        self._replicas = replicas
        self._expiry_ms = int(expiry_s * 1000)
        self._producers_max = producers_max
        self._is_over = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> int:
        """Makes queues forget producers if the node remembers too many; returns how many."""
        replicas = [*self._replicas()]
        forgotten, pieces = 0, Pieces()
        for replica in replicas:
            forgotten += replica.remembering.forget_ended()
            if self._expiry_ms:
                forgotten += replica.remembering.expire(self._expiry_ms)
            await pieces.step()
        counts = [len(replica.store.state.producers) for replica in replicas]
        allowed = allowance(counts, self._producers_max)
        self._tell(sum(counts), allowed)
        for replica in replicas if allowed is not None else ():
            assert allowed is not None
            excess = len(replica.store.state.producers) - allowed
            if excess > 0:
                forgotten += replica.remembering.forget(min(excess, FORGOTTEN_MAX))
            await pieces.step()
        return forgotten

    def _tell(self, remembered: int, allowed: int | None) -> None:
        if (allowed is not None) is self._is_over:
            return
        self._is_over = not self._is_over
        if self._is_over:
            logger.warning(
                "%d producers are remembered, %d are allowed (producers_max): queues with more than"
                " %s forget the oldest that aren't connected",
                remembered,
                self._producers_max,
                allowed,
            )
        else:
            logger.info("%d producers are remembered: within producers_max again", remembered)
