"""A trip of an op around the ring: delivered, confirmed, its copies dropped."""

from __future__ import annotations

import pytest
from played_ring import LATER, A, B, C, Even, PlayedRing, joining, ring_of_three, view

from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.events import (
    CaughtUp,
    Deliver,
    Multicast,
    Refusal,
    Send,
    Tick,
    ViewLearned,
    Watermarks,
)
from ringmq_gm.core.frames import (
    Mark,
    MarksFrame,
    Resume,
    Submit,
)
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import Member, MemberId


def test_an_op_is_delivered_by_all_and_confirmed_when_all_have_it_on_disk() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"one")
    ring.run()
    assert [ring.delivered(name) for name in "abc"] == [[b"one"]] * 3
    ring.persist(1, "a", "c")
    ring.run()
    assert ring.confirmed("a") == 0
    ring.persist(1, "b")
    ring.run()
    assert ring.confirmed("a") == 1


def test_an_urgent_op_is_confirmed_as_received_before_anybody_has_written_it() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"now", urgent=True)
    ring.run()
    assert Watermarks(1, 0) in ring.done["a"]


def test_an_op_is_sent_on_before_it_is_delivered() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"one")
    effects = ring.deliver("a", "b")
    assert [type(effect) for effect in effects[:2]] == [Send, Deliver]


def test_the_last_member_tells_the_master_marks_and_no_body() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"one", urgent=True)
    ring.deliver("a", "b")
    effects = ring.deliver("b", "c")
    (told,) = [effect for effect in effects if isinstance(effect, Send)]
    assert told.node == "a"
    assert isinstance(told.frame, MarksFrame)


def test_copies_are_dropped_once_all_have_the_op() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"one")
    ring.run()
    ring.persist(1, "a", "b", "c")
    ring.run()
    assert [len(ring.members[name].ops.cache) for name in "abc"] == [0, 1, 1]
    ring.step("a", Tick(), now=LATER)
    ring.run()
    assert [len(ring.members[name].ops.cache) for name in "abc"] == [0, 0, 0]


def test_a_gap_is_asked_for_once_and_filled() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1", b"2", b"3")
    ring.links["a", "b"].popleft()
    asked = ring.deliver("a", "b")
    assert asked == [Send("a", Resume("q", 1, 0))]
    assert ring.deliver("a", "b") == []
    ring.run()
    assert ring.delivered("c") == [b"1", b"2", b"3"]


def test_an_op_that_comes_twice_is_delivered_once() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.links["a", "b"].append(ring.links["a", "b"][0])
    ring.run()
    assert ring.delivered("b") == [b"1"]


@pytest.mark.parametrize(
    "members", [(A, joining(B)), (A, joining(B), joining(C)), (A, B, joining(C))]
)
def test_a_joiner_that_catches_up_for_long_lets_the_ring_drop_its_copies(
    members: tuple[MemberId | Member, ...],
) -> None:
    value = view(1, *members, min_insync=1)
    ring = PlayedRing(*value.ids)
    ring.learn(value)
    ring.run()
    for number in range(1, 6):
        ring.multicast("a", b"op")
        ring.run()
        ring.persist(number, *ring.members)
        ring.run()
    assert len(ring.members["a"].ops.cache) == 0
    assert ring.confirmed("a") == 5
    ring.step(value.ids[-1].node, CaughtUp(3))
    ring.run()
    # Its "received" is not taken for "on disk" once it counts.
    assert ring.members["a"].marks()[value.ids[-1]] == Mark(5, 3, complete=True)


def test_a_quiet_ring_sends_as_few_frames_for_an_op_as_it_can() -> None:
    ring = ring_of_three()
    sent = {name: len(ring.done[name]) for name in "abc"}
    ring.multicast("a", b"one")
    ring.run()
    for name in "abc":
        ring.persist(1, name)
        ring.run()
    frames = {
        name: sum(isinstance(effect, Send) for effect in ring.done[name][sent[name] :])
        for name in "abc"
    }
    assert frames == {"a": 1, "b": 2, "c": 1}


def test_a_mirror_hands_ops_to_the_master() -> None:
    ring = ring_of_three()
    ring.links["c", "a"].append(Submit("q", 1, False, b"from c"))
    ring.run()
    assert ring.delivered("b") == [b"from c"]


def test_a_full_cache_refuses() -> None:
    member = RingMember(A, "q", LogEnd(), chance=Even(), budgets=Budgets(cache_bytes_max=3))
    member.step(ViewLearned(view(1, A, B)), now=0)
    member.step(Multicast(b"four"), now=0)
    assert member.refusal() is Refusal.FULL
