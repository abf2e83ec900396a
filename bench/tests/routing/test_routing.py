"""The cases as both sides set them up, and the table that is made of the runs."""

from __future__ import annotations

import io

import pytest
from bench.measure import BenchError, ClientReport, Point
from bench.routing import command
from bench.routing.cases import CASES, TOPIC_BINDINGS, Case
from bench.routing.measured import Measured, measure
from bench.routing.report import print_report
from rich.console import Console


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_binds_the_queues_that_it_says(case: Case) -> None:
    bindings = [*case.each_binding()]
    assert len(bindings) == len(set(bindings))
    assert {binding.queue for binding in bindings} == (
        set(range(case.queues)) if case.exchange else set()
    )
    if case.exchange == "topic":
        assert len(bindings) == TOPIC_BINDINGS
    assert 1 <= case.reached <= case.queues


class Played:
    """A side whose queues have `depths` after each run."""

    name = "ringmq"

    def __init__(self, depths: list[int]) -> None:
        self._depths = depths
        self.removed: list[str] = []

    def broker_pids(self) -> list[int]:
        return []

    def set_up(self, case: Case, label: str) -> None:
        pass

    def publish(self, case: Case, label: str, point: Point) -> ClientReport:
        return ClientReport(1.0, point.count, point.count, 0, 0.1, 1.0, 1.0, 1.0, 1.0)

    def depths(self, case: Case, label: str) -> list[int]:
        return self._depths

    def remove(self, case: Case, label: str) -> None:
        self.removed.append(label)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.routing.measured.SETTLE_S", 0.0)


def test_a_message_that_is_elsewhere_fails_the_run() -> None:
    case = Case("headers", "headers", queues=3, header=("a", "b"))
    point = Point(10, 100, 10)
    measured = measure(Played([10, 0, 0]), case, point, 1)
    assert (measured.rate_per_s, measured.case) == (10, "headers")
    lost = Played([9, 0, 0])
    with pytest.raises(BenchError, match=r"have \[9, 0, 0\] messages, not \[10, 0, 0\]"):
        measure(lost, case, point, 2)
    assert lost.removed


def test_the_table_sets_each_case_beside_the_plain_path_and_the_other_side() -> None:
    rates = {("ringmq", "plain"): 800, ("ringmq", "topic"): 400, ("rabbitmq", "plain"): 100}
    rates["rabbitmq", "topic"] = 80
    runs = [Measured(side, case, 1, rate, 1, 1, 1) for (side, case), rate in rates.items()]
    said = io.StringIO()
    print_report(Console(file=said), runs)
    [row] = [line.split() for line in said.getvalue().splitlines() if "topic" in line]
    assert row == ["topic", "400", "0.50", "1.0", "80", "0.80", "1.0", "5.0"]


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--peers", "ringmq,kafka"], ["--rounds", "0"], ["--save", "a/b"]):
        with pytest.raises(SystemExit):
            command.parse(words)
        assert "error:" in capsys.readouterr().err
