"""What another state, put in the place of a queue's own, changes for the bodies that are here.

A replica that comes back has bodies of its own, and gets the ring's state. Both may have hundreds
of thousands of ranges, and to compare them takes a fifth of a second when many differ. So the
changes are computed first, in `steps` of a few ms, and `apply` only carries them out, in the piece
of work that installs the state.

Nothing is changed by the steps, but for deltas that are unfolded. Others run between them: a flush
gives entries new places, a scrub finds a damaged body. `are_current` tells whether anything has
changed that the steps have looked at. Then the changes have to be computed anew.

The last steps make the index as it will be, and its sums (`Settlement`), so that an entry that dies
costs the install next to nothing. These also depend on which blocks are in memory. Where a block
has come or gone since, the changes still hold, and only the settlement is made anew by `apply`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range, RangeSet, SummedRangeSet
from ringmq_base.values import value
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.entries import Delta, IndexEntry
from ringmq_node.storage.queue.index import Settlement

# Ranges of one set that are looked at in one step: some 4 ms, if all of them differ.
WINDOW_RANGES = 1024
# Entries that are looked at in one step.
_ENTRIES_STEP = 4096
# Ranges are few if there are so many times as many entries.
_FEW = 16
# How often changes are computed in pieces, if something changes meanwhile.
_ATTEMPTS_MAX = 3


@value
class _Judged:
    """An entry, and how many of its positions are live in the new state."""

    entry: IndexEntry
    live: int


class BodyChanges:
    """To the bodies of one queue, by one state: `apply` is allowed after all `steps`.

    Bodies for positions below `keep_below` that are live in `state` stay; other live positions are
    missing. In a `durable` queue a body that is on no disk is kept only for a transient message.
    """

    def __init__(
        self, bodies: Bodies, state: ReplicatedState, keep_below: int, *, durable: bool
    ) -> None:
        self.state = state
        self.keep_below = keep_below
        self._bodies = bodies
        self._durable = durable
        # As they were when the steps have looked at them.
        self._sets = [bodies.live, state.live, state.transient]
        self._sums = [_sums(each) for each in self._sets]
        self._ends = bodies.next_position, state.next_position
        self._missing_before = RangeSet()
        self._deltas = [*bodies.index.deltas.values()]
        self._entries: list[IndexEntry] = []
        self._recounts = bodies.index.recounts
        # What the steps have found. Positions that only the old state has, and only the new one.
        self._gone, self._come = RangeSet(), RangeSet()
        self._judged: list[_Judged] = []
        # Bytes of bodies that the queue has more, or fewer.
        self._more_bytes = 0
        # Positions of judged entries that live on, and live ones of those that don't.
        self._covered, self._uncovered = RangeSet(), RangeSet()
        self._missing = RangeSet()
        self._settlement = Settlement(bodies.index.recounts)

    def are_current(self, state: ReplicatedState, keep_below: int) -> bool:
        """Whether they are of this state, and nothing that the steps have looked at has changed
        since."""
        bodies = self._bodies
        sets = [bodies.live, state.live, state.transient]
        return (
            (state is self.state and keep_below == self.keep_below)
            and all(now is then for now, then in zip(sets, self._sets, strict=True))
            # A set that has changed is still the same object.
            and [_sums(each) for each in sets] == self._sums
            and (bodies.next_position, self.state.next_position) == self._ends
            and bodies.missing == self._missing_before
            and [*bodies.index.deltas.values()] == self._deltas
            and (bodies.index.recounts == self._recounts or [*bodies.index] == self._entries)
        )

    # -- what is to be done

    def steps(self) -> Iterator[None]:
        """Computes the changes: each step is a few ms of work. Raises `ReadError`."""
        bodies = self._bodies
        yield from self._unfold()
        self._missing_before = bodies.missing.copy()
        self._deltas = [*bodies.index.deltas.values()]
        self._entries = [*bodies.index]
        self._recounts = bodies.index.recounts
        live = self.state.live
        if not self._entries and not self._deltas:
            # A replica without messages, which may get a state of very many ranges.
            self._missing = live.part(live.first, live.last) if live else RangeSet()
            self._settlement = Settlement(bodies.index.recounts)
            return
        yield
        for first, last in _windows(bodies.live, live):
            gone, come = bodies.live.part(first, last).changes_to(live.part(first, last))
            self._gone.update(gone)
            self._come.update(come)
            yield
        yield from self._judge()
        yield from self._find_missing()
        yield from self._settle()

    def _unfold(self) -> Iterator[None]:
        """A delta stays folded only if all its messages live on, and all have their bodies: its
        counts then hold under the new state, too."""
        deltas = self._bodies.index.deltas
        looked_at: set[Delta] = set()
        # Meanwhile the pager folds others, one for several that are unfolded. The last ones are a
        # few, and come in one piece: so none is left when the entries are looked at.
        for is_last in (False, False, True):
            for delta in [delta for delta in deltas.values() if delta not in looked_at]:
                if deltas.get(delta.segment.number) is delta:
                    looked_at.add(delta)
                    self._unfold_unless_same(delta)
                    if not is_last:
                        yield

    def _unfold_unless_same(self, delta: Delta) -> None:
        bodies = self._bodies
        part = (delta.first, delta.last)
        same = self.state.live.bounds(*part) == bodies.live.bounds(*part)
        if not same or delta.last >= self.keep_below or bodies.missing.meets(*part):
            bodies.unfold(delta)

    def _judge(self) -> Iterator[None]:
        """The entries that the state concerns; all others stay as they are. Most do, as a rule, and
        there may be a hundred thousand of them."""
        gone, come = self._gone, self._come
        entries = self._entries
        are_few = _FEW * (gone.range_count + come.range_count) < len(entries)
        met: set[IndexEntry] = set()
        for span in chain(gone, come) if are_few else ():
            met.update(self._bodies.index.overlapping(*span))
            yield
        # Positions from `keep_below` on were given out by a master whose ops did not survive. In
        # the new state they are other messages.
        tail = bisect_left(entries, self.keep_below, key=attrgetter("last"))
        for start in range(0, len(entries), _ENTRIES_STEP):
            for at, entry in enumerate(entries[start : start + _ENTRIES_STEP], start):
                first, last = entry.first, entry.last
                if (
                    at >= tail
                    or (entry.transient and self._durable)
                    or entry in met
                    or (not are_few and (gone.meets(first, last) or come.meets(first, last)))
                ):
                    self._judge_entry(entry)
                    yield
            yield

    def _judge_entry(self, entry: IndexEntry) -> None:
        old, new, transient = self._bodies.live, self.state.live, self.state.transient
        is_whole = entry.live == entry.count
        self._more_bytes -= entry.body_bytes if is_whole else entry.living(old)[1]
        last = min(entry.last, self.keep_below - 1)
        live = size = 0
        if entry.first <= last:
            kept = entry
            if last < entry.last:
                kept = replace(entry)
                kept.trim(last)
            live, size = kept.living(new)
            if self._durable and entry.transient and transient.count_in(entry.first, last) != live:
                # The ring counts a persistent message as safe on this replica's disk. A body that
                # is only in memory doesn't make it so: it has to be fetched and written.
                self._uncovered.update(new.intersection(entry.first, last))
                live = size = 0
        if live:
            self._covered.add(entry.first, last)
        self._more_bytes += size
        self._judged.append(_Judged(entry, live))

    def _find_missing(self) -> Iterator[None]:
        """Which live positions have no body: those that had none, those that are live again and in
        no entry, those whose bodies don't count any more, and those of other messages."""
        before, gone, missing = self._missing_before, self._gone, self._missing
        sets = [self._come, self._uncovered] + ([before, gone] if before else [])
        for first, end in _windows(*sets):
            last = min(end, self.keep_below - 1)
            if first > last:
                break
            lacking = before.part(first, last)
            lacking.subtract(gone.intersection(first, last) if lacking else [])
            fresh = self._come.part(first, last)
            fresh.update(self._uncovered.intersection(first, last))
            lacking.update(fresh.without(self._covered.intersection(first, last)).ranges())
            missing.update(lacking)
            yield
        live = self.state.live
        if live and self.keep_below <= live.last:
            missing.update(live.part(self.keep_below, live.last))

    def _settle(self) -> Iterator[None]:
        """The index with the judged entries' counts. The others keep theirs."""
        self._settlement = settlement = Settlement(self._bodies.index.recounts)
        # In the order of the entries.
        judged = iter(self._judged)
        next_judged = next(judged, None)
        for start in range(0, len(self._entries), _ENTRIES_STEP):
            for entry in self._entries[start : start + _ENTRIES_STEP]:
                if next_judged is None or entry is not next_judged.entry:
                    settlement.keep(entry)
                    continue
                settlement.change(entry, next_judged.live)
                next_judged = next(judged, None)
            yield
        assert next_judged is None

    # -- and done

    def compute(self) -> None:
        """All steps in one piece of work. Raises `ReadError`."""
        for _ in self.steps():
            pass

    def apply(self) -> None:
        """Changes the bodies. Their releases and the files that are left empty wait for the round
        that makes the new state durable: before that a power cut brings back the old one."""
        bodies, index = self._bodies, self._bodies.index
        bodies.live, bodies.next_position = self.state.live, self.state.next_position
        # Positions may mean other messages from here on.
        bodies.next_fetch = 0
        bodies.missing = self._missing
        bodies.live_bytes += self._more_bytes
        if self._settlement.recounts != index.recounts:
            for _ in self._settle():
                pass
        bodies.settle(self._settlement)
        # Only of the last one: all behind it have died.
        for entry, _ in self._settlement.counts[-1:]:
            if entry.last >= self.keep_below:
                index.trim(entry, self.keep_below - 1)
        bodies.account()

    def let_go(self) -> Iterator[None]:
        """Lets go, bit by bit, of what has died: to free 100 000 entries and their blocks takes
        50 ms. After `apply`; each step is some ms of work at most."""
        settled = self._settlement
        held: list[Any]
        for held in (settled.blocks, settled.died, settled.stored, self._judged, self._entries):
            while held:
                del held[-_ENTRIES_STEP:]
                yield


async def computed_in_pieces(make: Callable[[], BodyChanges]) -> BodyChanges:
    """The changes that `make` returns, after their steps. Raises `ReadError`."""
    for _ in range(_ATTEMPTS_MAX):
        changes = make()
        pieces = Pieces()
        for _ in changes.steps():
            await pieces.step()
        if changes.are_current(changes.state, changes.keep_below):
            break
    await pieces.step()
    return changes


def _windows(*sets: RangeSet) -> Iterator[Range]:
    """All positions of `sets` in ranges, with so many ranges of each set in one of them at most."""
    cuts = sorted({first for ranges in sets for first in ranges.firsts(WINDOW_RANGES)})
    if cuts:
        end = max(ranges.last for ranges in sets if ranges) + 1
        yield from ((first, stop - 1) for first, stop in pairwise([*cuts, end]))


def _sums(ranges: RangeSet) -> tuple[int, ...]:
    assert isinstance(ranges, SummedRangeSet)
    return ranges.sums
