"""Ops come back from their bytes as they were; other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.block import Block
from ringmq_node.queue.leases import (
    INSTANCE_BYTES_MAX,
    LEASE_TEXT_BYTES_MAX,
    ChangeLease,
    LeaseAction,
)
from ringmq_node.queue.ops import (
    Barrier,
    Doom,
    Forget,
    NoteGone,
    NoteTime,
    Op,
    OpError,
    Publish,
    Remove,
    Requeue,
    decode,
    encode,
)

NUMBERS = st.integers(0, 2**64 - 1)
RANGES = st.lists(
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair))), max_size=8
).map(tuple)
TEXTS = st.text(max_size=LEASE_TEXT_BYTES_MAX // 4)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Remove, RANGES),
    st.builds(Requeue, RANGES),
    st.builds(Doom, st.sampled_from(DeathReason), RANGES),
    st.just(Barrier()),
    st.builds(NoteTime, NUMBERS),
    st.builds(NoteGone, NUMBERS, NUMBERS),
    st.builds(
        ChangeLease,
        st.sampled_from(LeaseAction),
        TEXTS,
        NUMBERS,
        TEXTS,
        st.binary(max_size=INSTANCE_BYTES_MAX),
        NUMBERS,
        NUMBERS,
    ),
    st.builds(Forget, st.lists(st.binary(min_size=1, max_size=PRODUCER_ID_BYTES_MAX)).map(tuple)),
    st.builds(
        Publish,
        first_position=NUMBERS,
        block=st.lists(st.binary(max_size=20), min_size=1, max_size=5).map(Block.of),
        transient=st.booleans(),
        producer_id=st.binary(max_size=PRODUCER_ID_BYTES_MAX),
        first_sequence=NUMBERS,
        expires_at_ms=st.none() | st.integers(0, 2**62),
        priority=st.integers(0, 255),
        born_doomed=st.booleans(),
    ),
)


def alike(one: Op, other: Op) -> bool:
    if isinstance(one, Publish) and isinstance(other, Publish):
        names = ("first_position", "transient", "producer_id", "first_sequence", "born_doomed")
        same = all(getattr(one, name) == getattr(other, name) for name in names)
        return same and one.block.data == other.block.data
    return one == other


@given(OPS)
def test_op_comes_back_from_its_bytes(op: Op) -> None:
    found = decode(encode(op))
    assert alike(found, op)
    assert encode(found) == encode(op)


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_is_an_op(data: bytes) -> None:
    try:
        op = decode(data)
    except OpError:
        return
    # Flags and reserved bytes without a meaning are not kept.
    assert alike(decode(encode(op)), op)


@given(OPS, st.integers(0, 200))
def test_cut_op_is_refused(op: Op, size: int) -> None:
    data = encode(op)
    if size < len(data):
        with pytest.raises(OpError):
            decode(data[:size])
    with pytest.raises(OpError):
        decode(data + b"x")


def test_range_that_ends_before_it_starts_is_refused() -> None:
    data = encode(Remove(((3, 3),)))
    with pytest.raises(OpError, match="before its start"):
        decode(data[:8] + (4).to_bytes(8, "little") + data[16:])


def test_publish_whose_block_has_another_count_is_refused() -> None:
    data = bytearray(encode(Publish(0, Block.of([b"a", b"b"]))))
    data[4] = 3
    with pytest.raises(OpError, match="says 3"):
        decode(bytes(data))


def test_producer_id_over_the_limit_is_refused() -> None:
    data = encode(Publish(0, Block.of([b"a"]), False, b"x" * (PRODUCER_ID_BYTES_MAX + 1)))
    with pytest.raises(OpError, match="producer id"):
        decode(data)


def test_last_position_and_sequence_run_along() -> None:
    op = Publish(10, Block.of([b"a", b"b", b"c"]), first_sequence=100)
    assert (op.last_position, op.last_sequence) == (12, 102)


def test_doom_for_an_unknown_reason_is_refused() -> None:
    data = bytearray(encode(Doom(DeathReason.EXPIRED, ((0, 1),))))
    for code in (0, 5, 255):
        data[1] = code
        with pytest.raises(OpError, match=f"reason of death {code}"):
            decode(bytes(data))
