"""How far a query has come: offsets, the ranges between them, and losses. Pure.

An offset says for each queue the position at which reading goes on, and the meaning of positions
there (`ringmq.Numbering`): without that, a queue that was declared anew would be read from the
middle, and its beginning skipped. Ranges are half open: from one offset's end to before the next
one's. So a batch begins where the batch before it ended, and nothing is read twice or left out.

Invariants, which the tests check:
* the partitions of a batch cover its ranges exactly, in order, and none is empty;
* the shares of a limit add up to no more than it, and a queue with a backlog gets one at least, or
  has its turn before another gets its second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 1


class OffsetError(ValueError):
    """This isn't an offset of the source `ringmq`."""


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """Reading goes on at `position`, of the queue and the epoch in which it was noted."""

    queue_id: str
    epoch: int
    position: int


# By the queue's name.
SourceOffset = Mapping[str, QueueOffset]


def to_json(offset: SourceOffset, begin: SourceOffset | None = None) -> dict[str, Any]:
    """As Spark keeps it in the checkpoint: equal offsets have equal text. `begin`: where the batch
    begins that ends at `offset`, if it is the first one, whose begin Spark doesn't keep."""
    found = {"version": VERSION, "queues": _queues_to_json(offset)}
    return found if begin is None else found | {"begin": _queues_to_json(begin)}


def _queues_to_json(offset: SourceOffset) -> dict[str, Any]:
    return {
        name: {"id": at.queue_id, "epoch": at.epoch, "position": at.position}
        for name, at in sorted(offset.items())
    }


def from_json(value: Mapping[str, Any] | str) -> dict[str, QueueOffset]:
    """Raises `OffsetError`."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        version = found["version"]
        if version != VERSION:
            raise OffsetError(
                f"the checkpoint has offsets of version {version}, this source knows {VERSION}: "
                "run the ringmq that wrote it, or begin another checkpoint"
            )
        return {
            name: QueueOffset(_str(at["id"]), _count(at["epoch"]), _count(at["position"]))
            for name, at in found["queues"].items()
        }
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise OffsetError(f"{value!r} is no offset of the source ringmq: {error!r}") from error


def ends_first_batch(value: Mapping[str, Any]) -> bool:
    """Whether it says where its batch begins; `begin_of` has that."""
    return "begin" in value


def noted_begin(text: str) -> dict[str, QueueOffset]:
    """Where the batch begins that ends at this offset; empty if it doesn't say so. `text`: one that
    `from_json` takes."""
    found = json.loads(text)
    if not ends_first_batch(found):
        return {}
    return from_json({"version": found["version"], "queues": found["begin"]})


def begin_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, QueueOffset]:
    """Where a batch begins. When the first one is run again, what Spark calls its start is where
    one would begin now. Raises `OffsetError`."""
    if ends_first_batch(end) and not ends_first_batch(start):
        return from_json({"version": end["version"], "queues": end["begin"]})
    return from_json(start)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


# --- losses ---

DELETED: Final = "the queue has been deleted"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """A queue's positions now; the fields of `ringmq.PositionStat` that matter here."""

    queue_id: str
    epoch: int
    first: int
    end: int
    acked_end: int
    purged_end: int

    @property
    def readable_from(self) -> int:
        """Ranges that begin below are refused."""
        return max(self.acked_end, self.purged_end)

    def offset(self, position: int) -> QueueOffset:
        return QueueOffset(self.queue_id, self.epoch, position)


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Messages of `first` to before `end` of `queue`, in the numbering of the offset, can't be
    read any more; all from `first` on, if the two are equal."""

    queue: str
    first: int
    end: int
    why: str

    def __str__(self) -> str:
        where = f"positions from {self.first} on"
        if self.end > self.first:
            where = f"positions {self.first} to {self.end - 1}"
        return f"queue {self.queue!r}: {where} can't be read any more: {self.why}"


class DataLossError(RuntimeError):
    """The query can't go on without a gap. `loss` names it."""

    def __init__(self, loss: DataLoss) -> None:
        super().__init__(f"{loss}. With failOnDataLoss=false, a query goes on behind the loss.")
        self.loss = loss


