"""Reading ahead of a queue's consumers, in a thread.

Consumers fetch in order. When half of the bytes that were read ahead are fetched, the next ones
are read; a segment that is folded is unfolded before a consumer reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.queue.blocks import read_blocks
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.entries import Delta, IndexEntry
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.parts import SharedParts

# Above the last position of any queue.
_END = (1 << 63) - 1


class ReadAheadHost(SharedParts, Protocol):
    """The store, as the read-ahead of its queues sees it."""

    def mark_reading(self, ahead: ReadAhead) -> None:
        """`plan` is to be called: there may be something to read."""


@dataclass(slots=True, eq=False)
class AheadJob:
    """Blocks that a thread reads because they will be fetched soon."""

    ahead: ReadAhead
    entries: list[IndexEntry] = field(default_factory=list)
    # A segment to unfold, and the sets that its entries are chosen by, as they were when this was
    # planned.
    delta: Delta | None = None
    live: RangeSet = field(default_factory=RangeSet)
    missing: RangeSet = field(default_factory=RangeSet)
    cuts: tuple[Cut, ...] = ()
    # The answer.
    blocks: list[Block | CorruptionReport | None] = field(default_factory=list)
    unfolded: list[IndexEntry] = field(default_factory=list)
    reports: list[CorruptionReport] = field(default_factory=list)


def read_ahead(shared: SharedParts, job: AheadJob) -> None:
    """Does `job`. Runs in the reading thread; raises `OSError`."""
    job.blocks = read_blocks(shared.disk, job.entries, shared.messages)
    if job.delta is not None:
        job.unfolded, job.reports = load_segment(
            shared.disk, job.delta.segment, job.live, job.missing, job.cuts
        )


class ReadAhead:
    """Of one queue. On the event loop's thread."""

    def __init__(self, host: ReadAheadHost, bodies: Bodies) -> None:
        self._host = host
        self._bodies = bodies
        # Nothing is read ahead before the first fetch: the queue may have no consumer.
        self._has_consumers = False
        self._job: AheadJob | None = None
        # The next job is planned when a fetch has reached this position.
        self._due_at = 0

    def forget(self) -> None:
        """Another state was installed: positions may mean other messages now."""
        self._has_consumers = False
        self._due_at = 0

    def fetched(self, next_position: int) -> None:
        """A consumer was given messages up to `next_position`, that one not included."""
        self._has_consumers = True
        self._bodies.next_fetch = next_position
        if next_position >= self._due_at:
            self._host.mark_reading(self)

    def requeued(self, first: int) -> None:
        """Messages from `first` on may be fetched again."""
        if self._has_consumers and first < self._bodies.next_fetch:
            self._bodies.next_fetch = first
            self._due_at = 0

    def plan(self) -> AheadJob | None:
        """The next job, or None: all is in memory, or on its way there."""
        if self._job is not None or not self._has_consumers:
            return None
        bodies, index = self._bodies, self._bodies.index
        window = self._host.limits.read_ahead_bytes
        if bodies.is_over:
            window //= 8
        job = AheadJob(self)
        head = position = bodies.head
        ahead = 0
        stop = _END
        deltas = index.folded(head, bodies.next_position) if index.deltas else []
        if deltas:
            stop = deltas[0].first - 1
        middle = head
        for entry in index.overlapping(head, stop) if head <= stop else ():
            ahead += entry.body_bytes
            position = entry.last + 1
            if ahead <= window // 2:
                middle = position
            if entry.block is None and entry.durable and not bodies.has_at_hand(entry):
                job.entries.append(entry)
            if ahead >= window:
                break
        if ahead < window and deltas:
            self._plan_unfold(job, deltas[0])
        # Past the head in any case: the same job must not be planned at each fetch.
        self._due_at = max(middle, head + 1)
        if not job.entries and job.delta is None:
            return None
        self._job = job
        return job

    def _plan_unfold(self, job: AheadJob, delta: Delta) -> None:
        # Copies: the loop changes the sets while the thread reads.
        part = (delta.first, delta.last)
        job.delta = delta
        job.live = RangeSet(self._bodies.live.intersection(*part))
        job.missing = RangeSet(self._bodies.missing.intersection(*part))
        job.cuts = self._bodies.cuts

    def done(self, job: AheadJob) -> None:
        """Takes over the blocks that `job` has read. Entries that have died meanwhile get none."""
        self._job = None
        bodies = self._bodies
        for entry, block in zip(job.entries, job.blocks, strict=True):
            if block is None or not entry.live or entry.block is not None:
                continue
            if isinstance(block, CorruptionReport):
                bodies.lose(entry, block)
                continue
            bodies.count_read(block)
            bodies.index.attach(entry, block)
        delta = job.delta
        # The same delta, not another of that segment: it may have been unfolded and folded again.
        if delta is not None and bodies.index.deltas.get(delta.segment.number) is delta:
            bodies.unfold_with(delta, job.unfolded, job.reports)
            self._host.mark_reading(self)
        bodies.account()

    def failed(self, job: AheadJob) -> None:
        """`job` could not be done."""
        if self._job is job:
            self._job = None
