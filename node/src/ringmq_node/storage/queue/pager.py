"""What one queue lets go of, and folds: the executing side of `paging`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.queue import paging
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile

if TYPE_CHECKING:
    from ringmq_node.storage.queue.bodies import Bodies, Host

# What is let go of before others have their turn, in messages, and what an entry costs of
# it: about 10 ms.
_REDUCE_STEP = 20_000
_REDUCE_ENTRY = 10


class Pager:
    """Of one queue. On the event loop's thread.

    `lazy` and `target` (messages in memory) are set from outside, `reduce` is called then.
    """

    def __init__(self, host: Host, bodies: Bodies) -> None:
        self._host = host
        self._bodies = bodies
        self.rates = paging.Rates()
        self.lazy = False
        self.target = math.inf
        # On their way into the transient store; in it and in no segment yet.
        self._paging: list[IndexEntry] = []
        self.paged: deque[IndexEntry] = deque()
        # What is to be let go of. Some may be dead or not in memory any more.
        self._excess: deque[IndexEntry] = deque()
        # Something was requeued since the last `reduce`.
        self._returned = False

    def forget(self) -> None:
        """What was to be let go of may be gone."""
        self._excess.clear()

    def clear(self) -> None:
        """The queue is deleted."""
        self.paged.clear()
        self._paging.clear()
        self._excess.clear()

    def replaced(self, parts: list[IndexEntry]) -> None:
        """Some entries are `parts` now."""
        if self._excess and self.lazy:
            self._excess.extend(parts)

    def requeued(self) -> None:
        """Something is back that was with a consumer."""
        self._returned = True

    def fold(self) -> None:
        """Folds segments, newest first, while there are more betas than are permitted.

        One at once, the others when the host calls `reduce_some`.
        """
        if self._fold_one():
            self._host.mark_reducing(self._bodies)
        self._bodies.account()

    def _fold_one(self) -> bool:
        """Folds the newest segment that may be; returns False if there is none."""
        index = self._bodies.index
        permitted = paging.permitted_betas(index.messages, self.target)
        if self.lazy or self._bodies.is_over:
            permitted = paging.permitted_betas(index.messages, 0)
        if index.messages - index.messages_in_memory <= permitted:
            return False
        first = self._bodies.head // SEGMENT_POSITIONS
        for number in sorted(self._bodies.segments, reverse=True):
            if number <= first:
                break
            segment = self._bodies.segments[number]
            if number not in index.deltas and self._may_fold(segment):
                index.fold(segment, self._bodies.live)
                return True
        return False

    def _may_fold(self, segment: QueueFile) -> bool:
        first = segment.number * SEGMENT_POSITIONS
        last = first + SEGMENT_POSITIONS - 1
        if not segment.holders or segment.damaged or last >= self._bodies.next_position:
            return False
        entries = [*self._bodies.index.overlapping(first, last)]
        # There are none if a delta has died whose references are still to be read.
        if not entries or not all(entry.file is segment and entry.durable for entry in entries):
            return False
        for entry in entries:
            if entry.block is not None:
                self._bodies.index.detach(entry)
        return True

    def durable(self, entries: list[IndexEntry]) -> None:
        """These are on disk now. Lets go of them if the queue has more than it should."""
        index = self._bodies.index
        for entry in entries:
            entry.durable = True
            if entry.block is not None and entry.live and self.wants_less:
                index.detach(entry)
                self._bodies.account()

    @property
    def wants_less(self) -> bool:
        """Whether what need not be in memory shouldn't be."""
        in_memory = self._bodies.index.messages_in_memory
        return self.lazy or in_memory > self.target or self._bodies.is_over

    @property
    def wants_reducing(self) -> bool:
        """Whether something that was with a consumer may be in memory without need."""
        return self.lazy and self._returned

    def reduce(self) -> None:
        """Lets go of what is above the target, or above what the node may hold.

        A step of it at once, the others when the host calls `reduce_some`.
        """
        self._returned = False
        excess = self._excess_messages()
        if excess > 0 and not self._excess:
            self._excess.extend(self._to_release(excess))
        if self.reduce_some():
            self._host.mark_reducing(self._bodies)

    def _to_release(self, excess: float) -> Iterable[IndexEntry]:
        if self.lazy:
            # All of it, in any order.
            return [entry for entry in self._bodies.index if entry.block is not None]
        rates = self.rates
        acks_first = rates.deliver - rates.ack > rates.publish - rates.deliver
        return paging.to_release(
            [*self._bodies.index], self._bodies.head, excess, acks_first=acks_first
        )

    def reduce_some(self) -> bool:
        """One step of `reduce`; returns whether there is more to do."""
        work = _REDUCE_STEP
        while self._excess and work > 0:
            entry = self._excess.popleft()
            work -= entry.count + _REDUCE_ENTRY
            if entry.live and entry.block is not None:
                self.let_go(entry)
        if self._excess and self._excess_messages() <= 0:
            # There is room again, or the queue isn't lazy any more.
            self._excess.clear()
        more = bool(self._excess) or self._fold_one()
        self._bodies.account()
        return more

    def _excess_messages(self) -> float:
        """How many messages too many are in memory."""
        excess = self._bodies.index.messages_in_memory - (0 if self.lazy else self.target)
        over = self._host.counters.queue_memory_bytes - self._host.limits.queue_memory_bytes_max
        if over > 0 and self._bodies.index.memory_bytes:
            share = over / self._bodies.index.memory_bytes
            excess = max(excess, share * self._bodies.index.messages_in_memory)
        return excess

    def let_go(self, entry: IndexEntry) -> None:
        """Alpha to beta; of a transient message, on its way to that."""
        if entry.durable:
            self._bodies.index.detach(entry)
        elif entry.transient and entry.location is None:
            assert entry.block is not None
            store = self._host.messages(transient=True)
            entry.location, _ = store.put(entry.block)
            self._bodies.body_bytes_paged += entry.block.body_bytes()
            self._paging.append(entry)
            self._host.mark_paging(self._bodies)

    def page_out_done(self) -> bool:
        """The transient store has been written. Returns whether more is on its way."""
        store = self._host.messages(transient=True)
        waiting: list[IndexEntry] = []
        for entry in self._paging:
            if entry.location is None or not entry.live:
                continue
            if not store.is_durable(entry.location):
                waiting.append(entry)
                continue
            entry.durable = True
            self.paged.append(entry)
            if entry.block is not None:
                self._bodies.index.detach(entry)
        self._paging = waiting
        self._bodies.account()
        return bool(waiting)
