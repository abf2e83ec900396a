"""The messages of a queue that leave it as dead letters: a part of its replicated state.

A *doomed* message is live until its dead-letter target has it, and no consumer gets it any more.
Each has a *letter*, a number of its own: 1, 2 and so on, in the order in which messages of this
queue were doomed. Letters leave in that order, and the target recognises a letter that comes
twice by its number, as it does with any producer's sequences. So a number is never given again, as
long as the queue's log goes on: a target would take the second message for the first.

Letters come in order at the end, and go nearly in order at the front, so they are one list, by
letter. A removal looks at the list from its front, as far as the last letter that it takes: no
further than what a master had under way.

Invariants (`check`):
* the runs are in order of their letters, below `next_letter`, and no position is in two of them;
* `positions` are those of the runs, and the sums are theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from ringmq_base.ranges import Range, RangeSet, SummedRangeSet, numbers_in
from ringmq_base.values import value
from ringmq_node.model.deaths import DeathReason

# The size of a run as bytes. Unsigned, little-endian.
RUN_BYTES = 25
_RUN = struct.Struct("<QQQB")


@value
class DoomedRun:
    """The messages `first` to `last`, whose letters are `letter` and those behind it."""

    letter: int
    first: int
    last: int
    reason: DeathReason

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def positions(self) -> Range:
        return self.first, self.last

    def is_before(self, run: DoomedRun) -> bool:
        """Whether both together are one run."""
        ends = self.last + 1, self.letter + self.count, self.reason
        return ends == (run.first, run.letter, run.reason)

    def part(self, first: int, last: int) -> DoomedRun:
        """Some of its messages, with the letters that they have."""
        return replace(self, letter=self.letter + first - self.first, first=first, last=last)

    def sums(self) -> tuple[int, int]:
        """What it adds to the digest: the same, however its messages are parted into runs."""
        count, steps = self.count, self.count * (self.count - 1) // 2
        squares = steps * (2 * count - 1) // 3
        letters = count * self.letter + steps
        products = count * self.letter * self.first + (self.letter + self.first) * steps + squares
        return products, letters * self.reason.code


class Doomed:
    """Mutable. Two are equal if the same ops have made them."""

    __slots__ = ("_products", "_reasons", "next_letter", "positions", "runs")

    def __init__(self, next_letter: int = 1, runs: Sequence[DoomedRun] = ()) -> None:
        self.next_letter = next_letter
        self.runs = [*runs]
        self.positions = SummedRangeSet()
        self.positions.update([run.positions for run in runs])
        self._products = self._reasons = 0
        self._add_sums(runs, 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Doomed):
            return NotImplemented
        return self.next_letter == other.next_letter and self.runs == other.runs

    __hash__ = None  # type: ignore[assignment]  # mutable

    def copy(self) -> Doomed:
        twin = Doomed(self.next_letter)
        # Not by the runs: for 200 000 of them their sums alone would hold the loop for long.
        twin.runs = self.runs.copy()
        twin.positions.assign(self.positions)
        twin._products, twin._reasons = self._products, self._reasons
        return twin

    def doom(self, ranges: Iterable[Range], reason: DeathReason) -> None:
        """These live messages get the next letters. One that has a letter gets another."""
        ranges = [*ranges]
        self.remove(ranges)
        added: list[DoomedRun] = []
        for first, last in ranges:
            run = DoomedRun(self.next_letter, first, last, reason)
            added.append(run)
            tail = self.runs[-1] if self.runs else None
            if tail is not None and tail.is_before(run):
                # Else a message that is rejected by itself would be a run for ever.
                self.runs[-1] = replace(tail, last=last)
            else:
                self.runs.append(run)
            self.next_letter += run.count
        self.positions.update(ranges)
        self._add_sums(added, 1)

    def remove(self, ranges: Iterable[Range]) -> None:
        """These are doomed no more; any that aren't are passed over."""
        hit = [part for each in ranges for part in self.positions.intersection(*each)]
        if not hit:
            return
        gone = RangeSet(hit)
        left = len(gone)
        seen = 0
        kept: list[DoomedRun] = []
        for run in self.runs:
            if not left:
                break
            seen += 1
            left -= gone.count_in(*run.positions)
            rest = RangeSet([run.positions]).without(gone.intersection(*run.positions))
            kept += [run.part(*each) for each in rest]
        self._add_sums(self.runs[:seen], -1)
        self._add_sums(kept, 1)
        self.runs[:seen] = kept
        self.positions.subtract(gone)

    def since(self, letter: int) -> list[DoomedRun]:
        """The runs that were doomed from this letter on."""
        found: list[DoomedRun] = []
        for run in reversed(self.runs):
            if run.letter < letter:
                if run.letter + run.count > letter:
                    found.append(run.part(run.first + letter - run.letter, run.last))
                break
            found.append(run)
        return found[::-1]

    # -- as bytes: each run is a letter, its first and its last position, and the reason's code

    def pack(self, start: int = 0, stop: int | None = None) -> bytes:
        """The runs from index `start` to before `stop`."""
        return b"".join(
            _RUN.pack(run.letter, run.first, run.last, run.reason.code)
            for run in self.runs[start:stop]
        )

    @classmethod
    def unpack(cls, next_letter: int, data: bytes | memoryview) -> Doomed:
        """Raises `ValueError` if these bytes are no runs."""
        found = cls(next_letter)
        found.extend_packed(data)
        return found

    def extend_packed(self, data: bytes | memoryview) -> None:
        """Adds packed runs, whose letters come after all that are here. Raises `ValueError`, and
        adds none, if these bytes are no runs."""
        if len(data) % _RUN.size:
            raise ValueError(f"doomed runs of {len(data)} bytes, not of a multiple of {_RUN.size}")
        runs = [
            DoomedRun(letter, first, last, DeathReason.of_code(code))
            for letter, first, last, code in _RUN.iter_unpack(data)
        ]
        if any(run.first > run.last for run in runs):
            raise ValueError("a doomed run ends before its start")
        self.runs += runs
        self.positions.update([run.positions for run in runs])
        self._add_sums(runs, 1)

    @property
    def sums(self) -> tuple[object, ...]:
        """They tell two apart without a look at their runs."""
        return self.next_letter, self.positions.sums, self._products, self._reasons

    def _add_sums(self, runs: Iterable[DoomedRun], sign: int) -> None:
        for run in runs:
            products, reasons = run.sums()
            self._products += sign * products
            self._reasons += sign * reasons

    def check(self) -> None:
        self.positions.check()
        assert all(a.letter + a.count <= b.letter for a, b in pairwise(self.runs))
        assert not self.runs or self.runs[-1].letter + self.runs[-1].count <= self.next_letter
        assert self.next_letter >= 1
        assert all(run.first <= run.last for run in self.runs)
        positions = RangeSet(run.positions for run in self.runs)
        assert positions == self.positions
        assert len(positions) == numbers_in(run.positions for run in self.runs)
        assert self.sums == Doomed(self.next_letter, self.runs).sums
