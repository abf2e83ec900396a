"""The outbox: which frame may overtake which, which is left out, and how many bytes wait."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_gm.core.frames import (
    Frame,
    Hello,
    Mark,
    MarksFrame,
    OpFrame,
    Ping,
    Pong,
    Resume,
    Submit,
    ViewTold,
    decode,
)
from ringmq_gm.core.views import MemberId, first_view
from ringmq_gm.links import wire
from ringmq_gm.links.outbox import SMALL_BYTES_MAX, LinkOutbox

MESSAGE_BYTES = 6144


def op(number: int, *, ring: str = "r", epoch: int = 1, size: int = 10, mark: int = 0) -> OpFrame:
    return OpFrame(ring, epoch, 0, 0, epoch, number, False, (Mark(mark, mark),), bytes(size))


def marks(received: int, *, ring: str = "r", epoch: int = 1) -> MarksFrame:
    return MarksFrame(ring, epoch, 0, 0, (Mark(received, received),))


def outbox() -> LinkOutbox:
    return LinkOutbox(message_bytes=MESSAGE_BYTES)


class Receiver:
    """Takes messages as the other end does."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._parts: list[bytes] = []

    def take(self, data: bytes) -> None:
        kind, begin = wire.frames_in(data)
        body = data[begin:]
        if kind != wire.WHOLE:
            assert len(body) <= MESSAGE_BYTES
            self._parts.append(body)
            if kind == wire.PART:
                return
            body, self._parts = b"".join(self._parts), []
        self.frames += decode(body)


def drained(box: LinkOutbox, *, bodies: bool = True) -> list[Frame]:
    receiver = Receiver()
    while (data := box.take(bodies=bodies)) is not None:
        box.check()
        receiver.take(data)
    return receiver.frames


def put(box: LinkOutbox, *frames: Frame) -> LinkOutbox:
    for frame in frames:
        box.put(frame)
        box.check()
    return box


def test_ops_and_marks_of_a_ring_keep_their_order() -> None:
    assert drained(put(outbox(), op(1), op(2), marks(2))) == [op(1), op(2), marks(2)]


def test_stable_ops_do_not_wait_for_a_joiner_that_was_left_behind() -> None:
    """They would have waited without bounds: the core had dropped its copies."""
    box = put(outbox(), Hello("r", 1, 0, 0, 0, 0), op(1), op(2), op(3))
    put(box, MarksFrame("r", 1, 2, 0, ()))
    assert box.waiting_bytes("r") == 10
    put(box, MarksFrame("r", 1, 3, 0, ()))
    assert box.waiting_bytes("r") == 0
    assert drained(box, bodies=False) == [Hello("r", 1, 0, 0, 0, 0), MarksFrame("r", 1, 3, 0, ())]


def test_marks_that_wait_are_replaced_by_newer_ones_and_by_an_op_with_marks() -> None:
    assert drained(put(outbox(), op(1), marks(1), marks(2))) == [op(1), marks(2)]
    assert drained(put(outbox(), op(1), marks(1), op(2, mark=1))) == [op(1), op(2, mark=1)]


def test_marks_stay_before_an_op_without_marks() -> None:
    bare = OpFrame("r", 1, 0, 0, 1, 2, False, (), b"x")
    assert drained(put(outbox(), op(1), marks(1), bare)) == [op(1), marks(1), bare]


def test_marks_of_another_ring_go_before_bodies() -> None:
    waiting = put(outbox(), op(1), marks(7, ring="other"))
    assert drained(waiting) == [marks(7, ring="other"), op(1)]


def test_frames_of_several_rings_go_together_those_without_bodies_first() -> None:
    waiting = put(outbox(), op(1), op(1, ring="s"), marks(7, ring="t"), op(1, ring="u", size=900))
    receiver = Receiver()
    data = waiting.take(bodies=True)
    assert data is not None
    receiver.take(data)
    assert receiver.frames == [
        marks(7, ring="t"),
        op(1),
        op(1, ring="s"),
        op(1, ring="u", size=900),
    ]
    assert not waiting


def test_a_few_frames_are_no_more_than_a_message() -> None:
    waiting = put(outbox(), *(op(1, ring=f"ring {number}", size=4000) for number in range(4)))
    sizes = []
    while (data := waiting.take(bodies=True)) is not None:
        sizes.append(len(data))
        waiting.check()
    assert len(sizes) == 4
    assert max(sizes) < MESSAGE_BYTES


