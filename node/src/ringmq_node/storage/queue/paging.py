"""The rules of paging: what a queue keeps in memory, and what it lets go of first. Pure.

After `rabbit_variable_queue` and `rabbit_memory_monitor`, on entries instead of messages. From the
message that is fetched next to the newest one, a queue is

    Q4 alphas | Q3 betas and gammas | delta | Q2 betas and gammas | Q1 alphas

An alpha has its body in memory. A beta has it on disk, a gamma its index entry as well. Of a delta
only the counts of whole segments are in memory. Messages before Q4 are *pending*: consumers have
them.

* The memory monitor says for how many *seconds* a queue may hold messages in memory. Times the
  queue's rates this is a number of messages, its target.
* Above its target a queue lets go of the bodies that are needed last: of pending messages the
  newest first; of ready ones from Q1's head, then from Q4's tail.
* Above the number of betas that it may have, a queue folds whole segments into deltas. The segments
  at its head stay.

Invariants (`check`): Q1 not empty => Q3 or delta not empty; Q2 not empty => delta not empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS

HALF_LIFE_S = 5.0
# Below this many messages per second a queue counts as idle, and its messages last for ever.
RATE_MIN = 0.01


class PagedEntry(Protocol):
    """An entry of the index, as far as these rules look at it. It lives."""

    @property
    def first(self) -> int:
        """The first position."""

    @property
    def last(self) -> int:
        """The last position."""

    @property
    def live(self) -> int:
        """How many of the positions are live."""

    @property
    def block(self) -> object | None:
        """The bodies, while they are in memory."""


class PagedSegment(Protocol):
    """A segment that is folded into a delta."""

    @property
    def first(self) -> int:
        """The segment's first position, live or not."""

    @property
    def last(self) -> int:
        """The segment's last position, live or not."""

    @property
    def live(self) -> int:
        """How many live messages it has."""


E = TypeVar("E", bound=PagedEntry)


class Rates:
    """Messages per second in, out to consumers, and acknowledged: moving means."""

    def __init__(self) -> None:
        self.publish = 0.0
        self.deliver = 0.0
        self.ack = 0.0
        self._counts = [0, 0, 0]
        self._updated_at: float | None = None
        self._held_before = 0

    def begin(self, now: float | None) -> None:
        """The next counts come after `now`, in seconds; None: the time isn't known."""
        self._updated_at = now

    def end_if_still(self) -> bool:
        """Whether nothing moves any more. Then the means are 0, and `update` needn't be called
        before `begin`."""
        if any(self._counts) or self.total >= RATE_MIN:
            return False
        self.publish = self.deliver = self.ack = 0.0
        return True

    def published(self, count: int) -> None:
        self._counts[0] += count

    def delivered(self, count: int) -> None:
        self._counts[1] += count

    def acknowledged(self, count: int) -> None:
        self._counts[2] += count

    @property
    def total(self) -> float:
        return self.publish + self.deliver + self.ack

    def update(self, now: float) -> None:
        """Updates the means by the counts since the last call. `now` in seconds."""
        before, self._updated_at = self._updated_at, now
        if before is None:
            # The time in which these came together is not known.
            self._counts = [0, 0, 0]
        if before is None or now <= before:
            return
        passed = now - before
        keep = math.exp(passed * math.log(0.5) / HALF_LIFE_S)
        new = [(1 - keep) * count / passed for count in self._counts]
        self.publish = keep * self.publish + new[0]
        self.deliver = keep * self.deliver + new[1]
        self.ack = keep * self.ack + new[2]
        self._counts = [0, 0, 0]

    def duration_s(self, held: int) -> float:
        """For how many seconds `held` messages in memory last; infinite if nothing moves."""
        mean = (held + self._held_before) / 2
        self._held_before = held
        return mean / self.total if self.total >= RATE_MIN else math.inf

    def target(self, duration_s: float) -> float:
        """How many messages may be in memory, if they are to last for `duration_s`."""
        if math.isinf(duration_s):
            return math.inf
        return duration_s * self.total if self.total >= RATE_MIN else 0.0


def to_release(entries: Sequence[E], head: int, excess: float, *, acks_first: bool) -> list[E]:
    """The entries whose blocks to let go of, so that `excess` messages fewer are in memory.

    `entries` are all living ones in order; `head` is the position that is fetched next. With
    `acks_first`, pending messages go before ready ones.
    """
    pending = [entry for entry in entries if entry.last < head and entry.block is not None]
    ready = [entry for entry in entries if entry.last >= head]
    on_disk = [index for index, entry in enumerate(ready) if entry.block is None]
    q1_at = on_disk[-1] + 1 if on_disk else len(ready)
    q1 = ready[q1_at:]
    rest = [entry for entry in ready[:q1_at] if entry.block is not None]
    pending.reverse()
    rest.reverse()
    order = [*pending, *q1, *rest] if acks_first else [*q1, *rest, *pending]
    released: list[E] = []
    for entry in order:
        if excess <= 0:
            break
        excess -= entry.live
        released.append(entry)
    return released


def permitted_betas(betas: int, target: float) -> float:
    """How many messages may have their index entry in memory and not their body.

    With much room all of them, with little room one segment's worth: few deltas are better than
    many betas, because the headers of a folded segment are read again only once.
    """
    if math.isinf(target):
        return math.inf
    if not target:
        return SEGMENT_POSITIONS
    return max(SEGMENT_POSITIONS, betas - betas * betas / (betas + target))


@dataclass(frozen=True, slots=True)
class Chain:
    """How many messages are in each part of the queue. The parts are drawn above."""

    pending: int
    q4: int
    q3: int
    delta: int
    q2: int
    q1: int


def chain(entries: Iterable[E], deltas: Iterable[PagedSegment], head: int) -> Chain:
    """The parts of a queue. `entries` are in order, and all living."""
    folded = sorted(deltas, key=lambda delta: delta.first)
    start = folded[0].first if folded else math.inf
    # Entries between two deltas count as Q3: somebody has unfolded them to touch a message, and
    # they will soon be folded again.
    end = folded[-1].last if folded else math.inf
    pending = q4 = q3 = 0
    behind: list[E] = []
    for entry in entries:
        if entry.last < head:
            pending += entry.live
        elif entry.first > end:
            behind.append(entry)
        elif entry.block is not None and not q3 and entry.last < start:
            q4 += entry.live
        elif entry.block is not None and not folded:
            behind.append(entry)
        else:
            q3 += entry.live + sum(held.live for held in behind)
            behind.clear()
    q2 = q1 = 0
    for entry in reversed(behind):
        if entry.block is not None and not q2:
            q1 += entry.live
        else:
            q2 += entry.live
    return Chain(pending, q4, q3, sum(delta.live for delta in folded), q2, q1)


def check(chain: Chain) -> None:
    """Asserts the invariants at the top."""
    if chain.q1:
        assert chain.q3 or chain.delta, chain
    if chain.q2:
        assert chain.delta, chain
