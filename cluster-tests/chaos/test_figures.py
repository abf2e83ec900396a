"""The figures of a run, from histories written by hand."""

from __future__ import annotations

from pathlib import Path

from chaos import picture
from chaos.figures import by_kind, gaps, longest_s, look_at, median
from chaos.report import Outcome
from chaos.run import Options, judge
from history.checker import Rule
from history.records import (
    Confirm,
    Deliver,
    Drained,
    History,
    Nemesis,
    Publish,
    Record,
    Run,
    Whole,
)


def traffic(queue: str, *times: float) -> list[Record]:
    """A message each, confirmed 10 ms after it was handed over."""
    tag = f"lib-{queue}"
    return [
        record
        for number, at in enumerate(times)
        for record in (
            Publish(at - 0.01, queue, tag, number, number),
            Confirm(at, queue, tag, number, number),
        )
    ]


def history_of_a_kill() -> list[Record]:
    records = [
        *traffic("x", 1.0, 2.0, 3.0, 3.5, 6.0, 6.5, 9.0),
        *traffic("y", *(0.1 * tick for tick in range(10, 91))),
        Nemesis(3.2, True, 1, "kill", ("a",), "Crash(a)"),
        Nemesis(5.2, False, 1, "kill", ("a",), "Crash(a)"),
        Whole(6.6, 1),
        Deliver(9.05, "x", "c", 1, (Run(0, "lib-x", 0, 7, False),)),
        Deliver(9.1, "y", "c", 1, (Run(0, "lib-y", 0, 81, False),)),
        Drained(9.2, "x"),
        Drained(9.2, "y"),
    ]
    return sorted(records, key=lambda record: record.at)


def test_a_gap_counts_in_the_queue_that_fared_worst() -> None:
    confirmed_at = {"x": [1.0, 2.0, 5.0], "y": [1.0, 1.5, 2.0, 2.5, 5.5]}
    assert longest_s(gaps(confirmed_at, [(0.5, 5.5)])) == 3.0
    # A gap that had begun before counts from the fault on, and one that goes on up to the end.
    assert longest_s(gaps(confirmed_at, [(4.0, 5.0)])) == 1.0
    assert longest_s(gaps(confirmed_at, [(6.0, 9.0)])) == 3.0


def test_a_round_counts_until_all_is_whole_again() -> None:
    (figures,) = by_kind(look_at(history_of_a_kill()))
    assert (figures.kind, figures.rounds) == ("kill", 1)
    assert figures.without_service_p50_s == figures.without_service_max_s == 2.5
    assert round(figures.whole_max_s, 3) == 1.4


def test_the_median_is_one_of_the_values() -> None:
    assert [median([3.0]), median([4.0, 1.0]), median([5.0, 1.0, 2.0])] == [3.0, 1.0, 2.0]


def test_a_picture_is_drawn_also_of_an_empty_history(tmp_path: Path) -> None:
    for name, records in (("kill", history_of_a_kill()), ("nothing", [])):
        picture.save(tmp_path / f"{name}.png", look_at(records), name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def judged(folder: Path, records: list[Record]) -> Outcome:
    with History(folder / "history.jsonl") as history:
        for record in records:
            history.note(record)
    outcome = Outcome(7, 1.0)
    judge(outcome, Options(7, 1.0, folder, queues=("x", "y")))
    return outcome


def test_the_verdict_of_a_sound_history(tmp_path: Path) -> None:
    outcome = judged(tmp_path, history_of_a_kill())
    assert outcome.is_well
    text = outcome.text("make chaos SEED=7")
    assert "all is well: 0 lost, 0 duplicated" in text
    assert "again: make chaos SEED=7" in text


def test_a_lost_message_makes_a_failed_run(tmp_path: Path) -> None:
    lost: list[Record] = [Publish(0.5, "x", "other", 0, 0), Confirm(0.6, "x", "other", 0, 0)]
    outcome = judged(tmp_path, [*lost, *history_of_a_kill()])
    assert outcome.verdict.rules == {Rule.LOST}
    assert not outcome.is_well
    assert "VIOLATED: queue x: 1 confirmed and lost: other 0" in outcome.text("")


def test_a_queue_that_was_not_drained_makes_a_failed_run(tmp_path: Path) -> None:
    outcome = judged(tmp_path, history_of_a_kill()[:-1])
    assert not outcome.is_well
    assert outcome.failures == ["only 1 of 2 queues drained"]
