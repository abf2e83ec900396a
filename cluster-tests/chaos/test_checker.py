"""The checker of histories finds each violation that is planted, and nothing in a sound history."""

from __future__ import annotations

from pathlib import Path

import pytest
from history.checker import Rule, check
from history.records import (
    Ack,
    Confirm,
    Deliver,
    Drained,
    Garbled,
    History,
    Nemesis,
    Publish,
    Record,
    Run,
    Unknown,
    View,
    from_line,
    read,
    to_line,
)

Q = "q"


def published(at: float, first: int, last: int, tag: str = "p") -> Publish:
    return Publish(at, Q, tag, first, last)


def confirmed(at: float, first: int, last: int, tag: str = "p") -> Confirm:
    return Confirm(at, Q, tag, first, last)


def delivered(at: float, *runs: Run, stream: int = 1, consumer: str = "c") -> Deliver:
    return Deliver(at, Q, consumer, stream, runs)


def run(position: int, number: int, count: int, *, again: bool = False, tag: str = "p") -> Run:
    return Run(position, tag, number, count, again)


# A failover in the middle: 0 to 9 are confirmed, 5 to 9 are delivered twice. 10 to 12 are unknown,
# and 10 turns out to be there.
SOUND: tuple[Record, ...] = (
    View(0.0, Q, 1, ("a", "b"), ("a", "b"), "RUNNING"),
    published(1.0, 0, 9),
    Confirm(1.1, Q, "p", 0, 9, 1, "a"),
    delivered(1.2, run(0, 0, 10)),
    Ack(1.3, Q, "c", ((0, 4),)),
    Nemesis(1.4, True, 1, "kill", ("a",), "Crash(a)"),
    published(1.5, 10, 12),
    View(2.0, Q, 2, ("b",), ("b",), "RUNNING"),
    Unknown(2.1, Q, "p", 10, 12, "no confirm"),
    published(2.2, 13, 14),
    Confirm(2.3, Q, "p", 13, 14, 2, "b"),
    delivered(2.4, run(5, 5, 5, again=True), run(10, 10, 1), run(11, 13, 2), stream=2),
    Ack(2.5, Q, "c", ((5, 12),)),
    Drained(3.0, Q),
)


def test_a_sound_history_violates_nothing() -> None:
    verdict = check(SOUND)
    assert verdict.violations == []
    assert (verdict.published, verdict.confirmed, verdict.unknown) == (15, 12, 3)
    assert (verdict.delivered, verdict.repeats, verdict.acked) == (18, 5, 13)
    assert (verdict.views, verdict.drained) == (2, 1)


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    garbled = Garbled(3.0, Q, "c", 7)
    with History(tmp_path / "history.jsonl") as history:
        for record in (*SOUND, garbled):
            history.note(record)
    assert list(read(history.path)) == [*SOUND, garbled]
    assert to_line(SOUND[2]).startswith('{"kind": "confirm", "at": 1.1, "queue": "q"')


@pytest.mark.parametrize("line", ["", "7", "{}", '{"kind": "confirm", "at": 1}', '{"kind": "x"}'])
def test_a_line_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"record|Expecting"):
        from_line(line)


# What goes wrong, and the records that show it, after those of a sound start.
START: tuple[Record, ...] = (
    published(1.0, 0, 9),
    Confirm(1.1, Q, "p", 0, 9, 1, "a"),
    delivered(1.2, run(0, 0, 10)),
    Ack(1.3, Q, "c", ((0, 4),)),
)
PLANTED: dict[Rule, tuple[Record, ...]] = {
    Rule.LOST: (published(2.0, 10, 19), confirmed(2.1, 10, 19), delivered(2.2, run(10, 10, 9))),
    Rule.DUPLICATED: (delivered(2.0, run(10, 9, 1, again=True)),),
    Rule.REPLACED: (
        published(2.0, 0, 0, tag="other"),
        delivered(2.1, run(9, 0, 1, tag="other", again=True)),
    ),
    Rule.REORDERED: (
        published(2.0, 10, 11),
        delivered(2.1, run(10, 11, 1)),
        delivered(2.2, run(11, 10, 1)),
    ),
    Rule.STREAM_REORDERED: (
        published(2.0, 10, 11),
        delivered(2.1, run(11, 11, 1)),
        delivered(2.2, run(10, 10, 1)),
    ),
    Rule.UNMARKED: (delivered(2.0, run(9, 9, 1), stream=2),),
    Rule.ACKED_AGAIN: (delivered(2.0, run(4, 4, 1, again=True), stream=2),),
    Rule.INVENTED: (delivered(2.0, run(10, 10, 1)),),
    Rule.GARBLED: (Garbled(2.0, Q, "c", 7),),
    Rule.TWO_MASTERS: (
        published(1.0, 0, 0, tag="left"),
        Confirm(2.0, Q, "left", 0, 0, 1, "b"),
        delivered(2.1, run(10, 0, 1, tag="left")),
    ),
    Rule.DEPOSED: (
        published(2.0, 0, 0, tag="right"),
        Confirm(2.1, Q, "right", 0, 0, 2, "b"),
        published(2.2, 0, 0, tag="left"),
        Confirm(2.3, Q, "left", 0, 0, 1, "a"),
        delivered(2.4, run(10, 0, 1, tag="right"), run(11, 0, 1, tag="left")),
    ),
    Rule.TWO_VIEWS: (
        View(2.0, Q, 3, ("a", "b"), ("a", "b"), "RUNNING"),
        View(2.1, Q, 3, ("b", "a"), ("a", "b"), "RUNNING"),
    ),
}


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_a_planted_violation_is_found_and_no_other(rule: Rule) -> None:
    verdict = check([*START, *PLANTED[rule], Drained(9.0, Q)])
    assert verdict.rules == {rule}, verdict.violations
    assert verdict.violations[0].examples
    with pytest.raises(AssertionError, match=rule.value):
        verdict.demand()


def test_what_was_handed_over_before_the_new_master_confirmed_may_be_confirmed_late() -> None:
    late = (
        published(2.0, 0, 0, tag="left"),
        published(2.0, 0, 0, tag="right"),
        Confirm(2.1, Q, "right", 0, 0, 2, "b"),
        Confirm(2.3, Q, "left", 0, 0, 1, "a"),
        delivered(2.4, run(10, 0, 1, tag="right"), run(11, 0, 1, tag="left")),
    )
    assert check([*START, *late, Drained(9.0, Q)]).violations == []


def test_nothing_is_lost_from_a_queue_that_was_not_drained() -> None:
    verdict = check([*START, *PLANTED[Rule.LOST]])
    assert verdict.violations == []
    assert verdict.drained == 0


def test_strangers_are_allowed_when_they_are_announced() -> None:
    history = [*START, delivered(2.0, run(10, 0, 1, tag="stranger")), Drained(9.0, Q)]
    assert check(history).rules == {Rule.INVENTED}
    assert check(history, strangers=True).violations == []


def test_many_violations_are_counted_and_some_are_shown() -> None:
    history = [*START, published(2.0, 10, 1009), confirmed(2.1, 10, 1009), Drained(9.0, Q)]
    (violation,) = check(history).violations
    assert (violation.rule, violation.count, len(violation.examples)) == (Rule.LOST, 1000, 5)
