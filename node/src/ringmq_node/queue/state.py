"""The replicated state of a queue: the sum of its ops, the same on every replica.

It is a pure function of the ops, in order of their numbers: two replicas that
have applied the same op have the same state and the same `digest` (guarantee
G5). So `apply` may look at nothing but the state and the op: no clock, no setting of the
node, nothing that only the master knows (such as the messages outstanding with a consumer).

Invariants (`check`):
* `last_number` rises by one with each op; epochs and their starts rise;
* every live, redelivered or transient position is below `next_position`;
* `redelivered`, `transient` and `doomed` hold only live positions, and `counts` only redelivered
  ones;
* each mark of `expiries` has a live position, and `priorities` holds only live positions;
* `producer_times` has the producers of `producers` in the same order, its times rise, and none is
  later than `time_ms`;
* no position at or above `next_position` counts as acknowledged or purged; those of `leases`.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from ringmq_base.ranges import Range, RangeSet, SummedRangeSet
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue import leases
from ringmq_node.queue.counts import DeliveryCounts
from ringmq_node.queue.doomed import Doomed
from ringmq_node.queue.gaps import SequenceGaps
from ringmq_node.queue.leases import ChangeLease, QueueLease
from ringmq_node.queue.marks import Marks
from ringmq_node.queue.ops import (
    Barrier,
    Doom,
    Forget,
    NoteGone,
    NoteTime,
    Op,
    Outline,
    Publish,
    Remove,
    Requeue,
    Use,
)
from ringmq_node.queue.priorities import Priorities

# Producers whose last sequence is remembered. Past this number the queue forgets the one
# whose last publish is the oldest: counted in ops, as replicas' clocks differ.
PRODUCERS_MAX = 10_000
# Starts of epochs that are remembered, to find where two logs part. A replica
# that was away for more epochs than this fetches everything.
EPOCHS_MAX = 64


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The master of `epoch` numbered its ops from `first_number` on, and its messages from
    `first_position` on."""

    epoch: int
    first_number: int
    first_position: int


