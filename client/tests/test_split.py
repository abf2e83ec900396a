"""Answers whose large field is taken out before protobuf reads them: the same as protobuf's own."""

from __future__ import annotations

import pyarrow
import pyarrow.compute
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ringmq.errors import ProtocolError
from ringmq.reading.columns import rows_of
from ringmq.reading.split import SplitAnswer
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import reader_pb2 as wire

NUMBERS = st.integers(0, 1 << 62)
RUNS = st.builds(wire.BrowsedRun, first_position=NUMBERS, bodies=st.lists(st.binary(max_size=9)))
ANSWERS = st.builds(
    wire.BrowseResponse,
    first=NUMBERS,
    end=NUMBERS,
    runs=st.lists(RUNS, max_size=3),
    damaged=st.lists(st.builds(common.Range, first=NUMBERS, last=NUMBERS), max_size=3),
    arrow=st.binary(max_size=300),
    bodies=st.binary(max_size=300),
    numbering=st.builds(wire.Numbering, queue_id=st.text(max_size=9), epoch=NUMBERS),
)


@pytest.mark.parametrize(
    ("count", "body_sizes", "bodies", "what"),
    [
        (2, b"\3\0\0\0", b"abc", "4 bytes of sizes for 2 messages"),
        (1, b"\3\0\0", b"abc", "3 bytes of sizes for 1 messages"),
        (1, b"\4\0\0\0", b"abc", "3 bytes of bodies, their sizes say 4"),
    ],
)
def test_no_column_reaches_beyond_what_has_come(
    count: int, body_sizes: bytes, bodies: bytes, what: str
) -> None:
    run = wire.BrowsedRun(first_position=5, count=count)
    head = wire.BrowseResponse(runs=[run], body_sizes=body_sizes)
    with pytest.raises(ProtocolError, match=what):
        rows_of(pyarrow, head, memoryview(bodies), None)


@given(st.lists(ANSWERS, min_size=1, max_size=3))
def test_an_answer_is_what_protobuf_reads(answers: list[wire.BrowseResponse]) -> None:
    """Also if fields come more than once, as in messages that follow one another."""
    data = b"".join(answer.SerializeToString() for answer in answers)
    plain = wire.BrowseResponse.FromString(data)
    split = SplitAnswer.from_bytes(data)
    assert bytes(split.arrow) == plain.arrow
    assert bytes(split.bodies) == plain.bodies
    plain.ClearField("arrow")
    plain.ClearField("bodies")
    assert split.head == plain


def test_fields_of_a_newer_node_are_passed_over() -> None:
    # Numbers 20 to 22, of 1, 8 and 4 bytes.
    newer = b"\xa0\x01\x07" + b"\xa9\x01" + bytes(8) + b"\xb5\x01" + bytes(4)
    split = SplitAnswer.from_bytes(
        newer + wire.BrowseResponse(end=7, bodies=b"b").SerializeToString()
    )
    assert (split.end, bytes(split.bodies)) == (7, b"b")


@given(ANSWERS, st.data())
def test_bytes_that_are_no_answer_are_refused_or_read_as_protobuf_does(
    answer: wire.BrowseResponse, data: st.DataObject
) -> None:
    whole = answer.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))] + data.draw(st.binary(max_size=3))
    try:
        plain = wire.BrowseResponse.FromString(cut)
    except DecodeError:
        with pytest.raises(DecodeError):
            SplitAnswer.from_bytes(cut)
        return
    try:
        split = SplitAnswer.from_bytes(cut)
    except DecodeError:
        return  # Groups, which nobody sends any more.
    assert (bytes(split.arrow), bytes(split.bodies)) == (plain.arrow, plain.bodies)