def test_control_goes_first_and_only_its_newest() -> None:
    control: list[Frame] = [
        Ping("r", 1, 2),
        Pong("r", 1, 3, 0, 0, True),
        ViewTold("r", 1, first_view([MemberId("a", 1)], 1)),
        Resume("r", 1, 9),
    ]
    waiting = put(outbox(), op(1), Ping("r", 1, 1), *control)
    assert drained(waiting) == [*control, op(1)]


def test_without_bodies_a_frame_behind_a_body_waits() -> None:
    waiting = put(outbox(), op(1), marks(1), Hello("other", 1, 0, 0, 0, 0), Ping("r", 1, 1))
    assert drained(waiting, bodies=False) == [Ping("r", 1, 1), Hello("other", 1, 0, 0, 0, 0)]
    assert waiting.has_bodies
    assert drained(waiting) == [op(1), marks(1)]


def test_a_newer_epoch_replaces_the_waiting_frames_of_its_ring() -> None:
    waiting = put(outbox(), op(1), op(2), op(1, ring="other"), Hello("r", 2, 0, 2, 0, 0))
    assert drained(waiting) == [Hello("r", 2, 0, 2, 0, 0), op(1, ring="other")]
    assert not waiting.has_bodies


def test_an_older_epoch_is_left_out() -> None:
    assert drained(put(outbox(), op(5, epoch=2), op(4, epoch=1))) == [op(5, epoch=2)]


def test_ops_sent_again_replace_themselves() -> None:
    waiting = put(outbox(), op(1), op(2), op(3), op(2, mark=1), op(3, mark=1))
    assert waiting.waiting_bytes("r") == 30
    assert drained(waiting) == [op(1), op(2, mark=1), op(3, mark=1)]


def test_rings_with_large_bodies_take_turns_of_a_message() -> None:
    size = SMALL_BYTES_MAX + 1
    waiting = LinkOutbox(message_bytes=3 * size + 500)
    put(waiting, *(op(n, size=size) for n in range(1, 9)))
    put(waiting, *(op(n, ring="other", size=size) for n in range(1, 3)))
    order = [(frame.ring, frame.number) for frame in drained(waiting) if isinstance(frame, OpFrame)]
    expected = [("r", n) for n in (1, 2, 3)] + [("other", 1), ("other", 2)]
    assert order == expected + [("r", n) for n in range(4, 9)]


def test_a_ring_with_small_bodies_passes_the_large_ones_and_waits_with_its_rest() -> None:
    size = SMALL_BYTES_MAX
    waiting = put(outbox(), *(op(n, ring="large", size=size + 1) for n in (1, 2)))
    put(waiting, *(op(n, size=size) for n in (1, 2)))
    order = [(frame.ring, frame.number) for frame in drained(waiting) if isinstance(frame, OpFrame)]
    assert order == [("r", 1), ("large", 1), ("r", 2), ("large", 2)]


def test_others_pass_a_frame_that_goes_in_parts_and_its_own_ring_does_not() -> None:
    large = op(1, size=5 * MESSAGE_BYTES)
    waiting = put(outbox(), large, marks(1), op(1, ring="other"), marks(9, ring="third"))
    assert drained(waiting) == [marks(9, ring="third"), op(1, ring="other"), large, marks(1)]


def test_two_large_frames_do_not_mix() -> None:
    large = [op(1, size=3 * MESSAGE_BYTES), op(1, ring="other", size=3 * MESSAGE_BYTES)]
    assert drained(put(outbox(), *large, op(2), op(2, ring="third"))) == [
        op(2, ring="third"),
        large[0],
        op(2),
        large[1],
    ]


@pytest.mark.parametrize("size", [MESSAGE_BYTES - 80, 2 * MESSAGE_BYTES])
def test_a_large_frame_goes_though_there_is_always_a_ping(size: int) -> None:
    receiver = Receiver()
    waiting = put(outbox(), op(1, size=size))
    for nonce in range(1, 9):
        # A link that is busy has room for one message at a time.
        put(waiting, Ping("r", 1, nonce))
        data = waiting.take(bodies=True)
        assert data is not None
        receiver.take(data)
        waiting.check()
    assert op(1, size=size) in receiver.frames


def test_a_ring_that_is_forgotten_is_not_sent() -> None:
    waiting = put(outbox(), op(1), Resume("r", 1, 0), op(1, ring="other"))
    waiting.forget("r")
    waiting.check()
    assert drained(waiting) == [op(1, ring="other")]


