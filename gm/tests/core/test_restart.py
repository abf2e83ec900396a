"""A ring without a member that could go on begins again from the logs of its candidates."""

from __future__ import annotations

from played_ring import A2, B2, C2, LATER, A, B, C, answer, joining, member_of, ring_of_three, view

from ringmq_gm.core.events import (
    LeasesLearned,
    LinkDown,
    MembershipWanted,
    NodesKnown,
    PromotionAsked,
    Propose,
    Received,
    RingDeleted,
    Role,
    Send,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import (
    Envelope,
    Ping,
    Pong,
)
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import BegunAgain, MemberId, View


def restarting(me: MemberId, log: LogEnd, *, log_is_whole: bool = True) -> RingMember:
    """All of view 1 have lost their leases; `me` is a new life, and asks around."""
    member = member_of(me, log, log_is_whole=log_is_whole)
    member.step(MembershipWanted(True), now=0)
    member.step(LeasesLearned(frozenset({me})), now=0)
    member.step(ViewLearned(view(1, A, B, C)), now=0)
    return member


def test_the_longest_log_begins_the_ring_again_with_its_equals() -> None:
    member = restarting(A2, LogEnd(1, 9))
    answer(member, B2, LogEnd(1, 8))
    (proposed,) = answer(member, C2, LogEnd(1, 9))
    assert proposed == Propose(1, view(2, A2, C2))
    assert isinstance(proposed, Propose)
    assert proposed.view.begun == (BegunAgain(2, 1, 9),)


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
    pings = [Send("a", Ping("q", 1, 2)), Send("b", Ping("q", 1, 2))]
    assert answer(member, A, LogEnd(1, 9)) == pings
    answer(member, A, LogEnd(1, 9), nonce=2)
    assert answer(member, B, LogEnd(1, 9), nonce=2) == [Propose(1, view(2, A, B, joining(C2)))]


def test_a_damaged_log_begins_nothing() -> None:
    member = restarting(C2, LogEnd(1, 9), log_is_whole=False)
    answer(member, A2, LogEnd(1, 8))
    assert answer(member, B2, LogEnd(1, 9)) == []


def test_a_damaged_log_is_nobodys_equal() -> None:
    member = restarting(A2, LogEnd())
    answer(member, B2, LogEnd(), is_whole=False)
    assert answer(member, C2, LogEnd()) == [Propose(1, view(2, A2, C2))]


def test_one_whole_log_is_enough_when_no_other_candidate_is_left_to_ask() -> None:
    member = restarting(A2, LogEnd(1, 8))
    answer(member, B2, LogEnd(), is_whole=False)
    assert answer(member, C2, LogEnd(1, 9), is_whole=False) == [
        Propose(1, view(2, A2, eligible=(B, C)))
    ]


def test_one_alone_never_begins_whatever_it_has() -> None:
    member = restarting(A2, LogEnd(1, 9))
    assert member.step(Tick(), now=LATER) == []
    assert member.role is Role.OUTSIDE


def test_two_whole_logs_of_three_are_enough_after_the_grace() -> None:
    member = restarting(A2, LogEnd(1, 9))
    assert answer(member, B2, LogEnd(1, 8)) == []
    assert member.step(Tick(), now=LATER) == [Propose(1, view(2, A2, eligible=(B, C)))]


def test_a_life_that_still_believes_an_older_view_does_not_count() -> None:
    """It may take ops of that view after its answer."""
    member = restarting(A2, LogEnd(1, 9))
    answer(member, B2, LogEnd(1, 9), epoch=0)
    assert answer(member, C2, LogEnd(1, 9)) == []
    assert member.step(Tick(), now=LATER) == [Propose(1, view(2, A2, C2))]


def test_a_candidate_that_has_learned_the_view_meanwhile_is_asked_again() -> None:
    member = restarting(A2, LogEnd(1, 9))
    answer(member, B2, LogEnd(1, 9), epoch=0)
    effects = member.step(Received(Envelope(B2, Ping("q", 1, 1))), now=0)
    assert effects == [Send("b", Pong("q", 1, 1, 1, 9, True)), Send("b", Ping("q", 1, 1))]


def test_a_candidate_whose_log_is_not_whole_asks_as_well_and_so_is_heard() -> None:
    """It was asked before it knew the view, and its answer was missed for the whole grace."""
    lost = member_of(C2, LogEnd(), log_is_whole=False)
    lost.step(MembershipWanted(True), now=0)
    lost.step(LeasesLearned(frozenset({A2, B2, C2})), now=0)
    asked = [
        effect.frame
        for effect in lost.step(ViewLearned(view(1, A, B, C)), now=0)
        if isinstance(effect, Send) and effect.node == "a"
    ]
    member = restarting(A2, LogEnd(1, 9))
    answer(member, B2, LogEnd(1, 8))
    answer(member, C2, LogEnd(), epoch=0, is_whole=False)
    assert len(asked) == 1
    asks_again = member.step(Received(Envelope(C2, asked[0])), now=0)[-1]
    assert asks_again == Send("c", Ping("q", 1, 1))
    assert answer(member, C2, LogEnd(), is_whole=False) == [
        Propose(1, view(2, A2, eligible=(B, C)))
    ]


def outside(me: MemberId, value: View) -> RingMember:
    """Was in view 1, and is put out of the ring by `value`."""
    member = member_of(me, LogEnd(1, 9))
    member.step(MembershipWanted(True), now=0)
    member.step(ViewLearned(view(1, A, B, C)), now=0)
    member.step(ViewLearned(value), now=0)
    return member


def test_eligible_lives_go_on_without_the_last_member_if_they_cannot_reach_it() -> None:
    member = outside(A, view(2, C, eligible=(A, B)))
    member.step(LinkDown("c"), now=0)
    answer(member, B, LogEnd(1, 9), epoch=2)
    assert member.step(Tick(), now=LATER) == [Propose(2, view(3, A, B))]


def test_who_is_cut_off_with_its_lease_is_not_waited_for() -> None:
    """It runs, so it isn't on its way here, and all publishers would wait with these two."""
    member = outside(A, view(2, C, eligible=(A, B)))
    member.step(LinkDown("c"), now=0)
    member.step(LeasesLearned(frozenset({A, B, C})), now=0)
    assert answer(member, B, LogEnd(1, 9), epoch=2) == []
    # Until then b could have joined c, if its link to c is up.
    soon = Timing().probe_s
    assert soon < Timing().restart_grace_s
    assert member.step(Tick(), now=soon) == [Propose(2, view(3, A, B))]


def test_who_may_be_on_its_way_is_waited_for() -> None:
    """Without a lease, or as a new life: its node is being started. And where one log isn't enough,
    however long it takes."""
    last = view(2, C, eligible=(A, B))
    for alive in ({A, B}, {A, B, C2}):
        member = outside(A, last)
        member.step(LinkDown("c"), now=0)
        member.step(LeasesLearned(frozenset(alive)), now=0)
        assert answer(member, B, LogEnd(1, 9), epoch=2) == []
        assert member.step(Tick(), now=Timing().probe_s) == []
        assert member.step(Tick(), now=LATER) == [Propose(2, view(3, A, B))]
    member = outside(A, last)
    member.step(LinkDown("c"), now=0)
    member.step(LeasesLearned(frozenset({A, B, C})), now=0)
    assert answer(member, B, LogEnd(), epoch=2, is_whole=False) == []
    assert member.step(Tick(), now=LATER) == []


def test_a_view_with_a_quorum_is_not_begun_again_while_a_member_holds_its_lease() -> None:
    """It may be confirming ops where this member can't see it."""
    member = member_of(B2, LogEnd(1, 9))
    member.step(MembershipWanted(True), now=0)
    member.step(LinkDown("c"), now=0)
    member.step(LeasesLearned(frozenset({B2, C})), now=0)
    member.step(ViewLearned(view(2, B, C, min_insync=1)), now=0)
    effects = [effect for at in range(1, 100) for effect in member.step(Tick(), now=at)]
    assert effects
    assert not any(isinstance(effect, Propose) for effect in effects)
    member.step(LeasesLearned(frozenset({B2})), now=100)
    assert member.step(Tick(), now=LATER) == [Propose(2, view(3, B2, min_insync=1))]


def test_a_joiner_that_is_put_out_has_no_whole_log_any_more() -> None:
    member = outside(A, view(2, B, C))
    member.step(ViewLearned(view(3, B, C, joining(A))), now=20)
    member.step(ViewLearned(view(4, B, C)), now=20)
    pong = member.step(Received(Envelope(B, Ping("q", 4, 1))), now=20)[0]
    assert pong == Send("b", Pong("q", 4, 1, 1, 9, log_is_whole=False))


def test_a_deleted_ring_is_deaf() -> None:
    ring = ring_of_three()
    ring.step("a", PromotionAsked(B))
    effects = ring.step("a", ViewLearned(None))
    assert isinstance(effects[-1], RingDeleted)
    assert ring.step("a", ViewLearned(None)) == []
    assert ring.step("a", Received(Envelope(B, Ping("q", 1, 1)))) == []


def stopped_in_turn(*known: str) -> RingMember:
    """a, then b stopped, then c, which was the last member; b is back, and c's machine is lost."""
    member = member_of(B2, LogEnd(2, 9))
    member.step(MembershipWanted(True), now=0)
    member.step(LeasesLearned(frozenset({B2})), now=0)
    if known:
        member.step(NodesKnown(frozenset(known)), now=0)
    member.step(ViewLearned(view(3, C, eligible=(B,))), now=0)
    return member


def test_a_forgotten_node_is_not_waited_for() -> None:
    """b has everything that was confirmed; without c's answer nobody knows that it is enough."""
    assert not proposals(stopped_in_turn())
    assert not proposals(stopped_in_turn("a", "b", "c"))
    assert proposals(stopped_in_turn("a", "b")) == [view(4, B2, eligible=(C,))]


def test_a_forgotten_node_that_answers_all_the_same_is_believed() -> None:
    """Its whole log is the second one that a needs; b doesn't answer."""
    member = restarting(A2, LogEnd(1, 9))
    member.step(NodesKnown(frozenset({"a", "b"})), now=0)
    answer(member, C2, LogEnd(1, 9))
    assert proposals(member) == [view(2, A2, C2)]


def test_forgetting_does_not_make_one_log_enough_where_others_may_answer() -> None:
    member = restarting(A2, LogEnd(1, 9))
    member.step(NodesKnown(frozenset({"a", "b"})), now=0)
    assert not proposals(member)


def proposals(member: RingMember) -> list[View]:
    """When the time to wait for answers is over."""
    return [e.view for e in member.step(Tick(), now=LATER) if isinstance(e, Propose)]
