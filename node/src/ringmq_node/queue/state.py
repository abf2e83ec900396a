"""What every replica of a queue agrees on: the state that the ops add up to.

It is a pure function of the ops, in order of their numbers: two replicas that
have applied the same op have the same state and the same `digest` (guarantee
G5). What only the master knows (who has which delivery) is not here.

Invariants (`check`):
* `last_number` rises by one with each op; epochs and their starts rise.
* every live, redelivered or transient position is below `next_position`;
* `redelivered` and `transient` hold only live positions.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.ops import Op, Outline, Publish, Remove, Requeue

# Producers whose last sequence is remembered. Past it the one that has been
# silent longest (in ops, not seconds: replicas have to agree) is forgotten.
PRODUCERS_MAX = 10_000
# Starts of epochs that are remembered, to find where two logs part. A replica
# that has been away for longer fetches everything.
EPOCHS_MAX = 64


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first op and position that the master of `epoch` gave out."""

    epoch: int
    first_number: int
    first_position: int


@dataclass(slots=True)
class ReplicatedState:
    """Mutable; changed only by `begin_epoch` and `apply`, or loaded whole."""

    last_number: int = 0
    next_position: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    live: RangeSet = field(default_factory=RangeSet)
    redelivered: RangeSet = field(default_factory=RangeSet)
    transient: RangeSet = field(default_factory=RangeSet)
    producers: dict[bytes, int] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The epoch of the last op, or of the op that comes next; 0 before the first."""
        return self.epochs[-1].epoch if self.epochs else 0

    def begin_epoch(self, epoch: int) -> None:
        """The ops from here on are of `epoch`."""
        assert epoch > self.epoch, (epoch, self.epoch)
        self.epochs.append(EpochStart(epoch, self.last_number + 1, self.next_position))
        del self.epochs[:-EPOCHS_MAX]

    def apply(self, number: int, op: Op | Outline) -> list[Range]:
        """Applies the next op; returns the positions that have ceased to be live."""
        assert number == self.last_number + 1, (number, self.last_number)
        gone: list[Range] = []
        match op:
            case Publish() | Outline():
                self._publish(op)
            case Remove(ranges):
                gone = self._remove(ranges)
            case Requeue(ranges):
                for first, last in ranges:
                    self.redelivered.update(self.live.intersection(first, last))
        # Last: an op that is refused has changed nothing.
        self.last_number = number
        return gone

    def _publish(self, op: Publish | Outline) -> None:
        assert op.first_position == self.next_position, (op.first_position, self.next_position)
        self.next_position = op.last_position + 1
        self.live.add(op.first_position, op.last_position)
        if op.transient:
            self.transient.add(op.first_position, op.last_position)
        if op.producer_id:
            # Removed and put back: the dict's order is that of the last publish.
            self.producers.pop(op.producer_id, None)
            self.producers[op.producer_id] = op.last_sequence
            if len(self.producers) > PRODUCERS_MAX:
                del self.producers[next(iter(self.producers))]

    def _remove(self, ranges: tuple[Range, ...]) -> list[Range]:
        gone: list[Range] = []
        for first, last in ranges:
            parts = self.live.intersection(first, last)
            if parts:
                self.live.remove(first, last)
                self.redelivered.remove(first, last)
                self.transient.remove(first, last)
                gone += parts
        return gone

    def digest(self) -> str:
        """A hash of all that replicas agree on; 16 hexadecimal digits."""
        hasher = hashlib.blake2b(digest_size=8)
        hasher.update(struct.pack("<QQ", self.last_number, self.next_position))
        for ranges in (self.live, self.redelivered, self.transient):
            hasher.update(struct.pack("<Q", ranges.range_count))
            for pair in ranges:
                hasher.update(struct.pack("<QQ", *pair))
        for producer_id, sequence in self.producers.items():
            hasher.update(struct.pack("<HQ", len(producer_id), sequence) + producer_id)
        return hasher.hexdigest()

    def check(self) -> None:
        for ranges in (self.live, self.redelivered, self.transient):
            ranges.check()
            assert not ranges or ranges.last < self.next_position
        for part in (self.redelivered, self.transient):
            assert all(self.live.contains_all(first, last) for first, last in part)
        starts = [(start.epoch, start.first_number) for start in self.epochs]
        assert starts == sorted(starts)
        assert len(self.producers) <= PRODUCERS_MAX
