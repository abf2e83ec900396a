"""The choice of files to be compacted: worth its cost, bounded, and at an end some time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.storage.messages.policy import FileNumbers, choose

FILES = st.lists(
    st.integers(1, 1000).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size))),
    max_size=12,
)


def numbers(pairs: list[tuple[int, int]]) -> list[FileNumbers]:
    return [FileNumbers(number, size, live) for number, (size, live) in enumerate(pairs)]


def chosen(pairs: list[tuple[int, int]], fraction: float = 0.5) -> list[int]:
    return choose(numbers(pairs), file_bytes_max=1000, garbage_fraction=fraction, files_min=3)


@given(FILES, st.sampled_from([0.1, 0.5, 0.9]))
def test_chosen_files_are_worth_it_and_fit_into_one_file(
    pairs: list[tuple[int, int]], fraction: float
) -> None:
    victims = chosen(pairs, fraction)
    assert len(set(victims)) == len(victims)
    picked = [pairs[number] for number in victims]
    assert sum(live for _, live in picked) <= 1000
    assert all(size - live > fraction / 2 * size for size, live in picked)
    assert all(live > 0 for _, live in picked), "an empty file is deleted, not moved"
    fractions = [live / size for size, live in picked]
    assert fractions == sorted(fractions)


@given(FILES)
def test_compacting_chosen_files_comes_to_an_end(pairs: list[tuple[int, int]]) -> None:
    for _ in range(100):
        pairs = [(size, live) for size, live in pairs if live]
        victims = chosen(pairs)
        if not victims:
            break
        moved = sum(pairs[number][1] for number in victims)
        pairs = [pair for number, pair in enumerate(pairs) if number not in victims]
        pairs.append((moved, moved))
    else:
        raise AssertionError("it goes on for ever")
    garbage = sum(size - live for size, live in pairs)
    assert len(pairs) < 3 or garbage <= 0.5 * sum(size for size, _ in pairs)


@pytest.mark.parametrize(
    ("pairs", "victims"),
    [
        ([], []),
        ([(1000, 400), (1000, 400)], []),
        ([(1000, 400), (1000, 400), (1000, 400)], [0, 1]),
        ([(1000, 1000), (1000, 100), (1000, 1000), (1000, 50)], [3, 1]),
        ([(1000, 240)], [0]),
        ([(1000, 260)], []),
        ([(100, 1)], []),
        ([(1000, 500), (1000, 500), (1000, 499)], [2, 0]),
        ([(1000, 1000), (1000, 700), (10, 1), (10, 1)], []),
    ],
)
def test_choices(pairs: list[tuple[int, int]], victims: list[int]) -> None:
    assert chosen(pairs) == victims
