"""A link's messages: the generated code reads those written by hand, and the reverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq.v1 import ring_pb2
from ringmq_gm.core.views import MemberId
from ringmq_gm.links import wire
from ringmq_gm.links.wire import Opening, WireError


@given(st.binary(max_size=300), st.sampled_from([0, 127, 128, 20_000, 3_000_000]))
def test_a_message_is_the_protobuf_one(data: bytes, padding: int) -> None:
    content = data + bytes(padding)
    message = wire.message([data, bytes(padding)])
    if content:
        assert message == ring_pb2.LinkMessage(frames=content).SerializeToString()
    assert ring_pb2.LinkMessage.FromString(message).frames == content
    start, end = wire.content(message)
    assert message[start:end] == content


@given(
    st.builds(
        Opening,
        st.builds(MemberId, st.text("aé–", max_size=9), st.integers(0, 2**64 - 1)),
        st.text("aé–", max_size=9),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    )
)
def test_an_opening_is_read_as_it_was_written(opening: Opening) -> None:
    assert wire.read_opening(wire.opening_message(opening)) == opening


def test_an_answer_and_credit_are_read_as_they_were_written() -> None:
    assert wire.read_answer(wire.answer_message(MemberId("ä", 7))) == MemberId("ä", 7)
    assert wire.read_credit(wire.credit_message(2**40)) == (2**40, 0)
    assert wire.read_credit(wire.credit_message(7, 0xFF)) == (7, 0xFF)
    data = wire.frames_message(wire.PART, [b"ab", b"c"])
    kind, begin = wire.frames_in(data)
    assert (kind, data[begin:]) == (wire.PART, b"abc")
    assert wire.frames_in(wire.HEARTBEAT) == (wire.WHOLE, len(wire.HEARTBEAT))


def test_another_version_is_refused_with_both_numbers() -> None:
    message = bytearray(wire.answer_message(MemberId("a", 1)))
    message[2] = 9
    with pytest.raises(WireError, match="version 9, expected 2"):
        wire.read_answer(bytes(message))


@given(st.binary(max_size=60))
def test_garbage_is_refused(data: bytes) -> None:
    for read in (wire.read_opening, wire.read_answer, wire.read_credit, wire.frames_in):
        try:
            read(data)
        except WireError:
            continue
