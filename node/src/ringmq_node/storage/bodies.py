"""Where the bodies of one queue's live messages are, and which of them are in memory.

The executing side of `paging`: keeps the index, lets blocks go, folds segments into
deltas and unfolds them, reads ahead of the consumers, and holds the references to the
message stores.

A body that is needed and not in memory is read at once, on the event loop: one block, or the
headers of one segment. Reading ahead, in a thread, makes that rare.

Invariants (`check`):
* each live position has its body in the index, or is in `missing`, never both;
* `live_bytes` is the size of all bodies in the index that are live;
* what can't be read from disk is in memory;
* each living entry with a location holds one reference to it, a delta one for each such entry.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ringmq.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.state import QueueState
from ringmq_node.storage import paging
from ringmq_node.storage.checkpoint import Cut
from ringmq_node.storage.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport
from ringmq_node.storage.index import (
    SEGMENT_POSITIONS,
    DataFile,
    Delta,
    Entry,
    RunIndex,
)
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.recovery import Recovered, load_segment
from ringmq_node.storage.references import Location
from ringmq_node.storage.segments import read_block, read_blocks

# Where everything that is or will be in a queue lies before.
_END = (1 << 63) - 1
# What is let go of before others have their turn, in messages, and what an entry costs of
# it: about 10 ms.
_REDUCE_STEP = 20_000
_REDUCE_ENTRY = 10


class Host(Protocol):
    """What the bodies of a queue want of the store that they are in."""

    disk: Disk
    limits: StoreLimits
    counters: Counters

    def messages(self, *, transient: bool) -> MessageStore:
        """The message store for such messages."""

    def mark_paging(self, bodies: Bodies) -> None:
        """Something was put into a message store that no journal says anything of."""

    def mark_reading(self, bodies: Bodies) -> None:
        """There is something to be read ahead."""

    def mark_reducing(self, bodies: Bodies) -> None:
        """`reduce_some` is to be called, when others have had their turn."""


@dataclass(slots=True, eq=False)
class AheadJob:
    """What is read in a thread because it will be fetched soon."""

    bodies: Bodies
    entries: list[Entry] = field(default_factory=list)
    # A segment to unfold, and what was live when that was planned.
    delta: Delta | None = None
    live: RangeSet = field(default_factory=RangeSet)
    missing: RangeSet = field(default_factory=RangeSet)
    cuts: tuple[Cut, ...] = ()
    # The answer.
    blocks: list[Block | CorruptionReport] = field(default_factory=list)
    unfolded: list[Entry] = field(default_factory=list)
    reports: list[CorruptionReport] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Condemned:
    """A segment that died as a delta: its references are to be read and given back."""

    segment: DataFile
    # The positions that were live in it.
    positions: RangeSet
    cuts: tuple[Cut, ...]
    # The round that makes this durable.
    gate: int


def read_ahead(host: Host, job: AheadJob) -> None:
    """Runs in the reading thread."""
    job.blocks = read_blocks(host.disk, job.entries, host.messages)
    if job.delta is not None:
        job.unfolded, job.reports = load_segment(
            host.disk, job.delta.segment, job.live, job.missing, job.cuts
        )


class Bodies:
    """Of one queue. All on the event loop's thread."""

    def __init__(
        self,
        host: Host,
        found: Recovered,
        *,
        gate: Callable[[], int],
        on_emptied: Callable[[DataFile], None],
    ) -> None:
        """`gate()`: the round that has to be over for what has happened so far to be durable.
        `on_emptied(file)`: an entry has left that file."""
        self.live: RangeSet = found.state.live
        self.missing: RangeSet = found.missing
        # Body bytes of all live messages that are not missing.
        self.live_bytes = found.body_bytes
        self.index: RunIndex = found.index
        self.segments: dict[int, DataFile] = found.segments
        self.cuts: tuple[Cut, ...] = found.cuts
        self.corruptions: list[CorruptionReport] = found.corruptions
        self.next_position = found.state.next_position
        self.rates = paging.Rates()
        self.lazy = False
        self.target = math.inf
        self.condemned: deque[Condemned] = deque()
        self._releasing: list[Location] = []
        self.blocks_read = 0
        self._host = host
        self._gate = gate
        self._on_emptied = on_emptied
        # The position that is fetched next, as far as is known; None: nothing was fetched.
        self._fetched: int | None = None
        self._ahead: AheadJob | None = None
        self._ahead_at = 0
        self._recent: Entry | None = None
        self._recent_block: Block | None = None
        # On their way into the transient store; in it and in no segment yet.
        self._paging: list[Entry] = []
        self.paged: deque[Entry] = deque()
        # What is to be let go of. Some may be dead or not in memory any more.
        self._excess: deque[Entry] = deque()
        # Something was requeued since the last `reduce`.
        self._returned = False
        self._accounted = 0
        self._account()

    @property
    def head(self) -> int:
        """The position that is fetched next."""
        first = self.live.first if self.live else self.next_position
        return first if self._fetched is None else max(self._fetched, first)

    # -- what comes and goes

    def add(self, entry: Entry) -> None:
        """A living entry of a new message, with its block."""
        self.index.add(entry)
        self.live_bytes += entry.body_bytes
        if self.lazy and entry.transient:
            # No round will make it durable, as it does others.
            self.let_go(entry)
        self._account()

    def before_removal(self, ranges: tuple[Range, ...]) -> None:
        """These positions will cease to be live: what is folded of them has to be known."""
        if not self.index.deltas or not ranges:
            return
        going = RangeSet(ranges)
        for delta in self.index.folded(going.first, going.last):
            rest = RangeSet(self.live.intersection(delta.first, delta.last))
            # A delta that dies of it as a whole stays folded; so does one that it leaves alone.
            if rest.subtract(going.intersection(delta.first, delta.last)) and rest:
                self.unfold(delta)

    def before_adding(self, first: int, last: int) -> None:
        """Entries will be added there: of the segment that is begun, or of what is missing."""
        for delta in self.index.folded(first, last):
            self.unfold(delta)

    def forget(self, gone: list[Range]) -> None:
        """These positions were live until now."""
        self.rates.acknowledged(sum(last - first + 1 for first, last in gone))
        if self.index.deltas and gone:
            # One delta may die of several ranges.
            positions = RangeSet(gone)
            for delta in self.index.folded(positions.first, positions.last):
                if positions.intersection(delta.first, delta.last):
                    self._condemn(delta, positions)
        if self.missing:
            self.missing.subtract(gone)
        freed, died = self.index.remove(gone)
        self.live_bytes -= freed
        for entry in died:
            self._release(entry)
        self._account()

    def _covers(self, delta: Delta, first: int, last: int) -> bool:
        """Whether all that is live in a delta is in `first..last`."""
        before = delta.first < first and self.live.intersection(delta.first, first - 1)
        behind = delta.last > last and self.live.intersection(last + 1, delta.last)
        return not before and not behind

    def _condemn(self, delta: Delta, positions: RangeSet) -> None:
        """All of a delta has died."""
        self.live_bytes -= delta.live_bytes
        self.index.unfold(delta, [])
        if delta.stored:
            delta.segment.references += 1
            inside = RangeSet(positions.intersection(delta.first, delta.last))
            # What was lost has given its reference back.
            inside.subtract(self.missing.intersection(delta.first, delta.last))
            self.condemned.append(Condemned(delta.segment, inside, self.cuts, self._gate()))
        self._on_emptied(delta.segment)

    def give_back(self, condemned: Condemned, entries: list[Entry]) -> None:
        """The references of a dead segment have been read."""
        condemned.segment.references -= 1
        for entry in entries:
            if entry.location is not None:
                self._host.messages(transient=entry.transient).release(entry.location)
        self._on_emptied(condemned.segment)

    def _release(self, entry: Entry) -> None:
        """An entry has died."""
        place = entry.location
        if place is not None and entry.transient:
            # Not written yet, it never will be.
            self._host.messages(transient=True).release(place)
        elif place is not None:
            # Not before it is durable that the message is gone: it may come back, and
            # would find its body deleted.
            self._releasing.append(place)
        self._left(entry)

    def _left(self, entry: Entry) -> None:
        """An entry is in the index no more."""
        if entry is self._recent:
            self._recent = self._recent_block = None
        if entry.file is not None:
            self._on_emptied(entry.file)

    def take_releases(self) -> list[Location]:
        """Persistent bodies that may be released when what was appended so far is durable."""
        taken, self._releasing = self._releasing, []
        return taken

    def released(self, places: list[Location]) -> None:
        """What made these superfluous is durable."""
        store = self._host.messages(transient=False)
        for place in places:
            store.release(place)

    def replace(self, entries: list[Entry], parts: list[Entry]) -> None:
        """The index records of `entries`, which follow one another, are those of `parts` now.

        Those in the message store come one by one, so that the parts have the same location.
        """
        for part in parts[1:]:
            if part.location is not None:
                self._host.messages(transient=part.transient).share(part.location)
        self.index.replace(entries, parts)
        for entry in entries:
            entry.block = None
            self._left(entry)
        if self._excess and self.lazy:
            self._excess.extend(parts)
        self._account()

    def clear(self) -> None:
        """The queue is deleted: gives back its memory and references."""
        for delta in [*self.index.deltas.values()]:
            inside = RangeSet(self.live.intersection(delta.first, delta.last))
            self._condemn(delta, inside)
        for entry in self.index.clear():
            # A thread may still be reading it.
            entry.live = 0
            if entry.location is not None:
                self._host.messages(transient=entry.transient).release(entry.location)
        self.released(self.take_releases())
        self.paged.clear()
        self._paging.clear()
        self._excess.clear()
        self._account()

    # -- another state in the place of this one

    def install(self, state: QueueState, keep_below: int) -> None:
        """Keeps the bodies below `keep_below` that are live in `state`; the rest is missing."""
        live = state.live
        for delta in [*self.index.deltas.values()]:
            part = (delta.first, delta.last)
            same = live.intersection(*part) == self.live.intersection(*part)
            if not same or delta.last >= keep_below or self.missing.intersection(*part):
                self.unfold(delta)
        self.live = live
        self.next_position = state.next_position
        self._fetched = None
        self._ahead_at = 0
        self._excess.clear()
        self.missing = live.copy()
        deltas = [*self.index.deltas.values()]
        for delta in deltas:
            self.index.unfold(delta, [])
        self.live_bytes = 0
        for entry in self.index.clear():
            self._reinstall(entry, keep_below, state.transient)
        for delta in deltas:
            self.index.put(delta)
            self.live_bytes += delta.live_bytes
            self.missing.remove(delta.first, delta.last)
        self._account()

    def _reinstall(self, entry: Entry, keep_below: int, transient: RangeSet) -> None:
        parts: list[Range] = []
        if entry.first < keep_below:
            entry.trim(min(entry.last, keep_below - 1))
            parts = self.live.intersection(entry.first, entry.last)
        if entry.transient and not all(transient.contains_all(*part) for part in parts):
            # Of what the ring takes for persistent a body in memory only is no body.
            parts = []
        entry.live = sum(last - first + 1 for first, last in parts)
        if not parts:
            entry.block = None
            self._release(entry)
            return
        self.index.add(entry)
        for low, high in parts:
            self.missing.remove(low, high)
            self.live_bytes += entry.bytes_of(low, high)

    # -- reading

    def parts(self, first: int, last: int) -> Iterator[tuple[Entry, int, int]]:
        """Live positions of `first..last` that are not missing, with their entries, in order.

        Unfolds what it comes to.
        """
        while first <= last:
            deltas = self.index.folded(first, last) if self.index.deltas else []
            stop = min(last, deltas[0].first - 1) if deltas else last
            if first <= stop:
                for entry in self.index.overlapping(first, stop):
                    low, high = max(first, entry.first), min(stop, entry.last)
                    for a, b in self.live.intersection(low, high):
                        yield entry, a, b
            if not deltas:
                return
            first = max(first, deltas[0].first)
            self.unfold(deltas[0])

    def bytes_in(self, first: int, last: int) -> int:
        """Body bytes of the live messages of `first..last` that are not missing."""
        if first > last:
            return 0
        total = 0
        for delta in self.index.folded(first, last):
            if self._covers(delta, first, last):
                total += delta.live_bytes
            else:
                self.unfold(delta)
        for entry in self.index.overlapping(first, last):
            low, high = max(first, entry.first), min(last, entry.last)
            if low == entry.first and high == entry.last and entry.live == entry.count:
                total += entry.body_bytes
            else:
                total += sum(entry.bytes_of(a, b) for a, b in self.live.intersection(low, high))
        return total

    def block_of(self, entry: Entry, *, keep: bool) -> Block:
        """The block of an entry, from memory or disk. `keep`: it is wanted again soon.

        Raises `CorruptError`; the positions are missing from then on.
        """
        if entry.block is not None:
            return entry.block
        if entry is self._recent and self._recent_block is not None:
            return self._recent_block
        try:
            block = read_block(self._host.disk, entry, self._host.messages)
        except CorruptError as error:
            self.lose(entry, error.report)
            raise
        self._host.counters.blocks_read += 1
        self.blocks_read += 1
        if keep and not self._over():
            self.index.attach(entry, block)
            self._account()
        else:
            self._recent, self._recent_block = entry, block
        return block

    def fetched(self, next_position: int, count: int) -> None:
        """A consumer was given `count` messages before `next_position`."""
        self.rates.delivered(count)
        self._fetched = next_position
        if next_position >= self._ahead_at:
            self._host.mark_reading(self)

    def requeued(self, first: int) -> None:
        """Messages from `first` on may be fetched again."""
        self._returned = True
        if self._fetched is not None and first < self._fetched:
            self._fetched = first
            self._ahead_at = 0

    def plan_ahead(self) -> AheadJob | None:
        """What to read next, or None: it is all there, or on its way."""
        if self._ahead is not None or self._fetched is None:
            return None
        window = self._host.limits.read_ahead_bytes
        job = AheadJob(self)
        head = position = self.head
        ahead = 0
        stop = _END
        deltas = self.index.folded(head, self.next_position) if self.index.deltas else []
        if deltas:
            stop = deltas[0].first - 1
        middle = head
        for entry in self.index.overlapping(head, stop) if head <= stop else ():
            ahead += entry.body_bytes
            position = entry.last + 1
            if ahead <= window // 2:
                middle = position
            if entry.block is None and entry.durable and entry is not self._recent:
                job.entries.append(entry)
            if ahead >= window:
                break
        if ahead < window and deltas:
            self._plan_unfold(job, deltas[0])
        self._ahead_at = max(middle, head + 1)
        if not job.entries and job.delta is None:
            return None
        self._ahead = job
        return job

    def _plan_unfold(self, job: AheadJob, delta: Delta) -> None:
        part = (delta.first, delta.last)
        job.delta = delta
        job.live = RangeSet(self.live.intersection(*part))
        job.missing = RangeSet(self.missing.intersection(*part))
        job.cuts = self.cuts

    def read_done(self, job: AheadJob) -> None:
        """`job` has been done; what has died meanwhile is left."""
        self._ahead = None
        for entry, block in zip(job.entries, job.blocks, strict=True):
            if not entry.live or entry.block is not None:
                continue
            if isinstance(block, CorruptionReport):
                self.lose(entry, block)
                continue
            self._host.counters.blocks_read += 1
            self.blocks_read += 1
            self.index.attach(entry, block)
        delta = job.delta
        if delta is not None and self.index.deltas.get(delta.segment.number) is delta:
            self._unfold_with(delta, job.unfolded, job.reports)
            self._host.mark_reading(self)
        self._account()

    def read_failed(self, job: AheadJob) -> None:
        """`job` could not be done."""
        if self._ahead is job:
            self._ahead = None

    def lose(self, entry: Entry, report: CorruptionReport) -> None:
        """The bodies of an entry can't be read: they are missing now."""
        self.corruptions.append(report)
        for low, high in self.live.intersection(entry.first, entry.last):
            self.live_bytes -= entry.bytes_of(low, high)
            self.missing.add(low, high)
        self.index.discard(entry)
        entry.block = None
        self._release(entry)
        self._account()

    # -- folding

    def unfold(self, delta: Delta) -> None:
        """Reads the entries of a delta. What can't be read is missing from then on."""
        found, reports = load_segment(
            self._host.disk, delta.segment, self.live, self.missing, self.cuts
        )
        self._unfold_with(delta, found, reports)

    def _unfold_with(
        self, delta: Delta, found: list[Entry], reports: list[CorruptionReport]
    ) -> None:
        self.corruptions += reports
        entries: list[Entry] = []
        lost = RangeSet(self.live.intersection(delta.first, delta.last))
        lost.subtract(self.missing.intersection(delta.first, delta.last))
        size = 0
        for entry in found:
            parts = self.live.intersection(entry.first, entry.last)
            entry.live = sum(b - a + 1 for a, b in parts)
            lost.subtract(parts)
            size += sum(entry.bytes_of(a, b) for a, b in parts)
            if entry.live:
                entries.append(entry)
        self.index.unfold(delta, entries)
        self.missing.update(lost)
        self.live_bytes += size - delta.live_bytes
        if not entries:
            self._on_emptied(delta.segment)
        self._account()

    def fold(self) -> None:
        """Folds segments, newest first, while there are more betas than are permitted.

        One at once, the others when the host calls `reduce_some`.
        """
        if self._fold_one():
            self._host.mark_reducing(self)
        self._account()

    def _fold_one(self) -> bool:
        """Folds the newest segment that may be; returns False if there is none."""
        index = self.index
        permitted = paging.permitted_betas(index.messages, self.target)
        if self.lazy or self._over():
            permitted = paging.permitted_betas(index.messages, 0)
        if index.messages - index.messages_in_memory <= permitted:
            return False
        first = self.head // SEGMENT_POSITIONS
        for number in sorted(self.segments, reverse=True):
            if number <= first:
                break
            segment = self.segments[number]
            if number not in index.deltas and self._may_fold(segment):
                index.fold(segment, self.live)
                return True
        return False

    def _may_fold(self, segment: DataFile) -> bool:
        first = segment.number * SEGMENT_POSITIONS
        last = first + SEGMENT_POSITIONS - 1
        if not segment.references or last >= self.next_position:
            return False
        overlapping = self.index.overlapping(first, last)
        if not all(entry.file is segment and entry.durable for entry in overlapping):
            return False
        for entry in self.index.overlapping(first, last):
            if entry.block is not None:
                self.index.detach(entry)
        return True

    # -- memory

    def durable(self, entries: list[Entry]) -> None:
        """These are on disk now. Lets go of them if the queue has more than it should."""
        index = self.index
        for entry in entries:
            entry.durable = True
            if (
                entry.block is not None
                and entry.live
                and (self.lazy or index.messages_in_memory > self.target or self._over())
            ):
                index.detach(entry)
                self._account()

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
            self._host.mark_reducing(self)

    def _to_release(self, excess: float) -> Iterable[Entry]:
        if self.lazy:
            # All of it, in any order.
            return [entry for entry in self.index if entry.block is not None]
        rates = self.rates
        acks_first = rates.deliver - rates.ack > rates.publish - rates.deliver
        return paging.to_release([*self.index], self.head, excess, acks_first=acks_first)

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
        self._account()
        return more

    def _excess_messages(self) -> float:
        """How many messages too many are in memory."""
        excess = self.index.messages_in_memory - (0 if self.lazy else self.target)
        over = self._host.counters.cache_bytes - self._host.limits.cache_bytes_max
        if over > 0 and self.index.memory_bytes:
            share = over / self.index.memory_bytes
            excess = max(excess, share * self.index.messages_in_memory)
        return excess

    def let_go(self, entry: Entry) -> None:
        """Alpha to beta; of a transient message, on its way to that."""
        if entry.durable:
            self.index.detach(entry)
        elif entry.transient and entry.location is None:
            assert entry.block is not None
            store = self._host.messages(transient=True)
            entry.location, _ = store.put(entry.block)
            self._paging.append(entry)
            self._host.mark_paging(self)

    def page_out_done(self) -> bool:
        """The transient store has been written. Returns whether more is on its way."""
        store = self._host.messages(transient=True)
        waiting: list[Entry] = []
        for entry in self._paging:
            if entry.location is None or not entry.live:
                continue
            if not store.is_durable(entry.location):
                waiting.append(entry)
                continue
            entry.durable = True
            self.paged.append(entry)
            if entry.block is not None:
                self.index.detach(entry)
        self._paging = waiting
        self._account()
        return bool(waiting)

    def _over(self) -> bool:
        return self._host.counters.cache_bytes > self._host.limits.cache_bytes_max

    def _account(self) -> None:
        now = self.index.memory_bytes
        self._host.counters.cache_bytes += now - self._accounted
        self._accounted = now

    def check(self) -> None:
        """Asserts the invariants at the top."""
        self.missing.check()
        self.index.check(self.live, self.missing)
        total = sum(delta.live_bytes for delta in self.index.deltas.values())
        for entry in self.index:
            total += sum(
                entry.bytes_of(a, b) for a, b in self.live.intersection(entry.first, entry.last)
            )
            assert entry.durable or entry.block is not None
        assert self.live_bytes == total, (self.live_bytes, total)
        chain = paging.chain(self.index, self.index.deltas.values(), self.head)
        paging.check(chain, fetched=False)
        assert self._accounted == self.index.memory_bytes
