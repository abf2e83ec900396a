"""Reading ahead of the consumers, in a thread.

What is fetched comes in order: when half of what was read ahead is gone, the next is read.
A segment that is folded is unfolded before it is reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.queue.entries import Delta, IndexEntry
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.segments import read_blocks

if TYPE_CHECKING:
    from ringmq_node.storage.queue.bodies import Bodies, Host

# Where everything that is or will be in a queue lies before.
_END = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class AheadJob:
    """What is read in a thread because it will be fetched soon."""

    bodies: Bodies
    entries: list[IndexEntry] = field(default_factory=list)
    # A segment to unfold, and what was live when that was planned.
    delta: Delta | None = None
    live: RangeSet = field(default_factory=RangeSet)
    missing: RangeSet = field(default_factory=RangeSet)
    cuts: tuple[Cut, ...] = ()
    # The answer.
    blocks: list[Block | CorruptionReport | None] = field(default_factory=list)
    unfolded: list[IndexEntry] = field(default_factory=list)
    reports: list[CorruptionReport] = field(default_factory=list)


def read_ahead(host: Host, job: AheadJob) -> None:
    """Runs in the reading thread."""
    job.blocks = read_blocks(host.disk, job.entries, host.messages)
    if job.delta is not None:
        job.unfolded, job.reports = load_segment(
            host.disk, job.delta.segment, job.live, job.missing, job.cuts
        )


class ReadAhead:
    """Of one queue. On the event loop's thread."""

    def __init__(self, host: Host, bodies: Bodies) -> None:
        self._host = host
        self._bodies = bodies
        # The position that is fetched next, as far as is known; None: nothing was fetched.
        self.next: int | None = None
        self._job: AheadJob | None = None
        # Where the next job is due.
        self._due_at = 0

    def forget(self) -> None:
        """Positions mean something else now."""
        self.next = None
        self._due_at = 0

    def fetched(self, next_position: int) -> None:
        """A consumer was given what is before `next_position`."""
        self.next = next_position
        if next_position >= self._due_at:
            self._host.mark_reading(self._bodies)

    def requeued(self, first: int) -> None:
        """Messages from `first` on may be fetched again."""
        if self.next is not None and first < self.next:
            self.next = first
            self._due_at = 0

    def plan(self) -> AheadJob | None:
        """What to read next, or None: it is all there, or on its way."""
        if self._job is not None or self.next is None:
            return None
        bodies, index = self._bodies, self._bodies.index
        window = self._host.limits.read_ahead_bytes
        if bodies.is_over:
            window //= 8
        job = AheadJob(bodies)
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
        self._due_at = max(middle, head + 1)
        if not job.entries and job.delta is None:
            return None
        self._job = job
        return job

    def _plan_unfold(self, job: AheadJob, delta: Delta) -> None:
        part = (delta.first, delta.last)
        job.delta = delta
        job.live = RangeSet(self._bodies.live.intersection(*part))
        job.missing = RangeSet(self._bodies.missing.intersection(*part))
        job.cuts = self._bodies.cuts

    def done(self, job: AheadJob) -> None:
        """`job` has been done; what has died meanwhile is left."""
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
        if delta is not None and bodies.index.deltas.get(delta.segment.number) is delta:
            bodies.unfold_with(delta, job.unfolded, job.reports)
            self._host.mark_reading(bodies)
        bodies.account()

    def failed(self, job: AheadJob) -> None:
        """`job` could not be done."""
        if self._job is job:
            self._job = None