def test_a_ring_forgotten_while_in_parts_may_begin_again_with_a_low_epoch() -> None:
    waiting = put(outbox(), op(1, epoch=7, size=2 * MESSAGE_BYTES), op(2, epoch=7))
    receiver = Receiver()
    data = waiting.take(bodies=True)
    assert data is not None
    receiver.take(data)
    waiting.forget("r")
    put(waiting, Hello("r", 1, 0, 0, 0, 0))
    while (data := waiting.take(bodies=True)) is not None:
        receiver.take(data)
        waiting.check()
    assert [type(frame) for frame in receiver.frames] == [OpFrame, Hello]


RINGS = st.sampled_from(["r", "s", "t"])
FRAMES = st.one_of(
    st.builds(
        op,
        st.integers(1, 20),
        ring=RINGS,
        epoch=st.integers(1, 2),
        size=st.sampled_from([1, 900, 9000]),
    ),
    st.builds(marks, st.integers(0, 20), ring=RINGS, epoch=st.integers(1, 2)),
    st.builds(
        Hello, RINGS, st.integers(1, 2), st.just(0), st.integers(0, 9), st.just(0), st.just(0)
    ),
    st.builds(Submit, RINGS, st.integers(1, 2), st.booleans(), st.binary(max_size=50)),
    st.builds(Ping, RINGS, st.just(1), st.integers(0, 9)),
)


@given(st.lists(st.one_of(FRAMES, st.booleans())))
def test_of_any_frames_the_newest_arrive_and_order_is_kept(steps: list[Frame | bool]) -> None:
    """A bool is a `take`, with or without bodies.

    Of each ring, the frames that arrive are a part of those that were put, in that order; of its
    newest epoch, each op's last sending arrives, and the last marks unless an op came after.
    """
    box = outbox()
    receiver = Receiver()
    given: list[Frame] = []
    for step in steps:
        if isinstance(step, bool):
            data = box.take(bodies=step)
            if data is not None:
                receiver.take(data)
        else:
            given.append(step)
            box.put(step)
        box.check()
    while (data := box.take(bodies=True)) is not None:
        receiver.take(data)
        box.check()
    assert not box
    for ring in ("r", "s", "t"):
        ordered = [f for f in given if f.ring == ring and not isinstance(f, Ping)]
        arrived = [f for f in receiver.frames if f.ring == ring and not isinstance(f, Ping)]
        rest = iter(ordered)
        assert all(any(frame is put_ or frame == put_ for put_ in rest) for frame in arrived)
        if not ordered:
            continue
        assert ordered[-1] == arrived[-1] or ordered[-1].epoch < max(f.epoch for f in ordered)


@pytest.mark.parametrize(
    "beside",
    [op(1, ring="other"), Ping("other", 1, 1), marks(1, ring="other")],
    ids=lambda frame: type(frame).__name__,
)
def test_a_message_may_be_larger_only_while_nothing_small_waits(beside: Frame) -> None:
    waiting = outbox()
    assert not waiting.is_large
    waiting.put(op(1, size=2 * MESSAGE_BYTES))
    assert waiting.is_large
    waiting.put(beside)
    assert not waiting.is_large
    data = waiting.take(bodies=True)
    assert data is not None
    assert [*decode(data, wire.frames_in(data)[1])] == [beside]
    assert waiting.is_large


@pytest.mark.parametrize("size", [MESSAGE_BYTES - 60, MESSAGE_BYTES, 2 * MESSAGE_BYTES, 50_000])
def test_a_large_frame_arrives_as_it_was_whatever_its_parts(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    frame = OpFrame("r", 1, 0, 0, 1, 1, False, (Mark(1, 1),), body)
    assert drained(put(outbox(), frame, marks(1, ring="s"))) == [marks(1, ring="s"), frame]


def test_a_large_frame_of_a_ring_with_a_long_name_goes_in_parts_too() -> None:
    ring = "r" * 2 * MESSAGE_BYTES
    assert drained(put(outbox(), op(1, ring=ring))) == [op(1, ring=ring)]


def test_a_large_body_is_not_copied_before_its_parts_are_made() -> None:
    frame = op(1, size=100 * MESSAGE_BYTES)
    box = put(outbox(), frame)
    tracemalloc.start()
    try:
        box.take(bodies=True)
        taken_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken_bytes < 5 * MESSAGE_BYTES