def loss_of(queue: str, at: QueueOffset, now: QueueBounds | None) -> DataLoss | None:
    """The loss of a query that goes on at `at`; None if it finds all as it left it."""
    begin = at.position
    if now is None:
        return DataLoss(queue, begin, begin, DELETED)
    if at.queue_id != now.queue_id:
        why = f"the queue was deleted and declared anew (id {now.queue_id}, not {at.queue_id})"
        return DataLoss(queue, begin, begin, why)
    if at.epoch != now.epoch:
        why = f"an operator has accepted a loss (epoch {now.epoch}, not {at.epoch})"
        return DataLoss(queue, begin, begin, why)
    if begin < now.readable_from:
        by_reader = now.acked_end >= now.purged_end
        why = (
            "a reader has acknowledged them: the checkpoint is older than that, or not the only one"
            if by_reader
            else "the queue was purged"
        )
        return DataLoss(queue, begin, now.readable_from, why)
    # `begin` may be above `now.end`: a new master says less for a moment, until a trip around its
    # ring. That the queue has no such position at all is for the broker to say, which finds out
    # whether its answer is the newest before it refuses.
    return None


def after_loss(loss: DataLoss, now: QueueBounds, read_end: int = 0) -> QueueOffset:
    """Where a query that may skip goes on: behind the loss, with the messages there are now.
    `read_end`: those before it have been read, and are still what they were."""
    behind = loss.end if loss.end > loss.first else 0
    return now.offset(min(max(behind, now.readable_from, read_end), now.end))


# --- dividing ---


def shares(backlogs: Mapping[str, int], limit: int, *, after: str = "") -> dict[str, int]:
    """`limit` divided among the queues, by their backlogs. Those without one get nothing. If the
    limit is smaller than the number of those with one, the first get theirs: by name, beginning
    behind `after`, and then from the beginning again."""
    waiting = {name: count for name, count in backlogs.items() if count > 0}
    names = in_turn(waiting, after)[:limit]
    total = sum(waiting[name] for name in names)
    given = dict.fromkeys(backlogs, 0)
    if total <= limit:
        return given | {name: waiting[name] for name in names}
    spare, beyond = limit - len(names), total - len(names)
    for name in names:
        # One for each, and the rest in proportion, rounded down: never more than the limit.
        given[name] = 1 + (waiting[name] - 1) * spare // beyond
    return given


def in_turn(names: Iterable[str], after: str) -> list[str]:
    """By name, beginning behind `after`."""
    return sorted(names, key=lambda name: (name <= after, name))


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages that one task reads: `first` to before `end`."""

    queue: str
    queue_id: str
    epoch: int
    first: int
    end: int


def ranges(start: SourceOffset, end: SourceOffset) -> list[QueueRange]:
    """The messages that a batch from `start` to `end` reads. A queue that `start` lacks is new: it
    is read from position 0 on. Where the two have different numberings, a query that may skip goes
    over to the new one: it reads nothing of that queue, and its next batch begins at `end`."""
    found = []
    for name, to in sorted(end.items()):
        begin = start.get(name)
        first = 0 if begin is None else begin.position
        if begin is not None and (begin.queue_id, begin.epoch) != (to.queue_id, to.epoch):
            continue
        if first > to.position:
            raise OffsetError(f"queue {name!r}: a batch from {first} can't end at {to.position}")
        if first < to.position:
            found.append(QueueRange(name, to.queue_id, to.epoch, first, to.position))
    return found


def partitions(
    whole: Iterable[QueueRange], *, partitions_min: int = 1, positions_max: int = 0
) -> list[QueueRange]:
    """The ranges cut for tasks: about `partitions_min` of them if there are so many positions, and
    none of more than `positions_max` (0: any number)."""
    listed = [*whole]
    total = sum(each.end - each.first for each in listed)
    size = max(1, -(-total // max(1, partitions_min)))
    if positions_max:
        size = min(size, positions_max)
    cut = []
    for each in listed:
        count = -(-(each.end - each.first) // size)
        length = each.end - each.first
        # Equal parts, and not full ones with a small rest.
        ends = [each.first + length * (index + 1) // count for index in range(count)]
        begin = each.first
        for end in ends:
            cut.append(QueueRange(each.queue, each.queue_id, each.epoch, begin, end))
            begin = end
    return cut
