"""New views, handshakes, joining and catching up. Most of these the simulator found first."""

from __future__ import annotations

import pytest
from played_ring import C2, LATER, A, B, C, PlayedRing, joining, member_of, ring_of_three, view

from ringmq_gm.core.events import (
    CaughtUp,
    LeasesLearned,
    MembershipWanted,
    Received,
    Send,
    StartCatchUp,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import (
    Envelope,
    Hello,
    Mark,
    Ping,
    Resume,
)
from ringmq_gm.core.held_ops import LogEnd


def test_a_new_view_tells_members_which_ops_were_stable_before_it() -> None:
    """They kept such ops for ever: the master believed that it had told them."""
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.run()
    ring.persist(1, "a", "b", "c")
    ring.run()
    ring.learn(view(2, A, B, C))
    ring.run()
    assert [len(ring.members[name].ops.cache) for name in "abc"] == [0, 0, 0]


def test_marks_reach_no_master_that_has_not_entered_the_epoch() -> None:
    """It dropped them, and the last member took them for told."""
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.run()
    ring.learn(view(2, A, B, C), "b", "c")
    ring.persist(1, "a", "b", "c")
    ring.run()
    ring.learn(view(2, A, B, C), "a")
    ring.run()
    assert ring.confirmed("a") == 1


def test_an_early_hello_is_not_displaced_by_one_of_an_older_epoch() -> None:
    member = member_of(B)
    member.step(ViewLearned(view(1, A, B, C)), now=0)
    member.step(Received(Envelope(C, Hello("q", 3, 0, 0, 0, 0))), now=0)
    member.step(Received(Envelope(A, Hello("q", 2, 0, 0, 0, 0))), now=0)
    effects = member.step(ViewLearned(view(3, C, B)), now=0)
    assert Send("c", Resume("q", 3, 0)) in effects


def test_the_first_of_two_joiners_is_counted_as_soon_as_it_has_caught_up() -> None:
    ring = PlayedRing(A, B, C)
    ring.learn(view(1, A, joining(B), joining(C)))
    ring.run()
    ring.step("b", CaughtUp(0))
    ring.run()
    assert ring.proposals("a") == [view(2, A, B, joining(C))]


def test_a_joiner_is_told_where_it_begins_and_to_fetch_the_ops_before() -> None:
    ring = PlayedRing(A, B, C)
    ring.learn(view(1, A, B))
    ring.run()
    ring.multicast("a", b"1", b"2")
    ring.run()
    ring.learn(view(2, A, B, joining(C)))
    ring.run()
    ring.multicast("a", b"3")
    ring.run()
    assert [effect for effect in ring.done["c"] if isinstance(effect, StartCatchUp)] == [
        StartCatchUp(2)
    ]
    assert ring.delivered("c") == [b"3"]


def test_a_joiner_does_not_hold_up_confirms_until_it_is_proposed_and_then_does() -> None:
    ring = PlayedRing(A, B)
    ring.learn(view(1, A, joining(B), min_insync=1))
    ring.run()
    ring.multicast("a", b"1")
    ring.persist(1, "a")
    assert ring.confirmed("a") == 1
    ring.run()
    ring.step("b", CaughtUp(1))
    ring.run()
    assert ring.proposals("a") == [view(2, A, B, min_insync=1)]
    ring.multicast("a", b"2")
    ring.persist(2, "a")
    assert ring.confirmed("a") == 1
    ring.run()
    ring.persist(2, "b")
    ring.run()
    assert ring.confirmed("a") == 2


def test_a_new_master_counts_a_joiner_only_when_it_has_all_that_the_old_one_confirmed() -> None:
    ring = PlayedRing(A, B, C)
    ring.learn(view(1, A, B, joining(C)))
    ring.run()
    ring.multicast("a", b"1")
    ring.run()
    ring.persist(1, "a", "b")
    ring.run()
    assert ring.confirmed("a") == 1
    ring.crash("a")
    ring.learn(view(2, B, joining(C)))
    ring.step("c", CaughtUp(0))
    ring.run()
    assert ring.proposals("b") == []
    ring.persist(1, "c")
    ring.run()
    assert ring.proposals("b") == [view(3, B, C)]


def test_a_joiner_that_has_ops_which_the_ring_has_not_brought_fails() -> None:
    """It might become master without them, and give their numbers to other ops."""
    ring = PlayedRing(A, B)
    ring.learn(view(1, A, joining(B), min_insync=1))
    ring.run()
    ring.multicast("a", b"1", b"2")
    with pytest.raises(AssertionError):
        ring.step("b", CaughtUp(2))
    ring.run()
    ring.step("b", CaughtUp(2))
    assert ring.members["b"].marks()[B] == Mark(2, 2, True)


def test_a_joiner_is_told_the_epoch_of_the_last_op_before_it_joined() -> None:
    """It said 0, and a log that was cut short counted as longer when logs were compared."""
    ring = PlayedRing(A, B)
    ring.learn(view(1, A, min_insync=1), "a")
    ring.multicast("a", b"1")
    ring.learn(view(2, A, joining(B), min_insync=1))
    ring.run()
    assert ring.members["b"].ops.end == LogEnd(1, 1)


def test_persisted_of_the_log_before_joining_is_not_believed() -> None:
    ring = PlayedRing(A, B)
    ring.learn(view(1, A, joining(B), min_insync=1))
    ring.run()
    ring.multicast("a", b"1")
    ring.run()
    ring.persist(50, "b")
    assert ring.members["b"].marks()[B] == Mark(1, 0, False)


def test_a_member_that_was_put_out_waits_before_it_comes_back() -> None:
    """Two that could not see each other put each other out 25 times in 0.2 s."""
    ring = ring_of_three()
    ring.step("c", MembershipWanted(True))
    ring.learn(view(2, A, B), "c")
    assert not ring.links["c", "a"]
    ring.step("c", Tick(), now=LATER)
    assert ring.links["c", "a"][0] == Ping("q", 2, 1)


def test_a_joiner_keeps_a_member_that_answers_without_a_lease() -> None:
    ring = PlayedRing(A, B, C2)
    ring.step("c", MembershipWanted(True))
    ring.step("c", LeasesLearned(frozenset({A, C2})))
    ring.learn(view(1, A, B, C))
    ring.run()
    assert ring.proposals("c") == [view(2, A, B, joining(C2))]
