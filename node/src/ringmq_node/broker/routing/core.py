"""The publishes of one routed session: which queues still have to confirm which sequences.

Pure. A batch comes with the queues of each run of its messages. The core says which part of it
goes to which queue, and answers each sequence exactly once:

* *confirmed* when every queue that it went to has confirmed it. A queue that has been deleted
  meanwhile doesn't count. Sequences are confirmed in any order, as ranges;
* *returned*, then confirmed, if it is mandatory and no queue has it: none was bound, or all of
  them have been deleted before they confirmed. (Without `mandatory` it is only confirmed, as AMQP
  does it: there is nothing that the publisher could wait for.);
* *refused* as soon as one queue refuses it for good. Other queues may have it, or get it yet.

Some queues are *down* (`set_down`): runs that wait for one of them are counted beside the others.

A refused sequence counts in `messages`, `size_bytes` and `runs` until its other queues have
answered too: their copies of the body are still here.

Not decided here: what is safe (the queue's master says so), how a queue is reached, and repeats
over failovers (`ways`).

Invariants (`check`): runs are in order of their sequences and don't overlap; each waits for at
least one queue; the sums are those of the runs, and of those that wait for a queue that is down.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter

from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.model.reasons import BrokerError, Reason


class RepeatedSequenceError(ValueError):
    """A batch has sequences that are not answered yet."""


@value
class TargetRun:
    """The next `count` messages of a batch go to these queues; none: nobody wants them.

    `size_bytes`: of their bodies and properties.
    """

    count: int
    queues: tuple[str, ...]
    size_bytes: int


@value
class SendPart:
    """Give `queue` these messages of the batch: `start` to `stop` (not included)."""

    queue: str
    start: int
    stop: int


@value
class AnswerConfirmed:
    sequences: tuple[Range, ...]


@value
class AnswerReturned:
    """No queue has these mandatory messages. `AnswerConfirmed` follows."""

    sequences: tuple[Range, ...]
    reason: Reason


@value
class AnswerRefused:
    sequences: Range
    error: BrokerError


Answer = AnswerConfirmed | AnswerReturned | AnswerRefused


class _Run:
    """Messages `first` to `last`, which went to the same queues."""

    __slots__ = (
        "answered",
        "first",
        "is_stuck",
        "last",
        "mandatory",
        "size_bytes",
        "stored",
        "waiting",
    )

    def __init__(
        self, first: int, last: int, waiting: set[str], size_bytes: int, *, mandatory: bool
    ) -> None:
        self.first = first
        self.last = last
        # Queues that have neither confirmed nor refused it, and have not been deleted.
        self.waiting = waiting
        self.size_bytes = size_bytes
        self.mandatory = mandatory
        # A queue has it.
        self.stored = False
        # The publisher has been told that it was refused.
        self.answered = False
        # It waits for a queue that is down.
        self.is_stuck = False

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def split(self, sequence: int) -> _Run:
        """Cuts this run before `sequence`, and returns the rest of it."""
        count = self.last - self.first + 1
        size_bytes = self.size_bytes * (self.last - sequence + 1) // count
        rest = _Run(sequence, self.last, set(self.waiting), size_bytes, mandatory=self.mandatory)
        rest.stored, rest.answered, rest.is_stuck = self.stored, self.answered, self.is_stuck
        self.last = sequence - 1
        self.size_bytes -= size_bytes
        return rest


_by_first = attrgetter("first")
_by_last = attrgetter("last")


class RoutedPublishes:
    """See the module."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.messages = 0
        self.size_bytes = 0
        self.down: frozenset[str] = frozenset()
        # Of these, those that wait for a queue that is down.
        self.stuck_runs = 0
        self.stuck_messages = 0
        self.stuck_bytes = 0

    @property
    def runs(self) -> int:
        """Runs that wait for a queue."""
        return len(self._runs)

    def publish(
        self, first_sequence: int, targets: Sequence[TargetRun], *, mandatory: bool
    ) -> tuple[list[SendPart], list[Answer]]:
        """A batch, whose messages are those of `targets` in order. Raises
        `RepeatedSequenceError`, and nothing has changed, if some of it isn't answered yet."""
        last_sequence = first_sequence + sum(run.count for run in targets) - 1
        at = bisect_left(self._runs, first_sequence, key=_by_last)
        if at < len(self._runs) and self._runs[at].first <= last_sequence:
            raise RepeatedSequenceError(
                f"sequences {first_sequence} to {last_sequence}: "
                f"{self._runs[at].first} is on its way already"
            )
        parts: dict[str, list[SendPart]] = {}
        added: list[_Run] = []
        unroutable: list[Range] = []
        start = 0
        for target in targets:
            stop, first = start + target.count, first_sequence + start
            if target.queues:
                waiting = set(target.queues)
                size = target.size_bytes
                added.append(
                    _Run(first, first + target.count - 1, waiting, size, mandatory=mandatory)
                )
                for queue in target.queues:
                    _append(parts.setdefault(queue, []), SendPart(queue, start, stop))
            else:
                _join(unroutable, first, first + target.count - 1)
            start = stop
        self._runs[at:at] = added
        self.messages += sum(run.count for run in added)
        self.size_bytes += sum(run.size_bytes for run in added)
        if self.down:
            for run in added:
                self._mark(run)
        answers = _answers(unroutable if mandatory else (), unroutable)
        return [part for each in parts.values() for part in each], answers

    def confirmed(self, queue: str, sequences: Iterable[Range]) -> list[Answer]:
        """`queue` has these on the disks that count. Others than it was given are passed over."""
        confirmed: list[Range] = []
        for first, last in sequences:
            low, high = self._span(queue, first, last)
            for run in self._runs[low:high]:
                if queue in run.waiting:
                    self._left(run, queue)
                    run.stored = True
            self._settle(low, high, confirmed, [])
        return _answers((), confirmed)

    def refused(self, queue: str, first: int, last: int, error: BrokerError) -> list[Answer]:
        """`queue` will never take these."""
        low, high = self._span(queue, first, last)
        refused: list[Range] = []
        for run in self._runs[low:high]:
            if queue not in run.waiting:
                continue
            self._left(run, queue)
            if not run.answered:
                run.answered = True
                _join(refused, run.first, run.last)
        self._settle(low, high, [], [])
        return [AnswerRefused(sequences, error) for sequences in refused]

    def deleted(self, queue: str) -> list[Answer]:
        """`queue` is no more: all that it has not confirmed was not routed there."""
        confirmed: list[Range] = []
        returned: list[Range] = []
        for run in self._runs:
            self._left(run, queue)
        self._settle(0, len(self._runs), confirmed, returned)
        return _answers(returned, confirmed)

    def set_down(self, queues: frozenset[str]) -> None:
        """These queues are down now, and no others."""
        self.down = queues
        for run in self._runs:
            self._mark(run)

    # --- inside ---

    def _left(self, run: _Run, queue: str) -> None:
        """It doesn't wait for this queue any more."""
        run.waiting.discard(queue)
        if run.is_stuck:
            self._mark(run)

    def _mark(self, run: _Run) -> None:
        is_stuck = not run.waiting.isdisjoint(self.down)
        if is_stuck != run.is_stuck:
            run.is_stuck = is_stuck
            sign = 1 if is_stuck else -1
            self.stuck_runs += sign
            self.stuck_messages += sign * run.count
            self.stuck_bytes += sign * run.size_bytes

    def _span(self, queue: str, first: int, last: int) -> tuple[int, int]:
        """The runs of these sequences: from the first index to the second, not included. Those at
        the ends are cut if the queue has part of them."""
        runs = self._runs
        low = bisect_left(runs, first, key=_by_last)
        if low < len(runs) and runs[low].first < first and runs[low].first <= last:
            if queue in runs[low].waiting:
                self.stuck_runs += runs[low].is_stuck
                runs.insert(low + 1, runs[low].split(first))
            low += 1
        high = bisect_right(runs, last, lo=low, key=_by_first)
        if high > low and runs[high - 1].last > last:
            if queue in runs[high - 1].waiting:
                self.stuck_runs += runs[high - 1].is_stuck
                runs.insert(high, runs[high - 1].split(last + 1))
            else:
                high -= 1
        return low, high

    def _settle(self, low: int, high: int, confirmed: list[Range], returned: list[Range]) -> None:
        """Drops the runs, among these, that wait for no queue."""
        kept: list[_Run] = []
        for run in self._runs[low:high]:
            if run.waiting:
                kept.append(run)
                continue
            self.messages -= run.count
            self.size_bytes -= run.size_bytes
            if run.answered:
                continue
            if run.mandatory and not run.stored:
                _join(returned, run.first, run.last)
            _join(confirmed, run.first, run.last)
        if len(kept) < high - low:
            self._runs[low:high] = kept

    def check(self) -> None:
        assert all(a.last < b.first for a, b in pairwise(self._runs))
        assert all(run.first <= run.last and run.waiting for run in self._runs)
        assert self.messages == sum(run.count for run in self._runs)
        assert self.size_bytes == sum(run.size_bytes for run in self._runs)
        stuck = [run for run in self._runs if run.is_stuck]
        assert stuck == [run for run in self._runs if run.waiting & self.down]
        assert self.stuck_runs == len(stuck)
        assert self.stuck_messages == sum(run.count for run in stuck)
        assert self.stuck_bytes == sum(run.size_bytes for run in stuck)


def _append(parts: list[SendPart], part: SendPart) -> None:
    """Neighbouring runs with different queues are one batch for a queue that they share."""
    if parts and parts[-1].stop == part.start:
        parts[-1] = SendPart(part.queue, parts[-1].start, part.stop)
    else:
        parts.append(part)


def _join(ranges: list[Range], first: int, last: int) -> None:
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = ranges[-1][0], last
    else:
        ranges.append((first, last))


def _answers(returned: Sequence[Range], confirmed: Sequence[Range]) -> list[Answer]:
    answers: list[Answer] = []
    if returned:
        answers.append(AnswerReturned(tuple(returned), Reason.UNROUTABLE))
    if confirmed:
        answers.append(AnswerConfirmed(tuple(confirmed)))
    return answers
