"""The cache of ops, against a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_gm.core.cache import CachedOp, OpCache


def op(number: int, payload: bytes = b"xy") -> CachedOp:
    return CachedOp(1, number, False, payload)


def test_ops_are_kept_until_they_are_stable() -> None:
    cache = OpCache(stable=4)
    for number in (5, 6, 7):
        cache.append(op(number))
    cache.trim(6)
    assert [kept.number for kept in cache.after(6)] == [7]
    assert (len(cache), cache.size_bytes, cache.stable) == (1, 2, 6)


def test_an_op_out_of_turn_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        OpCache(stable=0).append(op(2))


def test_dropped_ops_cannot_be_asked_for() -> None:
    cache = OpCache(stable=3)
    with pytest.raises(AssertionError):
        list(cache.after(2))


def test_stable_may_run_ahead_of_an_empty_cache() -> None:
    cache = OpCache(stable=0)
    cache.trim(9)
    assert cache.stable == 9


@given(st.lists(st.one_of(st.binary(max_size=5), st.integers(0, 12)), max_size=40))
def test_it_behaves_as_a_list_does(actions: list[bytes | int]) -> None:
    cache, ops, stable = OpCache(stable=0), list[CachedOp](), 0
    for action in actions:
        if isinstance(action, bytes):
            added = op(stable + len(ops) + 1, action)
            cache.append(added)
            ops.append(added)
        elif action <= stable + len(ops):
            cache.trim(action)
            ops = [kept for kept in ops if kept.number > action]
            stable = max(stable, action)
        cache.check()
        assert list(cache.after(stable)) == ops
        assert cache.size_bytes == sum(len(kept.payload) for kept in ops)
