"""Relocation maps, as bytes and back."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.relocation import LOST, MapError, Table

U32 = st.integers(0, LOST)
U64 = st.integers(0, 2**64 - 1)
ROWS = st.dictionaries(U32, st.tuples(U32, U32, U32), max_size=30)


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
