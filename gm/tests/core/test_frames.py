"""Frames come back from their bytes, and other bytes are refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

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


@given(st.lists(FRAMES, max_size=5))
def test_frames_come_back_from_their_bytes(frames: list[Frame]) -> None:
    assert list(decode(joined(frames))) == frames


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
