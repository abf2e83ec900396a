"""The pager of one queue: carries out the decisions of `paging`.

It lets go of blocks that can be read back from disk, and folds segments. A transient message has
no copy on the disk, so the pager first puts its block into the transient message store; from there
the entry gets a record in a segment, which makes it fit for folding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.queue import paging
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.parts import SharedParts

# The work of one step, in messages, and how many messages' worth an entry costs by itself: a step
# takes about 10 ms of the event loop.
_REDUCE_STEP = 20_000
_REDUCE_ENTRY = 10
# For queues that have nothing to page: an empty deque has 760 bytes. Nothing is put into this one.
_NONE: deque[IndexEntry] = deque(maxlen=0)


class PagerHost(SharedParts, Protocol):
    """The store, as the pagers of its queues see it."""

    def mark_paging(self, pager: Pager) -> None:
        """The pager has put a block into the transient store. `page_out_done` is to be called
        after the next round, as no journal says anything of it."""

    def mark_moving(self, pager: Pager) -> None:
        """A message has come or gone, for the first time in a while."""

    def mark_reducing(self, pager: Pager) -> None:
        """`reduce_some` is to be called, after the loop's other work has had its turn."""


class Pager:
    """Of one queue. On the event loop's thread."""

    def __init__(self, host: PagerHost, bodies: Bodies) -> None:
        self._host = host
        self._bodies = bodies
        self.rates = paging.Rates()
        self.lazy = False
        # Messages that may be in memory.
        self.target = math.inf
        # Transient entries: on their way into the transient store; in it, and waiting for the flush
        # to give them a record in a segment.
        self._leaving: list[IndexEntry] = []
        self.awaiting_segment: deque[IndexEntry] = _NONE
        # Entries to let go of. Some may have died or left memory since they were chosen.
        self._excess: deque[IndexEntry] = _NONE
        # Whether the host's looks at moving queues come here.
        self._moves = False
        # Whether messages were requeued since the last `reduce`.
        self._returned = False
        # Of transient messages, given to the transient store since the queue was opened.
        self.body_bytes_out = 0

    def set_lazy(self, lazy: bool) -> None:
        """A lazy queue lets go of every block that is on disk."""
        self.lazy = lazy
        self.reduce()

    def tick(self, now: float) -> float:
        """Updates the rates; returns for how many seconds the messages in memory last, at these
        rates. `now` in seconds."""
        self.rates.update(now)
        return self.rates.duration_s(self._bodies.index.messages_in_memory)

    def set_duration(self, duration_s: float) -> None:
        """For how long messages in memory should last; infinite: there is room for all."""
        self.target = self.rates.target(duration_s)
        if not math.isinf(self.target) or self.lazy:
            self.reduce()

    def forget(self) -> None:
        """Another state was installed: the entries to let go of may be gone."""
        self._excess = _NONE

    def clear(self) -> None:
        """The queue is deleted."""
        self.awaiting_segment = _NONE
        self._leaving.clear()
        self._excess = _NONE

    def added(self, entry: IndexEntry) -> None:
        """The queue has a new entry, with its block."""
        if entry.transient and self.wants_less:
            # Persistent entries are let go of when a round has made them durable. No round will
            # do that for this one.
            self.let_go(entry)

    def replaced(self, parts: list[IndexEntry]) -> None:
        """`parts` have taken the place of other entries."""
        if self._excess and self.lazy:
            self._excess.extend(parts)

    def published(self, count: int) -> None:
        self.rates.published(count)
        if not self._moves:
            self._mark_moving()

    def delivered(self, count: int) -> None:
        self.rates.delivered(count)
        self._mark_moving()

    def acknowledged(self, count: int) -> None:
        self.rates.acknowledged(count)
        self._mark_moving()

    def requeued(self) -> None:
        """Messages have come back from a consumer."""
        self._returned = True
        self._mark_moving()

    def _mark_moving(self) -> None:
        if not self._moves:
            self._moves = True
            self._host.mark_moving(self)

    def rest_if_still(self) -> bool:
        """Whether nothing moves any more, and nothing is to be let go of. The next message that
        moves is told to the host again."""
        if self.wants_reducing or not self.rates.end_if_still():
            return False
        self._moves = False
        return True

    def fold(self) -> None:
        """Folds segments, newest first, while there are more betas than permitted: one at once,
        the others when the host calls `reduce_some`."""
        if self._fold_one():
            self._host.mark_reducing(self)
        self._bodies.account()

    def _fold_one(self) -> bool:
        """Folds the newest segment that may be folded; returns False if there is none."""
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
        # Not the segment that the queue is filling: each publish would unfold it again.
        if not segment.holders or segment.damaged or last >= self._bodies.next_position:
            return False
        entries = [*self._bodies.index.overlapping(first, last)]
        # There is no entry if the segment's delta has died and its references are still to be read.
        if not entries or not all(entry.file is segment and entry.durable for entry in entries):
            return False
        for entry in entries:
            if entry.block is not None:
                self._bodies.index.detach(entry)
        return True

    def durable(self, entries: list[IndexEntry]) -> None:
        """`entries` are on disk from now on. Lets go of their blocks if memory is short."""
        index = self._bodies.index
        for entry in entries:
            entry.durable = True
            if entry.block is not None and entry.live and self.wants_less:
                index.detach(entry)
                self._bodies.account()

    @property
    def wants_less(self) -> bool:
        """Whether to drop blocks that can be read back from disk."""
        in_memory = self._bodies.index.messages_in_memory
        return self.lazy or in_memory > self.target or self._bodies.is_over

    @property
    def wants_reducing(self) -> bool:
        """Whether blocks may be in memory only because a consumer has had and returned them."""
        return self.lazy and self._returned

    def reduce(self) -> None:
        """Lets go of blocks while there are more than the target, or than the node may hold: one
        step at once, the others when the host calls `reduce_some`."""
        self._returned = False
        excess = self._excess_messages()
        if excess > 0 and not self._excess:
            self._excess = deque(self._to_release(excess))
        if self.reduce_some():
            self._host.mark_reducing(self)

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
        """One step of `reduce`; returns whether more is to be done."""
        work = _REDUCE_STEP
        while self._excess and work > 0:
            entry = self._excess.popleft()
            work -= entry.count + _REDUCE_ENTRY
            if entry.live and entry.block is not None:
                self.let_go(entry)
        if self._excess and self._excess_messages() <= 0:
            # There is room again, or the queue isn't lazy any more.
            self._excess = _NONE
        more = bool(self._excess) or self._fold_one()
        self._bodies.account()
        return more

    def _excess_messages(self) -> float:
        """By how many messages the queue has too many in memory."""
        excess = self._bodies.index.messages_in_memory - (0 if self.lazy else self.target)
        over = self._host.counters.queue_memory_bytes - self._host.limits.queue_memory_bytes_max
        if over > 0 and self._bodies.index.memory_bytes:
            # This queue makes room for all that the node has too much, as far as it can. The next
            # queue finds the rest.
            share = over / self._bodies.index.memory_bytes
            excess = max(excess, share * self._bodies.index.messages_in_memory)
        return excess

    def chain(self) -> paging.Chain:
        """How many messages are in which part of the queue."""
        bodies, index = self._bodies, self._bodies.index
        if not index.deltas and index.messages == index.messages_in_memory:
            # All is in Q4. There may be very many entries, and none has to be looked at.
            pending = bodies.live.count_in(0, bodies.head - 1)
            pending -= bodies.missing.count_in(0, bodies.head - 1)
            return paging.Chain(pending, index.messages - pending, 0, 0, 0, 0)
        return paging.chain(index, index.deltas.values(), bodies.head)

    def let_go(self, entry: IndexEntry) -> None:
        """Makes an alpha a beta. A transient entry becomes one when the transient store has it."""
        # A persistent entry that isn't durable stays: its block has no copy on any disk.
        if entry.durable:
            self._bodies.index.detach(entry)
        elif entry.transient and entry.location is None:
            assert entry.block is not None
            store = self._host.messages(transient=True)
            location, _ = store.put(entry.block)
            self._bodies.index.locate(entry, location)
            self.body_bytes_out += entry.block.body_bytes()
            self._leaving.append(entry)
            self._host.mark_paging(self)

    def page_out_done(self) -> bool:
        """The transient store was written by a round. Returns whether more is on its way to it."""
        store = self._host.messages(transient=True)
        waiting: list[IndexEntry] = []
        for entry in self._leaving:
            if entry.location is None or not entry.live:
                # It has died, and its place in the store was released.
                continue
            if not store.is_durable(entry.location):
                waiting.append(entry)
                continue
            entry.durable = True
            if self.awaiting_segment is _NONE:
                self.awaiting_segment = deque()
            self.awaiting_segment.append(entry)
            if entry.block is not None:
                self._bodies.index.detach(entry)
        self._leaving = waiting
        self._bodies.account()
        return bool(waiting)
