"""Offsets, ranges and losses: nothing is read twice or left out, and no loss goes untold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmq_pipeline.offsets import (
    OffsetError,
    QueueBounds,
    QueueOffset,
    QueueRange,
    after_loss,
    from_json,
    loss_of,
    partitions,
    ranges,
    shares,
    to_json,
)

COUNTS = st.integers(0, 2**62)
OFFSETS = st.dictionaries(
    st.text(max_size=5), st.builds(QueueOffset, st.text(max_size=5), COUNTS, COUNTS), max_size=4
)


@settings(max_examples=30)
@given(OFFSETS)
def test_an_offset_comes_back_from_the_checkpoint(offset: dict[str, QueueOffset]) -> None:
    text = json.dumps(to_json(offset))
    assert from_json(text) == offset
    assert json.dumps(to_json(dict(reversed(offset.items())))) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "queues": {}}',
        '{"version": 1}',
        '{"version": 1, "queues": {"q": {"id": "i", "epoch": 0}}}',
        '{"version": 1, "queues": {"q": {"id": "i", "epoch": 0, "position": -1}}}',
        '{"version": 1, "queues": {"q": {"id": 3, "epoch": 0, "position": 1}}}',
        '{"version": 1, "queues": {"q": {"id": "i", "epoch": 0, "position": 1.5}}}',
    ],
)
def test_other_json_is_refused(value: str) -> None:
    with pytest.raises(OffsetError):
        from_json(value)


AT = QueueOffset("id", 3, 100)
NOW = QueueBounds("id", 3, first=90, end=200, acked_end=100, purged_end=0)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (None, "positions from 100 on can't be read any more: the queue has been deleted"),
        (QueueBounds("new", 0, 0, 200, 0, 0), "declared anew"),
        (QueueBounds("id", 7, 0, 200, 0, 0), "accepted a loss"),
        (QueueBounds("id", 3, 150, 200, 150, 0), "positions 100 to 149 .* acknowledged them"),
        (QueueBounds("id", 3, 150, 200, 0, 150), "positions 100 to 149 .* was purged"),
    ],
)
def test_each_loss_names_the_range(now: QueueBounds | None, said: str) -> None:
    loss = loss_of("q", AT, now)
    assert loss is not None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(str(loss))
    if now is not None:
        going_on = after_loss(loss, now)
        assert loss_of("q", going_on, now) is None
        assert going_on.position <= now.end


def test_holes_and_a_new_master_are_no_loss() -> None:
    assert loss_of("q", AT, NOW) is None
    # All consumed by others meanwhile.
    assert (
        loss_of("q", AT, QueueBounds("id", 3, first=200, end=200, acked_end=0, purged_end=0))
        is None
    )
    # It says less for a moment than the master before has said.
    assert (
        loss_of("q", AT, QueueBounds("id", 3, first=90, end=95, acked_end=90, purged_end=0)) is None
    )


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**6)),
    st.integers(0, 10**6),
)
def test_shares_of_a_limit(backlogs: dict[str, int], limit: int) -> None:
    given = shares(backlogs, limit)
    assert given.keys() == backlogs.keys()
    assert sum(given.values()) <= limit
    assert all(given[name] <= backlogs[name] for name in backlogs)
    waiting = [name for name, count in backlogs.items() if count]
    if limit >= len(waiting):
        assert all(given[name] for name in waiting)
    if limit >= sum(backlogs.values()):
        assert given == backlogs


@pytest.mark.parametrize(
    ("after", "served"), [("", "ab"), ("a", "bc"), ("b", "ca"), ("bb", "ca"), ("c", "ab")]
)
def test_queues_take_turns_at_a_limit_that_is_too_small(after: str, served: str) -> None:
    given = shares({"a": 5, "b": 5, "c": 5, "idle": 0}, 2, after=after)
    assert given == {"a": 0, "b": 0, "c": 0, "idle": 0} | dict.fromkeys(served, 1)


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1
    ),
    st.integers(1, 12),
    st.integers(0, 60),
)
def test_partitions_cover_a_batch_exactly(
    spans: dict[str, tuple[int, int]], partitions_min: int, positions_max: int
) -> None:
    start = {name: QueueOffset("i", 0, first) for name, (first, _) in spans.items()}
    end = {name: QueueOffset("i", 0, first + more) for name, (first, more) in spans.items()}
    whole = ranges(start, end)
    cut = partitions(whole, partitions_min=partitions_min, positions_max=positions_max)
    read = [(each.queue, at) for each in cut for at in range(each.first, each.end)]
    assert read == [(each.queue, at) for each in whole for at in range(each.first, each.end)]
    assert all(each.first < each.end for each in cut)
    assert not positions_max or all(each.end - each.first <= positions_max for each in cut)
    assert len(cut) >= min(partitions_min, len(read)) // 2


def test_a_batch_goes_forward_within_one_numbering() -> None:
    begin, end = {"q": QueueOffset("i", 0, 5)}, {"q": QueueOffset("i", 0, 9)}
    assert ranges(begin, end) == [QueueRange("q", "i", 0, 5, 9)]
    assert ranges({}, end) == [QueueRange("q", "i", 0, 0, 9)]
    with pytest.raises(OffsetError, match="can't end at 5"):
        ranges(end, begin)
    # It goes over to another numbering.
    assert ranges(begin, {"q": QueueOffset("i", 1, 9)}) == []
