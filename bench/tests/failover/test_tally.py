from __future__ import annotations

import pytest
from bench.failover.tally import Contents, FaultSeen, contents, figures, longest_gap_s


@pytest.mark.parametrize(
    ("confirmed_at", "gap_s"),
    [
        ([0.9, 1.1, 3.6, 3.7, 4.9], 2.5),
        # The fault is its beginning, however long ago the last confirm was.
        ([0.1, 1.5, 2.5, 3.5, 4.5], 1.0),
        # Those before and after the two moments don't count, and nobody need have come between.
        ([0.1, 0.2, 5.5], 4.0),
        ([], 4.0),
        ([1.0, 1.5, 2.0], 3.0),
    ],
    ids=["between two", "from the fault", "none inside", "none at all", "up to the end"],
)
def test_the_longest_time_without_a_confirm(confirmed_at: list[float], gap_s: float) -> None:
    assert longest_gap_s(confirmed_at, 1.0, 5.0) == pytest.approx(gap_s)


def test_a_confirmed_message_that_is_not_drained_is_lost() -> None:
    assert contents({1, 2, 3}, [1, 3]) == Contents(confirmed=3, lost=1, duplicated=0)


def test_a_message_that_nobody_confirmed_is_neither_lost_nor_duplicated() -> None:
    assert contents({1, 2}, [1, 2, 3]) == Contents(confirmed=2, lost=0, duplicated=0)


def test_every_further_copy_is_a_duplicate() -> None:
    assert contents({1, 2}, [1, 1, 1, 2, 3, 3]) == Contents(confirmed=2, lost=0, duplicated=3)


def seen(system: str, fault: str, gap_s: float, lost: int = 0) -> FaultSeen:
    return FaultSeen(system, fault, 1, gap_s, 1.0, True, Contents(10, lost, 0))


def test_each_system_and_kind_of_fault_has_a_row() -> None:
    rows = figures(
        [
            seen("a", "kill", 0.4),
            seen("b", "kill", 9.0, lost=2),
            seen("a", "kill", 0.2),
            seen("b", "kill", 7.0, lost=3),
            seen("a", "kill", 0.3),
            seen("a", "cut", 2.0),
        ]
    )
    found = [(row.fault, row.system, row.faults, row.gap_p50_s, row.gap_max_s) for row in rows]
    assert found == [
        ("kill", "a", 3, 0.3, 0.4),
        ("kill", "b", 2, 7.0, 9.0),
        ("cut", "a", 1, 2.0, 2.0),
    ]
    assert [row.lost for row in rows] == [0, 5, 0]
    assert [row.confirmed for row in rows] == [30, 20, 10]
