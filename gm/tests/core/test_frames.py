"""Frames come back from their bytes, and other bytes are refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringmq_gm.core.frames import (
    Frame,
    FrameError,
    Gone,
    Hello,
    Mark,
    MarksFrame,
    OpFrame,
    Ping,
    Pong,
    Resume,
    Submit,
    ViewAsked,
    ViewTold,
    ViewWanted,
    decode,
    decode_parts,
    encode,
)
from ringmq_gm.core.views import NUMBER_MAX, MemberId, first_view

U64 = st.integers(0, 2**64 - 1)
RINGS = st.text(max_size=40)
PAYLOADS = st.binary(max_size=200)
VIEW = first_view([MemberId("a", 3), MemberId("b", 2**40)], 2)
MARKS = st.lists(st.builds(Mark, U64, U64, st.booleans()), max_size=6).map(tuple)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, RINGS, U64, U64, U64, U64, U64),
    st.builds(Resume, RINGS, U64, U64),
    st.builds(OpFrame, RINGS, U64, U64, U64, U64, U64, st.booleans(), MARKS, PAYLOADS),
    st.builds(MarksFrame, RINGS, U64, U64, U64, MARKS),
    st.builds(
        lambda ring, epoch: ViewTold(ring, epoch, replace(VIEW, epoch=epoch)),
        RINGS,
        st.integers(1, NUMBER_MAX),
    ),
    st.builds(
        lambda ring, epoch: ViewWanted(ring, epoch, replace(VIEW, epoch=epoch + 1)),
        RINGS,
        st.integers(0, NUMBER_MAX - 1),
    ),
    st.builds(ViewAsked, RINGS, U64),
    st.builds(Gone, RINGS, U64),
    st.builds(Ping, RINGS, U64, U64),
    st.builds(Pong, RINGS, U64, U64, U64, U64, st.booleans()),
    st.builds(Submit, RINGS, U64, st.booleans(), PAYLOADS),
)


def joined(frames: list[Frame]) -> bytes:
    return b"".join(piece for frame in frames for piece in encode(frame))


def cut(data: st.DataObject, encoded: bytes) -> list[memoryview]:
    """These bytes in one or several parts."""
    places = data.draw(st.lists(st.integers(0, len(encoded)), max_size=4))
    ends = [0, *sorted(places), len(encoded)]
    return [memoryview(encoded)[start:end] for start, end in pairwise(ends)]


@given(st.lists(FRAMES, max_size=5))
def test_frames_come_back_from_their_bytes(frames: list[Frame]) -> None:
    assert list(decode(joined(frames))) == frames


@given(FRAMES, st.data())
def test_a_frame_comes_back_from_its_parts(frame: Frame, data: st.DataObject) -> None:
    (back,) = decode_parts(cut(data, joined([frame])))
    assert back == frame
    # Equal to one, a view would keep the whole message in memory.
    assert not isinstance(back, OpFrame) or type(back.payload) is bytes


@given(st.lists(FRAMES, min_size=2, max_size=4), st.data())
def test_several_frames_come_back_from_parts(frames: list[Frame], data: st.DataObject) -> None:
    assert list(decode_parts(cut(data, joined(frames)))) == frames


@given(FRAMES, st.data())
def test_parts_with_a_changed_byte_are_what_they_are_together(
    frame: Frame, data: st.DataObject
) -> None:
    encoded = bytearray(joined([frame]))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(encoded)
    try:
        expected = list(decode(changed))
    except FrameError:
        with pytest.raises(FrameError):
            list(decode_parts(cut(data, changed)))
    else:
        assert list(decode_parts(cut(data, changed))) == expected


def test_the_payload_of_an_op_is_not_copied() -> None:
    payload = b"x" * 1000
    pieces = encode(OpFrame("q", 1, 0, 0, 1, 1, False, (), payload))
    assert pieces[-1] is payload


@given(st.binary(max_size=400))
@example(b"\x14\x00\x00\x00\x03\x00\xff\xff" + b"\x00" * 16)
@example(b"\xff\xff\xff\xff" + b"\x00" * 30)
def test_garbage_raises_nothing_but_frame_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        list(decode(data))


@given(FRAMES, st.data())
def test_a_frame_with_a_changed_byte_raises_nothing_but_frame_error(
    frame: Frame, data: st.DataObject
) -> None:
    encoded = bytearray(joined([frame]))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        list(decode(bytes(encoded)))


@given(FRAMES, st.data())
def test_a_frame_that_is_cut_short_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = joined([frame])
    cut = encoded[: data.draw(st.integers(1, len(encoded) - 1))]
    with pytest.raises(FrameError):
        list(decode(cut))
