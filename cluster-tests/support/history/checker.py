"""The one judgement of a history, by any test of a real cluster.

In one sentence: every confirmed message is delivered, at one position only, in the order of
publishing, and marked if it comes again; once its ack is safe it never comes again; and two masters
never both confirm. A message that was never confirmed may be there, once, or not.

Pure. `check` reads the records once, in the order of time, and keeps a few words for each message:
a run of half an hour has some millions of them.

What it does *not* judge: a history without `Drained` says nothing about what is still in the
queue, so nothing is lost there; a `Confirm` without a master says nothing about who confirmed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from history.records import (
    Ack,
    Confirm,
    Deliver,
    Drained,
    Garbled,
    Nemesis,
    Publish,
    Record,
    Run,
    Unknown,
    View,
    Whole,
)

EXAMPLES_MAX = 5


# Records of one queue.
QueueRecord = Publish | Confirm | Unknown | Deliver | Garbled | Ack | View | Drained


class Rule(Enum):
    """What a violation breaks; the value is its name in reports."""

    LOST = "confirmed and lost"
    DUPLICATED = "enqueued twice"
    REPLACED = "two messages at one position"
    REORDERED = "not in the order of publishing"
    STREAM_REORDERED = "delivered out of order on one stream"
    UNMARKED = "came again without `redelivered`"
    ACKED_AGAIN = "acked, and delivered again"
    INVENTED = "never published"
    GARBLED = "another body than the published one"
    TWO_MASTERS = "two masters confirmed in one epoch"
    DEPOSED = "a deposed master confirmed"
    TWO_VIEWS = "two rings in one epoch"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken `count` times in one queue, with some examples."""

    rule: Rule
    queue: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"queue {self.queue}: {self.count} {self.rule.value}: {'; '.join(self.examples)}"


@dataclass(slots=True)
class Verdict:
    """The violations, and how much was looked at: a history of nothing violates nothing."""

    violations: list[Violation] = field(default_factory=list)
    published: int = 0
    confirmed: int = 0
    unknown: int = 0
    delivered: int = 0
    repeats: int = 0
    acked: int = 0
    views: int = 0
    # Queues of which all was taken, so that lost messages could be noticed.
    drained: int = 0

    @property
    def rules(self) -> set[Rule]:
        return {violation.rule for violation in self.violations}

    def demand(self) -> None:
        """`AssertionError` if anything was violated."""
        assert not self.violations, "\n".join(map(str, self.violations))


def check(records: Iterable[Record], *, strangers: bool = False) -> Verdict:
    """Judges records that are in the order of time. With `strangers`, messages may be delivered
    whose publishers are not in the history."""
    queues: dict[str, _Queue] = {}
    for record in records:
        if isinstance(record, Nemesis | Whole):
            continue
        queue = queues.get(record.queue)
        if queue is None:
            queue = queues[record.queue] = _Queue(record.queue, strangers)
        queue.take(record)
    verdict = Verdict()
    for queue in queues.values():
        queue.finish(verdict)
    return verdict


@dataclass(slots=True)
class _Publisher:
    """What is known of the messages of one tag, by their numbers."""

    attempted: int = 0
    # By number: where it was seen first, or -1.
    positions: list[int] = field(default_factory=list)
    confirmed: bytearray = field(default_factory=bytearray)

    def grow(self, size: int) -> None:
        if size > len(self.positions):
            more = size - len(self.positions)
            self.positions.extend([-1] * more)
            self.confirmed.extend(bytes(more))


@dataclass(slots=True)
class _Master:
    """Who has confirmed first in an epoch, and when."""

    name: str
    first_at: float


