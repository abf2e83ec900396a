"""The views that an operator's wishes lead to: a member removed, another `min_insync`."""

from __future__ import annotations

import pytest
from played_ring import A, B, C, PlayedRing, joining, ring_of_three, view

from ringmq_gm.core.events import (
    LinkDown,
    MinInsyncAsked,
    PromotionAsked,
    RemovalAsked,
    ViewLearned,
)
from ringmq_gm.core.views import MemberId, View


def asked(ring: PlayedRing, event: RemovalAsked | MinInsyncAsked, name: str = "a") -> list[View]:
    ring.step(name, event)
    return ring.proposals(name)


def test_a_mirror_is_removed_and_the_rest_goes_on() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    assert asked(ring, RemovalAsked(B)) == [view(2, A, C)]
    ring.learn(view(2, A, C))
    ring.run()
    ring.persist(1, "a", "c")
    ring.run()
    assert ring.members["a"].ops.confirmed == (1, 1)


@pytest.mark.parametrize("target", [A, MemberId("z", 1), MemberId("b", 9)], ids=str)
def test_neither_the_master_nor_a_stranger_is_removed(target: MemberId) -> None:
    assert asked(ring_of_three(), RemovalAsked(target)) == []


def test_only_the_master_removes_and_only_it_changes_min_insync() -> None:
    assert asked(ring_of_three(), RemovalAsked(C), "b") == []
    assert asked(ring_of_three(), MinInsyncAsked(2), "b") == []


def test_a_synchronised_member_whose_quorum_would_be_lost_stays_and_a_joiner_goes() -> None:
    ring = ring_of_three()
    ring.learn(view(2, A, B, joining(C), min_insync=2))
    assert asked(ring, RemovalAsked(B)) == []
    assert asked(ring, RemovalAsked(C)) == [view(3, A, B, min_insync=2)]


def test_min_insync_rises_no_further_than_members_are_synchronised() -> None:
    ring = ring_of_three()
    ring.learn(view(2, A, B, joining(C), min_insync=1))
    assert asked(ring, MinInsyncAsked(3)) == []
    assert asked(ring, MinInsyncAsked(1)) == []
    assert asked(ring, MinInsyncAsked(2)) == [view(3, A, B, joining(C), min_insync=2)]


def test_min_insync_that_falls_to_a_quorum_leaves_nobody_eligible() -> None:
    """The ring confirms again from there on, without those that have left."""
    ring = ring_of_three()
    alone = view(2, A, min_insync=2, eligible=(B, C))
    ring.learn(alone)
    assert asked(ring, MinInsyncAsked(1)) == [view(3, A, min_insync=1)]


def test_nothing_is_asked_of_a_ring_that_is_changing() -> None:
    ring = ring_of_three()
    ring.step("a", PromotionAsked(C))
    ring.step("b", LinkDown("a"))
    assert view(2, A, C) not in asked(ring, RemovalAsked(B))
    ring.step("a", ViewLearned(view(2, A, B, C)))
    ring.step("a", RemovalAsked(B))
    before = ring.proposals("a")
    ring.step("a", RemovalAsked(C))
    assert ring.proposals("a") == before
