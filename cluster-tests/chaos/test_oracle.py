"""What the process tests note of a publisher and of deliveries is judged as a history."""

from __future__ import annotations

import pytest
from history.records import Confirm, Publish, Record
from nemesis.oracle import Delivered, body_of, runs_of

from ringmq import Batch
from ringmq.model.messages import Part


class Load:
    """Ten messages, all of them confirmed."""

    def __init__(self) -> None:
        self.records: list[Record] = [
            Publish(1.0, "", "p", 0, 9),
            Confirm(2.0, "", "p", 0, 9),
        ]


def batch(position: int, *numbers: int, redelivered: bool = False) -> Batch:
    return Batch([Part(position, [body_of("p", n, 40) for n in numbers], (), redelivered)], 1)


def test_neighbours_are_noted_together() -> None:
    runs = runs_of(batch(5, 0, 1, 2, 7, 8))
    assert [(run.position, run.number, run.count) for run in runs] == [(5, 0, 3), (8, 7, 2)]


def test_all_that_was_confirmed_and_came_is_well() -> None:
    delivered = Delivered()
    delivered.note("c", batch(0, *range(10)))
    delivered.judge(Load())


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ([batch(0, *range(9))], "confirmed and lost: p 9"),
        ([batch(0, *range(10)), batch(10, 3)], "enqueued twice"),
        ([batch(0, *range(10)), batch(9, 9)], "came again without"),
        ([batch(0, *range(8), 9, 8)], "not in the order of publishing"),
        ([batch(0, *range(11))], "never published"),
    ],
)
def test_what_went_wrong_is_told(seen: list[Batch], reason: str) -> None:
    delivered, other = Delivered(), Delivered()
    delivered.note("c", seen[0])
    for late in seen[1:]:
        other.note("d", late)
    delivered.merge(other)
    with pytest.raises(AssertionError, match=reason):
        delivered.judge(Load())