class _Queue:
    def __init__(self, name: str, strangers: bool) -> None:
        self._name = name
        self._strangers = strangers
        self._publishers: dict[str, _Publisher] = defaultdict(_Publisher)
        # By position: the message that was seen there first.
        self._at: dict[int, tuple[str, int]] = {}
        self._acked: set[int] = set()
        # By consumer and stream: the last position that came on it for the first time.
        self._last: dict[tuple[str, int], int] = {}
        self._masters: dict[int, _Master] = {}
        # When each batch of a known master was handed over, by its tag and first number.
        self._handed_over: dict[tuple[str, int], float] = {}
        self._rings: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._broken: dict[Rule, list[str]] = defaultdict(list)
        self._counts: dict[Rule, int] = defaultdict(int)
        self._totals = Verdict()

    def take(self, record: QueueRecord) -> None:
        match record:
            case Publish(at, _, tag, first, last):
                publisher = self._publishers[tag]
                publisher.attempted = max(publisher.attempted, last + 1)
                publisher.grow(last + 1)
                self._totals.published += last - first + 1
                self._handed_over[(tag, first)] = at
            case Confirm():
                self._confirmed(record)
            case Unknown(_, _, tag, first, last):
                self._totals.unknown += last - first + 1
                self._handed_over.pop((tag, first), None)
            case Deliver():
                for run in record.runs:
                    for offset in range(run.count):
                        self._delivered(record, run, offset)
            case Garbled(_, _, consumer, position):
                self._break(Rule.GARBLED, f"position {position} at {consumer}")
            case Ack(_, _, _, ranges):
                for first, last in ranges:
                    self._acked.update(range(first, last + 1))
                    self._totals.acked += last - first + 1
            case View():
                self._saw(record)
            case Drained():
                self._totals.drained = 1

    def _confirmed(self, record: Confirm) -> None:
        publisher = self._publishers[record.tag]
        publisher.grow(record.last + 1)
        for number in range(record.first, record.last + 1):
            self._totals.confirmed += not publisher.confirmed[number]
            publisher.confirmed[number] = 1
        handed_over_at = self._handed_over.pop((record.tag, record.first), record.at)
        if record.master:
            self._confirmed_by(record, handed_over_at)

    def _confirmed_by(self, record: Confirm, handed_over_at: float) -> None:
        before = self._masters.setdefault(record.epoch, _Master(record.master, record.at))
        if before.name != record.master:
            self._break(
                Rule.TWO_MASTERS,
                f"epoch {record.epoch}: {before.name} at {before.first_at:.3f}, "
                f"{record.master} at {record.at:.3f}",
            )
        # A batch that was handed over before the new master's first confirm may have been
        # confirmed by the old one in time. Its publisher was only told later.
        later = [
            (epoch, master)
            for epoch, master in self._masters.items()
            if epoch > record.epoch
            and master.name != record.master
            and master.first_at < handed_over_at
        ]
        if later:
            epoch, master = later[0]
            self._break(
                Rule.DEPOSED,
                f"{record.tag} {record.first} handed over at {handed_over_at:.3f}, confirmed by "
                f"{record.master} of epoch {record.epoch}; {master.name} confirmed in epoch "
                f"{epoch} at {master.first_at:.3f}",
            )

    def _delivered(self, record: Deliver, run: Run, offset: int) -> None:
        position, number = run.position + offset, run.number + offset
        message = (run.tag, number)
        totals = self._totals
        totals.delivered += 1
        there = self._at.get(position)
        if there is None:
            self._at[position] = message
        elif there != message:
            self._break(Rule.REPLACED, f"position {position} was {there} and is {message}")
        else:
            totals.repeats += 1
            if not run.redelivered:
                self._break(Rule.UNMARKED, f"{message} at {position}")
        publisher = self._publishers[run.tag]
        if number >= publisher.attempted and (publisher.attempted or not self._strangers):
            self._break(Rule.INVENTED, f"{message} at {position}")
        publisher.grow(number + 1)
        place = publisher.positions[number]
        if place < 0:
            publisher.positions[number] = position
        elif place != position:
            self._break(Rule.DUPLICATED, f"{message} at {place} and {position}")
        if position in self._acked:
            self._break(Rule.ACKED_AGAIN, f"{message} at {position}, to {record.consumer}")
        if not run.redelivered:
            stream = (record.consumer, record.stream)
            last = self._last.get(stream, -1)
            if last >= position:
                self._break(Rule.STREAM_REORDERED, f"{position} after {last} on {stream}")
            self._last[stream] = max(last, position)

    def _saw(self, view: View) -> None:
        self._totals.views += 1
        ring = (view.ring, view.synchronised)
        if self._rings.setdefault(view.epoch, ring) != ring:
            self._break(Rule.TWO_VIEWS, f"epoch {view.epoch}: {self._rings[view.epoch]}, {ring}")

    def _break(self, rule: Rule, example: str) -> None:
        self._counts[rule] += 1
        if self._counts[rule] <= EXAMPLES_MAX:
            self._broken[rule].append(example)

    def finish(self, verdict: Verdict) -> None:
        for tag, publisher in self._publishers.items():
            self._judge_order(tag, publisher)
            if self._totals.drained:
                for number in _lost(publisher):
                    self._break(Rule.LOST, f"{tag} {number}")
        for rule, count in self._counts.items():
            examples = tuple(self._broken[rule])
            verdict.violations.append(Violation(rule, self._name, count, examples))
        for name in (
            "published",
            "confirmed",
            "unknown",
            "delivered",
            "repeats",
            "acked",
            "views",
            "drained",
        ):
            setattr(verdict, name, getattr(verdict, name) + getattr(self._totals, name))

    def _judge_order(self, tag: str, publisher: _Publisher) -> None:
        before = -1
        for number, position in enumerate(publisher.positions):
            if position < 0:
                continue
            if position < before:
                self._break(Rule.REORDERED, f"{tag} {number} at {position}, after {before}")
            before = max(before, position)


def _lost(publisher: _Publisher) -> Iterator[int]:
    for number, confirmed in enumerate(publisher.confirmed):
        if confirmed and publisher.positions[number] < 0:
            yield number
