"""A ring whose members were all restarted begins again from their disks."""

from __future__ import annotations

from played_ring import A2, B2, C2, A, B, C, joining, member_of, ring_of_three, view

from ringmq_gm.core.events import (
    Effect,
    LeasesLearned,
    MembershipWanted,
    PromotionAsked,
    Propose,
    Received,
    RingDeleted,
    ViewLearned,
)
from ringmq_gm.core.frames import (
    Envelope,
    Ping,
    Pong,
)
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId


def restarting(me: MemberId, log: LogEnd, *, log_is_whole: bool = True) -> RingMember:
    """All of view 1 have lost their leases; `me` is a new life, and asks around."""
    member = member_of(me, log, log_is_whole=log_is_whole)
    member.step(MembershipWanted(True), now=0)
    member.step(LeasesLearned(frozenset({me})), now=0)
    member.step(ViewLearned(view(1, A, B, C)), now=0)
    return member


def answer(member: RingMember, sender: MemberId, log: LogEnd) -> list[Effect]:
    pong = Pong("q", 1, 1, log.epoch, log.number)
    return member.step(Received(Envelope(sender, pong)), now=0)


def test_the_longest_log_begins_the_ring_again_with_its_equals() -> None:
    member = restarting(A2, LogEnd(1, 9))
    answer(member, B2, LogEnd(1, 8))
    assert answer(member, C2, LogEnd(1, 9)) == [Propose(1, view(2, A2, C2))]


def test_among_equals_the_first_in_the_old_ring_begins_it_again() -> None:
    member = restarting(B2, LogEnd(1, 9))
    answer(member, A2, LogEnd(1, 9))
    assert answer(member, C2, LogEnd(1, 9)) == []


def test_a_shorter_log_leaves_it_to_the_longer() -> None:
    member = restarting(C2, LogEnd(1, 9))
    answer(member, A2, LogEnd(1, 10))
    assert answer(member, B2, LogEnd(1, 9)) == []


def test_a_ring_is_not_begun_again_past_a_member_that_still_lives() -> None:
    """It may have taken ops after its answer, and would have brought them in."""
    member = restarting(C2, LogEnd(1, 9))
    answer(member, A, LogEnd(1, 9))
    assert answer(member, B, LogEnd(1, 9)) == [Propose(1, view(2, A, B, joining(C2)))]


def test_a_damaged_log_begins_nothing() -> None:
    member = restarting(C2, LogEnd(1, 9), log_is_whole=False)
    answer(member, A2, LogEnd(1, 8))
    assert answer(member, B2, LogEnd(1, 9)) == []


def test_a_damaged_log_is_not_taken_for_an_empty_one() -> None:
    member = restarting(A2, LogEnd())
    answer(member, B2, LogEnd())
    assert answer(member, C2, LogEnd()) == [Propose(1, view(2, A2))]


def test_a_deleted_ring_is_deaf() -> None:
    ring = ring_of_three()
    ring.step("a", PromotionAsked(B))
    effects = ring.step("a", ViewLearned(None))
    assert isinstance(effects[-1], RingDeleted)
    assert ring.step("a", ViewLearned(None)) == []
    assert ring.step("a", Received(Envelope(B, Ping("q", 1, 1)))) == []