@dataclass(slots=True)
class ReplicatedState:
    """Mutable; changed only by `begin_epoch` and `apply`, or loaded whole."""

    last_number: int = 0
    next_position: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    # These are `SummedRangeSet`s; whatever else is given is copied into one.
    live: RangeSet = field(default_factory=SummedRangeSet)
    redelivered: RangeSet = field(default_factory=SummedRangeSet)
    transient: RangeSet = field(default_factory=SummedRangeSet)
    # The last sequence of each producer, the one with the oldest publish first.
    producers: dict[bytes, int] = field(default_factory=dict)
    # What `time_ms` was at its last publish.
    producer_times: dict[bytes, int] = field(default_factory=dict)
    # Milliseconds since 1970, as a master has said it last (`NoteTime`); 0: none has.
    time_ms: int = 0
    # How often messages have come back; those that never have are not in it.
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    # Below these, readers have acknowledged, and a purge has removed messages (`NoteGone`).
    acked_end: int = 0
    purged_end: int = 0
    leases: dict[str, QueueLease] = field(default_factory=dict)
    # When messages expire, by their master's clock (`ops.Outline.expires_at_ms`).
    expiries: Marks = field(default_factory=Marks)
    priorities: Priorities = field(default_factory=Priorities)
    # The sequences below a producer's last one that were not published here.
    gaps: SequenceGaps = field(default_factory=SequenceGaps)
    # None: no message was ever doomed.
    doomed: Doomed | None = None
    # Whether the queue has had a consumer. Noted of queues that are deleted without one.
    used: bool = False

    def __post_init__(self) -> None:
        self.live = _summed(self.live)
        self.redelivered = _summed(self.redelivered)
        self.transient = _summed(self.transient)

    def copy(self) -> ReplicatedState:
        """The state as it is now; the caller's own."""
        return ReplicatedState(
            self.last_number,
            self.next_position,
            self.epochs.copy(),
            self.live.copy(),
            self.redelivered.copy(),
            self.transient.copy(),
            self.producers.copy(),
            self.producer_times.copy(),
            self.time_ms,
            self.counts.copy(),
            self.acked_end,
            self.purged_end,
            self.leases.copy(),
            self.expiries.copy(),
            self.priorities.copy(),
            self.gaps.copy(),
            None if self.doomed is None else self.doomed.copy(),
            used=self.used,
        )

    @property
    def epoch(self) -> int:
        """The epoch of the last op, or of the next one if it has begun; 0 before the first."""
        return self.epochs[-1].epoch if self.epochs else 0

    def begin_epoch(self, epoch: int) -> None:
        """Every op from the next one on belongs to `epoch`, until another epoch begins."""
        assert epoch > self.epoch, (epoch, self.epoch)
        self.epochs.append(EpochStart(epoch, self.last_number + 1, self.next_position))
        del self.epochs[:-EPOCHS_MAX]

    def apply(self, number: int, op: Op | Outline) -> list[Range]:
        """Applies the next op; returns the positions that have ceased to be live."""
        # A replica that skips an op, or applies it twice, differs from the others from then
        # on. Nothing would show it before digests are compared or a message is gone.
        assert number == self.last_number + 1, (number, self.last_number)
        gone: list[Range] = []
        match op:
            case Publish() | Outline():
                self._publish(op)
            case Remove(ranges):
                gone = self._remove(ranges)
            case Requeue(ranges, counted):
                self._requeue(ranges, counted=counted)
            case Doom():
                self._doom(op)
            case Barrier():
                pass
            case Forget(producer_ids):
                for producer_id in producer_ids:
                    self.producers.pop(producer_id, None)
                    self.producer_times.pop(producer_id, None)
                    self.gaps.forget(producer_id)
            case NoteTime(time_ms):
                self._note_time(time_ms)
            case NoteGone(acked_end, purged_end):
                # Bounded: a replica that has lost a part of its log may have fewer positions.
                self.acked_end = max(self.acked_end, min(acked_end, self.next_position))
                self.purged_end = max(self.purged_end, min(purged_end, self.next_position))
            case ChangeLease():
                leases.change(self.leases, number, op)
            case Use():
                self.used = True
        # Last: if an assertion above stops this op, its number isn't used up.
        self.last_number = number
        return gone

    def _publish(self, op: Publish | Outline) -> None:
        # Otherwise its master had another state than this replica.
        first, last = op.first_position, op.last_position
        assert first == self.next_position, (first, self.next_position)
        self.next_position = last + 1
        self.live.add(first, last)
        if op.transient:
            self.transient.add(first, last)
        if op.expires_at_ms is not None:
            self.expiries.add(first, last, op.expires_at_ms)
        if op.priority:
            self.priorities.add(op.priority, first, last)
        if op.born_doomed:
            self._doomed_ones().doom([(first, last)], DeathReason.MAXLEN)
        if op.producer_id:
            # Removed and put back, so that the dict is in order of the last publishes and
            # its first entry is the one to forget.
            producer_id, last_sequence = op.producer_id, op.last_sequence
            known = self.producers.pop(producer_id, 0)
            if op.first_sequence != known + 1:
                # Only in a routed session, which a queue gets a part of.
                self.gaps.published(producer_id, known, op.first_sequence, last_sequence)
            self.producers[producer_id] = max(known, last_sequence)
            self.producer_times.pop(producer_id, None)
            self.producer_times[producer_id] = self.time_ms
            if len(self.producers) > PRODUCERS_MAX:
                oldest = next(iter(self.producers))
                del self.producers[oldest], self.producer_times[oldest]
                self.gaps.forget(oldest)

    def _note_time(self, time_ms: int) -> None:
        if time_ms < self.time_ms:
            # This master's clock is behind the one of the master before, or was put back. Times in
            # the future would keep producers for as long as the other clock was wrong.
            for producer_id, used_ms in self.producer_times.items():
                if used_ms > time_ms:
                    self.producer_times[producer_id] = time_ms
        self.time_ms = time_ms

    def _doom(self, op: Doom) -> None:
        parts = [part for each in op.ranges for part in self.live.intersection(*each)]
        # A position that an op names twice gets one letter.
        self._doomed_ones().doom(RangeSet(parts), op.reason)

    def _doomed_ones(self) -> Doomed:
        if self.doomed is None:
            self.doomed = Doomed()
        return self.doomed

    def _remove(self, ranges: tuple[Range, ...]) -> list[Range]:
        gone = [part for each in ranges for part in self.live.intersection(*each)]
        if len(ranges) > 1:
            # A position that an op names twice dies once.
            gone = RangeSet(gone).ranges()
        # Together: one after the other, each would move all ranges behind it.
        for positions in (self.live, self.redelivered, self.transient):
            if positions:
                positions.subtract(gone)
        self.drop_attributes(gone)
        return gone

    def drop_attributes(self, gone: list[Range]) -> None:
        """`gone` have just ceased to be live."""
        self.counts.forget(gone)
        if self.expiries:
            self.expiries.prune(gone, self.live)
        if self.priorities:
            self.priorities.subtract(gone)
        if self.doomed is not None:
            self.doomed.remove(gone)

    def _requeue(self, ranges: tuple[Range, ...], *, counted: bool) -> None:
        live = self.live
        if len(ranges) == 1 and not counted:
            # That of a take-over is one range from the first live position to the last.
            first, last = ranges[0]
            if live and first <= live.first and last >= live.last:
                # Only live positions are redelivered, so these are all of them. Range by range, the
                # take-over of a queue with a hole at every other position would hold the loop.
                self.redelivered.assign(live)
                return
        parts = [part for each in ranges for part in live.intersection(*each)]
        self.redelivered.update(parts)
        if counted:
            # A position that an op names twice has come back once.
            self.counts.came_back(RangeSet(parts).ranges() if len(ranges) > 1 else parts)

    def first_expired(self, first: int, last: int, now_ms: Callable[[], int]) -> Range | None:
        """The first of these positions, and those behind it, that have expired by now. The time is
        asked only if some may expire."""
        if not self.expiries:
            return None
        parts, now = self.expiries.parts(first, last), now_ms()
        return next(((low, high) for low, high, at_ms in parts if at_ms <= now), None)

    def is_same(self, other: ReplicatedState) -> bool:
        """Whether they are equal in all that ops can tell apart; epochs too, unlike `digest`."""
        # Which producer is forgotten next depends on their order, which `==` doesn't look at.
        return self == other and [*self.producers] == [*other.producers]

    def digest(self) -> str:
        """A hash of the whole state but its epochs; 16 hexadecimal digits.

        It costs the same for any number of positions, as their sets keep sums; and some 50 ns for
        each producer.
        """
        hasher = hashlib.blake2b(digest_size=8)
        hasher.update(struct.pack("<QQ", self.last_number, self.next_position))
        for ranges in (self.live, self.redelivered, self.transient):
            hasher.update(repr(_summed(ranges).sums).encode())
        for plane in self.counts.planes:
            hasher.update(repr(plane.sums).encode())
        hasher.update(repr(self.expiries.sums).encode())
        hasher.update(self.priorities.sums())
        producers = self.producers
        hasher.update(array("H", map(len, producers)).tobytes())
        hasher.update(array("Q", producers.values()).tobytes())
        hasher.update(b"".join(producers))
        hasher.update(array("Q", self.producer_times.values()).tobytes())
        hasher.update(struct.pack("<QQQ", self.time_ms, self.acked_end, self.purged_end))
        hasher.update(leases.encode_leases(self.leases[name] for name in sorted(self.leases)))
        if self.gaps:
            hasher.update(self.gaps.pack())
        if self.doomed is not None:
            hasher.update(repr(self.doomed.sums).encode())
        hasher.update(b"used" if self.used else b"")
        return hasher.hexdigest()

    def check(self) -> None:
        for ranges in (self.live, self.redelivered, self.transient):
            ranges.check()
            assert not ranges or ranges.last < self.next_position
        for part in (self.redelivered, self.transient):
            # Often they are equal, and then two lists are compared and not each range.
            assert part == self.live or all(
                self.live.contains_all(first, last) for first, last in part
            )
        self.counts.check()
        for plane in self.counts.planes:
            assert all(self.redelivered.contains_all(first, last) for first, last in plane)
        self.expiries.check(self.live)
        self.priorities.check(self.live)
        if self.doomed is not None:
            self.doomed.check()
            assert all(self.live.contains_all(*each) for each in self.doomed.positions)
        starts = [(start.epoch, start.first_number) for start in self.epochs]
        assert starts == sorted(starts)
        assert len(self.producers) <= PRODUCERS_MAX
        assert [*self.producers] == [*self.producer_times]
        times = [*self.producer_times.values(), self.time_ms]
        assert times == sorted(times)
        assert max(self.acked_end, self.purged_end) <= self.next_position
        leases.check(self.leases)
        self.gaps.check()
        self.gaps.check_known(self.producers)


def _summed(ranges: RangeSet) -> SummedRangeSet:
    if isinstance(ranges, SummedRangeSet):
        return ranges
    summed = SummedRangeSet()
    summed.assign(ranges)
    return summed
