"""The small parts of the message store: counts, maps, the choice of files, the cache, names."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.queue.block import Block
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.cache import BlockCache
from ringmq_node.storage.messages.counts import Counts
from ringmq_node.storage.messages.files import parse_name
from ringmq_node.storage.messages.policy import FileNumbers, choose
from ringmq_node.storage.messages.relocation import LOST, MapError, Table

U32 = st.integers(0, LOST)
U64 = st.integers(0, 2**64 - 1)
ROWS = st.dictionaries(U32, st.tuples(U32, U32, U32), max_size=30)


@given(st.integers(0, 2**32))
def test_counts_agree_with_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    counts = Counts()
    model: dict[int, int] = {}
    for _ in range(60):
        index = rng.choice([0, 1, 2, 300])
        burst = rng.choice([1, 1, 100, 254, 255, 256, 600])
        for _ in range(burst):
            if rng.random() < 0.5 and model.get(index, 0):
                model[index] -= 1
                assert counts.drop(index) == model[index]
            else:
                model[index] = model.get(index, 0) + 1
                assert counts.add(index) == model[index]
    assert all(counts.get(index) == model.get(index, 0) for index in (0, 1, 2, 3, 300, 5000))
    assert counts.nonzero() == sum(count > 0 for count in model.values())
    chosen = counts.select([300, 2, 7, 0])
    assert [chosen.get(index) for index in range(5)] == [
        model.get(index, 0) for index in (300, 2, 7, 0, 9999)
    ]
    for index in model:
        while counts.get(index):
            model[index] -= 1
            assert counts.drop(index) == model[index]


@given(ROWS, U64)
def test_a_map_is_read_as_it_was_written(
    rows: dict[int, tuple[int, int, int]], number: int
) -> None:
    ordered = sorted((ordinal, *rest) for ordinal, rest in rows.items())
    table = Table(*(array("I", [row[column] for row in ordered]) for column in range(4)))
    data = relocation.encode(number, table)
    assert len(data) == 32 + 16 * len(rows)
    assert relocation.decode("x", number, data) == table
    for row, ordinal in enumerate(table.ordinals):
        assert table.find(ordinal) == row
        if ordinal + 1 not in rows:
            assert table.find(ordinal + 1) == -1
    with pytest.raises(MapError):
        relocation.decode("x", number, data + b"\0")


def test_an_unsorted_map_is_none() -> None:
    table = Table(array("I", [2, 1]), *(array("I", [0, 0]) for _ in range(3)))
    with pytest.raises(MapError, match="not sorted"):
        relocation.decode("x", 1, relocation.encode(1, table))


FILES = st.lists(
    st.integers(1, 1000).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size))),
    max_size=12,
)


def numbers(pairs: list[tuple[int, int]]) -> list[FileNumbers]:
    return [FileNumbers(number, size, live) for number, (size, live) in enumerate(pairs)]


def chosen(pairs: list[tuple[int, int]], fraction: float = 0.5) -> list[int]:
    return choose(numbers(pairs), file_bytes_max=1000, garbage_fraction=fraction, files_min=3)


@given(FILES, st.sampled_from([0.1, 0.5, 0.9]))
def test_what_is_chosen_is_worth_it_and_fits_into_one_file(
    pairs: list[tuple[int, int]], fraction: float
) -> None:
    victims = chosen(pairs, fraction)
    assert len(set(victims)) == len(victims)
    picked = [pairs[number] for number in victims]
    assert sum(live for _, live in picked) <= 1000
    assert all(size - live > fraction / 2 * size for size, live in picked)
    assert all(live > 0 for _, live in picked), "what is empty is deleted, not moved"
    fractions = [live / size for size, live in picked]
    assert fractions == sorted(fractions)


@given(FILES)
def test_compacting_what_is_chosen_comes_to_an_end(pairs: list[tuple[int, int]]) -> None:
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


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    blocks = [Block.of([bytes(100)]) for _ in range(5)]
    size = len(blocks[0].data)
    cache = BlockCache(3 * size)
    for key in range(3):
        cache.put(key, blocks[key])
    assert cache.get(0) is blocks[0]
    cache.put(3, blocks[3])
    assert [cache.get(key) for key in range(4)] == [blocks[0], None, blocks[2], blocks[3]]
    cache.put(4, Block.of([bytes(1000)]))
    assert cache.get(4) is None
    cache.drop(0)
    cache.drop(0)
    cache.put(2, blocks[4])
    assert cache.size_bytes == 2 * size


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("12.rdq", (12, ".rdq")),
        ("7.map", (7, ".map")),
        ("7.map.new", None),
        ("x.rdq", None),
        ("-1.rdq", None),
        ("4294967294.rdq", (4294967294, ".rdq")),
        ("4294967295.rdq", None),
        ("99999999999.rdq", None),
    ],
)
def test_names(name: str, parsed: tuple[int, str] | None) -> None:
    assert parse_name(name) == parsed
