"""The credit of a stream at its queue: none is lost, and none waits that is due."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmq_node.resources.credit import BYTES, MESSAGES, MORE_AFTER, Credit, StreamCredit


def test_the_credit_by_name_is_200_and_50() -> None:
    assert (MESSAGES, MORE_AFTER) == (200, 50)
    assert Credit().more_after_bytes == BYTES // 4


@pytest.mark.parametrize("numbers", [(0, 0, 1), (10, 0, 100), (10, 11, 100), (100, 50, 99)])
def test_credit_that_grants_nothing_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="credit of"):
        Credit(*numbers)


def test_a_stream_is_blocked_at_200_and_goes_on_after_50() -> None:
    stream = StreamCredit(Credit())
    for _ in range(200):
        assert not stream.is_blocked
        stream.take(1, 10)
    assert stream.is_blocked
    for _ in range(49):
        stream.processed(1, 10)
        assert stream.is_blocked
    stream.processed(1, 10)
    assert not stream.is_blocked
    stream.check()


def test_a_batch_passes_whole_and_large_ones_one_by_one() -> None:
    stream = StreamCredit(Credit())
    for _ in range(2):
        stream.take(1000, 50 * BYTES)
        assert stream.is_blocked
        stream.processed(1000, 50 * BYTES)
        assert not stream.is_blocked
        stream.check()


def test_few_large_messages_are_granted_by_their_bytes() -> None:
    stream = StreamCredit(Credit())
    stream.take(1, BYTES // 4)
    stream.take(1, BYTES)
    assert stream.is_blocked
    stream.processed(1, BYTES // 4)
    assert stream.is_blocked
    stream.processed(1, BYTES)
    assert not stream.is_blocked


MOST = Credit(6, 2, 600)
# A batch that the stream reads, or (None) the queue takes the oldest one.
STEPS = st.none() | st.tuples(st.integers(1, 9), st.integers(0, 1800))


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEPS, max_size=60))
def test_credit_is_conserved_and_comes_back(steps: list[tuple[int, int] | None]) -> None:
    """The model: a list of what is on its way, which is the credit and one batch at most."""
    stream, on_way = StreamCredit(MOST), list[tuple[int, int]]()
    for batch in steps:
        if batch is None and on_way:
            stream.processed(*on_way.pop(0))
        elif batch is not None and not stream.is_blocked:
            stream.take(*batch)
            on_way.append(batch)
        stream.check()
        # But for the last batch, which may have been larger than what was left.
        assert sum(messages for messages, _ in on_way[:-1]) < MOST.messages
        if on_way:
            assert sum(size for _, size in on_way[:-1]) < MOST.size_bytes
    while on_way:
        stream.processed(*on_way.pop(0))
        stream.check()
    assert not stream.is_blocked
