"""The messages that are safe in a queue, by its confirmed ops; and the words of masters about them.

Each rule is checked at the moment when a master tells a client something, so that no second fault
has to come for a mistake to be seen. The histories of clients are judged by `history.checker` in
the end, as those of real clusters are.

What a master tells belongs to its epoch. A process that stood still goes on as the master of an
older epoch, until it hears of the newer one. If it reads marks first that had come before, it
delivers what was confirmed then, while consumers of the next master have acked it (seed 554397). In
the order of epochs that is no repeat; in the order of time no master could avoid it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from history import records as history
from history.checker import Rule, check

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.ops import Forget, Publish, Remove
from ringmq_node.queue.run import Run
from ringsim.queues.payloads import op_of
from ringsim.simulator.application import BrokenInvariantError, LogEntry
from ringsim.simulator.oracle import Oracle

QUEUE = "q"


class Judge:
    """Of one run."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        oracle.on_confirmed = self.op_confirmed
        # In the order of epochs, and within one of time; with the epoch of each.
        self._records: list[history.Record] = []
        self._epochs: list[int] = []
        # Of confirmed ops: positions published and removed, and each producer's last sequence.
        self._published = RangeSet()
        self._removed = RangeSet()
        self._sequences: dict[bytes, int] = {}
        self.forgotten: set[bytes] = set()
        # Messages that a consumer had and has acked.
        self.acked = RangeSet()

    def op_confirmed(self, entry: LogEntry) -> None:
        match op_of(entry[1]):
            case Publish() as op:
                self._published.add(op.first_position, op.last_position)
                last = max(self._sequences.get(op.producer_id, 0), op.last_sequence)
                self._sequences[op.producer_id] = last
            case Remove(ranges):
                self._removed.update(ranges)
            case Forget(producer_ids):
                self.forgotten.update(producer_ids)
            case _:
                pass

    def note(self, record: history.Record, epoch: int | None = None) -> None:
        """Keeps what a master of `epoch` has told; or what a producer has done, as of now."""
        epochs = self._epochs
        newest = epochs[-1] if epochs else 0
        epoch = newest if epoch is None else epoch
        # Behind all others, but for what a master tells that has been followed by another one.
        at = len(epochs) if epoch >= newest else bisect_right(epochs, epoch)
        epochs.insert(at, epoch)
        self._records.insert(at, record)

    def sequence_of(self, tag: str) -> int:
        """The last sequence of this producer that was confirmed, whether or not it is forgotten."""
        return self._sequences.get(tag.encode(), 0)

    def _require(self, holds: bool, message: str) -> None:
        # Ops confirmed before a loss, which an operator may have accepted, are safe no more.
        if not holds and not self._oracle.lost:
            raise BrokenInvariantError(message)

    # --- the words of a master ---

    def last_sequence_told(self, producer_id: bytes, last: int) -> None:
        """G4: what a producer is told, no other master knows otherwise."""
        safe = self._sequences.get(producer_id, 0)
        self._require(last <= safe, f"{producer_id!r} is told {last}, safe is {safe}")

    def sequences_confirmed(self, producer_id: bytes, sequences: Sequence[Range]) -> None:
        safe = self._sequences.get(producer_id, 0)
        for first, last in sequences:
            self._require(
                last <= safe, f"{producer_id!r} {first}..{last} confirmed, safe is {safe}"
            )

    def delivered(
        self, runs: Sequence[Run], consumer: str, stream: int, epoch: int, now: float
    ) -> None:
        """G1: no consumer has a message that a failover could take back.

        Noted here, and not when it has come to the consumer: that may be long after another one has
        acked the same message.
        """
        seen = [
            history.Run(position, *message_of(bytes(body)), 1, run.redelivered)
            for run in runs
            for position, body in enumerate(run.block.bodies(), run.first_position)
        ]
        self.note(history.Deliver(now, QUEUE, consumer, stream, tuple(seen)), epoch)
        for run in runs:
            is_safe = self._published.contains_all(*run.positions)
            self._require(is_safe, f"{run.positions} delivered before they are confirmed")

    def settled(self, positions: Sequence[Range], consumer: str, epoch: int, now: float) -> None:
        """G2: an ack that is reported as safe is."""
        self.note(history.Ack(now, QUEUE, consumer, tuple(positions)), epoch)
        for part in positions:
            is_safe = self._removed.contains_all(*part)
            self._require(is_safe, f"the acks of {part} reported before they are safe")

    # --- the end ---

    def finish(self, log: Sequence[LogEntry], *, drained: bool, now: float) -> None:
        """Judges the history, and the ops that are left as the queue's."""
        if self._oracle.lost:
            return
        _check_sequences(log)
        taken = self._removed.without(self.acked)
        if taken:
            raise BrokenInvariantError(f"nobody has acked {taken}, and they are removed")
        if drained:
            self.note(history.Drained(now, QUEUE))
        violations = [
            each for each in check(self._records).violations if each.rule not in self._excused()
        ]
        if violations:
            raise BrokenInvariantError("; ".join(map(str, violations)))

    def _excused(self) -> tuple[Rule, ...]:
        """A producer that the queue has forgotten may begin anew with its first message.
        `_check_sequences` looks whether it has been forgotten before that."""
        return (Rule.DUPLICATED, Rule.REORDERED) if self.forgotten else ()


def body_of(tag: str, number: int) -> bytes:
    return b"%s:%d" % (tag.encode(), number)


def message_of(body: bytes) -> tuple[str, int]:
    tag, _, number = body.decode().partition(":")
    return tag, int(number)


def _check_sequences(log: Sequence[LogEntry]) -> None:
    """G4: the message with number n of a producer has sequence n + 1, and is enqueued once."""
    last: dict[bytes, int] = {}
    for _, payload in log:
        op = op_of(payload)
        if isinstance(op, Forget):
            for producer_id in op.producer_ids:
                last.pop(producer_id, None)
        elif isinstance(op, Publish) and op.producer_id:
            before = last.get(op.producer_id, 0)
            if op.first_sequence != before + 1:
                raise BrokenInvariantError(
                    f"{op.producer_id!r}: {op.first_sequence} after {before}"
                )
            last[op.producer_id] = op.last_sequence
            for sequence, body in enumerate(op.block.bodies(), op.first_sequence):
                tag, number = message_of(body)
                if (tag.encode(), number + 1) != (op.producer_id, sequence):
                    raise BrokenInvariantError(f"{body!r} has sequence {sequence}")
