"""`Marks` against a dict of positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.marks import _PACKED_STEP, MARK_BYTES, Marks

# Gap before it, length, value; then what of all that dies.
RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3)), max_size=12)
GONE = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10)), max_size=6)


def made(runs: list[tuple[int, int, int]]) -> tuple[Marks, dict[int, int]]:
    marks, at = Marks(), 0
    model: dict[int, int] = {}
    for gap, length, value in runs:
        at += gap
        marks.add(at, at + length - 1, value)
        model |= dict.fromkeys(range(at, at + length), value)
        at += length
    return marks, model


@given(RUNS, GONE)
def test_live_positions_keep_their_values(
    runs: list[tuple[int, int, int]], dead: list[tuple[int, int]]
) -> None:
    marks, model = made(runs)
    live = RangeSet([(at, at) for at in model])
    for first, size in dead:
        gone = live.intersection(first, first + size)
        live.subtract(gone)
        marks.prune(gone, live)
        marks.check(live)
        for at, value in model.items():
            if at in live:
                assert marks.parts(at, at) == [(at, at, value)]
    twin = Marks()
    twin.extend_packed(marks.pack())
    assert twin == marks == marks.copy()
    assert twin.sums == marks.sums
    everything = marks.parts(0, 1000)
    assert everything == [*marks]


def test_marks_are_packed_in_steps_and_any_part_of_them() -> None:
    """One mark more than two steps have."""
    marks = Marks((2 * at, 2 * at, at) for at in range(2 * _PACKED_STEP + 1))
    whole = b"".join(value.to_bytes(8, "little") for mark in marks for value in mark)
    assert marks.pack() == whole
    assert marks.pack(1, len(marks) - 1) == whole[MARK_BYTES:-MARK_BYTES]
    assert marks.pack(_PACKED_STEP) == whole[_PACKED_STEP * MARK_BYTES :]
    assert marks.pack(7, 7) == marks.pack(len(marks)) == b""


def test_equal_neighbours_are_one_mark() -> None:
    marks = Marks([(0, 4, 7), (5, 9, 7), (10, 10, 8)])
    assert [*marks] == [(0, 9, 7), (10, 10, 8)]


@pytest.mark.parametrize(
    "numbers",
    [(1,), (0, 1, 2, 1, 2, 2), (3, 2, 1), (0, 1, 7, 2, 3, 7), (5, 6, 1, 0, 1, 1)],
    ids=["short", "overlap", "backwards", "one mark as two", "out of order"],
)
def test_other_bytes_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="marks"):
        Marks().extend_packed(b"".join(each.to_bytes(8, "little") for each in numbers))
