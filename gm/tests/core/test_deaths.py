"""Links break, members die: ops are sent again, and the next view is proposed."""

from __future__ import annotations

import pytest
from played_ring import A2, B2, C2, LATER, A, B, C, PlayedRing, ring_of_three, view

from ringmq_gm.core.events import (
    LeasesLearned,
    LinkDown,
    LinkUp,
    PeerStalled,
    Propose,
    Send,
    Tick,
)
from ringmq_gm.core.frames import ViewTold
from ringmq_gm.core.views import MemberId


def test_a_new_link_brings_the_ops_that_the_old_one_lost() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1", b"2")
    ring.links["a", "b"].clear()
    ring.step("a", LinkUp(B))
    ring.step("b", LinkUp(A))
    ring.run()
    assert ring.delivered("c") == [b"1", b"2"]


def test_the_upstream_of_a_dead_mirror_sends_its_ops_again() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.crash("b")
    ring.learn(view(2, A, C))
    ring.run()
    assert ring.delivered("c") == [b"1"]


def test_the_first_mirror_takes_over_and_confirms_its_ops() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.deliver("a", "b")
    ring.crash("a")
    ring.links["b", "c"].clear()
    ring.learn(view(2, B, C))
    ring.run()
    ring.persist(1, "b", "c")
    ring.run()
    assert ring.delivered("c") == [b"1"]
    assert ring.confirmed("b") == 1


def test_a_death_is_proposed_after_the_others_have_answered() -> None:
    ring = ring_of_three()
    ring.crash("b")
    ring.step("a", LinkDown("b"))
    assert ring.proposals("a") == []
    ring.run()
    assert ring.proposals("a") == [view(2, A, C)]


@pytest.mark.parametrize(
    ("dead", "neighbour", "left"), [(A2, "b", (B, C)), (B2, "c", (A, C)), (C2, "a", (A, B))]
)
def test_a_link_to_a_new_life_shows_that_the_one_before_it_is_dead(
    dead: MemberId, neighbour: str, left: tuple[MemberId, ...]
) -> None:
    """The new life sends no frame, and no lease of it is known."""
    ring = ring_of_three()
    ring.crash(dead.node)
    ring.step(neighbour, LinkUp(dead))
    ring.run()
    assert ring.proposals(neighbour) == [view(2, *left)]


def test_a_new_link_to_the_same_life_puts_nobody_out() -> None:
    ring = ring_of_three()
    ring.step("a", LinkUp(B))
    ring.run()
    assert ring.proposals("a") == []


def test_a_master_that_sees_nobody_does_not_vote_the_others_out() -> None:
    ring = ring_of_three()
    ring.step("a", LinkDown("b"))
    ring.step("a", LinkDown("c"))
    ring.step("a", Tick(), now=LATER)
    assert ring.proposals("a") == []


def test_a_master_that_sees_nobody_goes_on_alone_when_all_leases_have_run_out() -> None:
    ring = ring_of_three()
    ring.step("a", LinkDown("b"))
    ring.step("a", LinkDown("c"))
    ring.step("a", LeasesLearned(frozenset({A})))
    ring.step("a", Tick(), now=LATER)
    assert ring.proposals("a") == [view(2, A, eligible=(B, C))]


def test_a_frame_of_an_old_epoch_is_refused() -> None:
    ring = ring_of_three()
    ring.learn(view(2, B, C), "b", "c")
    ring.multicast("a", b"late")
    assert ring.deliver("a", "b") == [Send("a", ViewTold("q", 2, view(2, B, C)))]
    assert ring.deliver("b", "c") is not None
    assert ring.delivered("b") == []


def test_a_quiet_ring_keeps_a_node_that_is_too_slow_for_another_ring() -> None:
    """One slow disk put its node out of all its rings, again and again."""
    assert ring_of_three().step("a", PeerStalled("b")) == []


def test_a_stalled_mirror_is_put_out_but_never_below_min_insync() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    assert ring.step("a", PeerStalled("b")) == [Propose(1, view(2, A, C))]
    pair = PlayedRing(A, B)
    pair.learn(view(1, A, B))
    pair.multicast("a", b"1")
    assert pair.step("a", PeerStalled("b")) == []
