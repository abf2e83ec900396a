"""A ring that has lost every log with all that was confirmed goes on when an operator says so."""

from __future__ import annotations

import dataclasses

import pytest
from played_ring import A2, B2, C2, LATER, A, B, C, answer, joining, member_of, view

from ringmq_gm.core.events import (
    Deliver,
    Effect,
    LeasesLearned,
    LinkDown,
    LinkUp,
    LossAccepted,
    LossEnded,
    LossOutcome,
    MembershipWanted,
    Multicast,
    Persisted,
    ProposalEnded,
    ProposalOutcome,
    Propose,
    Received,
    Refusal,
    Role,
    RoleChanged,
    Send,
    StartCatchUp,
    Tick,
    ViewLearned,
    Watermarks,
)
from ringmq_gm.core.frames import (
    Envelope,
    Frame,
    Hello,
    MarksFrame,
    OpFrame,
    Pong,
    Resume,
    ViewTold,
)
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import LOSSES_MAX, AcceptedLoss, View

DECIDED = LossAccepted(1, 5, 50, "op", 1234)
LOSS = AcceptedLoss(3, C2, 1, 5, 50, (A, B), "op", 1234)
JOINED = view(2, A, joining(C2), min_insync=1)
BEGUN = dataclasses.replace(view(3, C2), losses=(LOSS,))


def left_over(*, leases: frozenset[object] = frozenset({C2})) -> RingMember:
    """c was put out of the ring, a and b confirmed on. They are dead, and c is a new life."""
    member = member_of(C2, LogEnd(1, 5))
    member.step(MembershipWanted(True), now=0)
    member.step(LeasesLearned(leases), now=0)  # type: ignore[arg-type]
    member.step(ViewLearned(view(2, A, B)), now=0)
    # It has asked to join, in vain.
    member.step(Tick(), now=LATER)
    return member


def decide(member: RingMember) -> list[Effect]:
    return member.step(DECIDED, now=LATER)


def nonce_of(effects: list[Effect]) -> int:
    sent = next(effect for effect in effects if isinstance(effect, Send))
    return sent.frame.nonce  # type: ignore[union-attr]


def test_the_named_member_begins_the_ring_when_nobody_has_answered() -> None:
    member = left_over()
    assert [effect.node for effect in decide(member) if isinstance(effect, Send)] == ["a", "b"]
    assert member.step(Tick(), now=2 * LATER) == [Propose(2, BEGUN)]
    effects = member.step(ProposalEnded(BEGUN, ProposalOutcome.WON), now=2 * LATER)
    assert effects[0] == LossEnded(LossOutcome.DONE)
    assert member.role is Role.MASTER
    assert (member.ops.end, member.ops.stable) == (LogEnd(1, 5), 5)
    member.check()


def tellings(effects: list[Effect]) -> list[str]:
    return [e.node for e in effects if isinstance(e, Send) and isinstance(e.frame, ViewTold)]


def test_the_overruled_are_told_at_once_and_with_each_new_link() -> None:
    """They may be alive, without a lease, and no frame of the new ring is meant for them."""
    member = left_over()
    decide(member)
    member.step(Tick(), now=2 * LATER)
    effects = member.step(ProposalEnded(BEGUN, ProposalOutcome.WON), now=2 * LATER)
    assert tellings(effects) == ["a", "b"]
    assert Send("a", ViewTold("q", 3, BEGUN)) in member.step(LinkUp(A), now=2 * LATER)
    # A later life has read the registry, and the one before is over. A member is told by the
    # handshakes.
    assert tellings(member.step(LinkUp(A2), now=2 * LATER)) == []
    joined = BEGUN.with_joiner(B, ())
    assert joined is not None
    assert tellings(member.step(ViewLearned(joined), now=2 * LATER)) == []
    assert tellings(member.step(LinkUp(B), now=2 * LATER)) == []


def test_those_that_join_after_a_loss_tell_the_overruled_as_well() -> None:
    member = member_of(B2)
    member.step(ViewLearned(dataclasses.replace(view(5, C2, B2), losses=(LOSS,))), now=0)
    assert tellings(member.step(LinkUp(A), now=0)) == ["a"]


def test_an_overruled_master_that_confirms_alone_stops_when_it_is_told() -> None:
    member = member_of(A)
    member.step(ViewLearned(view(1, A, B)), now=0)
    member.step(ViewLearned(view(2, A, min_insync=1)), now=0)
    member.step(LeasesLearned(frozenset()), now=0)
    member.step(LinkDown("c"), now=0)
    assert isinstance(member.step(Multicast(b"x", urgent=False), now=LATER)[-1], Watermarks)
    assert member.step(Persisted(1), now=LATER) == [Watermarks(1, 1)]
    told = ViewTold("q", 3, BEGUN)
    effects = member.step(Received(Envelope(C2, told)), now=LATER)
    assert RoleChanged(Role.OUTSIDE, BEGUN) in effects
    assert member.refusal() is Refusal.NOT_MASTER


def test_it_begins_at_once_when_all_candidates_say_that_their_logs_are_gone() -> None:
    member = left_over()
    nonce = nonce_of(decide(member))
    answer(member, A2, LogEnd(), is_whole=False, epoch=2, nonce=nonce)
    effects = answer(member, B2, LogEnd(), is_whole=False, epoch=2, nonce=nonce)
    assert effects == [Propose(2, BEGUN)]


def test_not_while_a_member_holds_its_lease() -> None:
    member = left_over(leases=frozenset({A, C2}))
    assert decide(member) == [LossEnded(LossOutcome.MEMBERS_LIVE)]


def test_not_when_a_member_of_the_view_answers() -> None:
    """It has lost its lease, and goes on by itself."""
    member = left_over()
    nonce = nonce_of(decide(member))
    effects = answer(member, A, LogEnd(2, 9), epoch=2, nonce=nonce)
    assert effects[0] == LossEnded(LossOutcome.MEMBERS_LIVE)


def test_not_when_the_ring_can_begin_again_by_itself() -> None:
    member = left_over()
    nonce = nonce_of(decide(member))
    answer(member, A2, LogEnd(2, 9), epoch=2, nonce=nonce)
    effects = answer(member, B2, LogEnd(2, 9), epoch=2, nonce=nonce)
    assert effects == [LossEnded(LossOutcome.NOT_NEEDED)]


def test_not_when_one_that_has_everything_is_up() -> None:
    """It can't begin alone, but whoever decides should name that one."""
    member = left_over()
    nonce = nonce_of(decide(member))
    answer(member, A2, LogEnd(2, 9), epoch=2, nonce=nonce)
    assert member.step(Tick(), now=2 * LATER) == [LossEnded(LossOutcome.LONGER_LOG)]


def test_a_candidate_that_waits_alone_may_be_named() -> None:
    member = member_of(A2, LogEnd(1, 9))
    member.step(MembershipWanted(True), now=0)
    member.step(LeasesLearned(frozenset({A2})), now=0)
    member.step(ViewLearned(view(1, A, B, C)), now=0)
    member.step(LossAccepted(1, 9, 90, "op", 1), now=0)
    (proposed,) = member.step(Tick(), now=LATER)
    assert isinstance(proposed, Propose)
    assert proposed.view.synced == (A2,)
    assert proposed.view.own_loss == AcceptedLoss(2, A2, 1, 9, 90, (B, C), "op", 1)


def test_a_joiner_goes_on_from_its_applications_log() -> None:
    """What the ring has sent it since it joined was held back by its application."""
    member = member_of(C2, LogEnd(1, 5))
    member.step(MembershipWanted(True), now=0)
    member.step(ViewLearned(JOINED), now=0)
    assert member.role is Role.JOINER
    member.step(LeasesLearned(frozenset({C2})), now=0)
    decide(member)
    (proposed,) = [e for e in member.step(Tick(), now=2 * LATER) if isinstance(e, Propose)]
    member.step(ProposalEnded(proposed.view, ProposalOutcome.WON), now=2 * LATER)
    assert (member.role, member.ops.end) == (Role.MASTER, LogEnd(1, 5))
    member.check()


def joiner_that_is_named() -> tuple[RingMember, list[Effect]]:
    """Greeted after op 9 by a master that has died since. An operator names its old log's op 5."""
    member = member_of(C2, LogEnd(1, 5))
    member.step(MembershipWanted(True), now=0)
    member.step(ViewLearned(JOINED), now=0)
    heard(member, Hello("q", 2, 2, 9, 9, 9))
    heard(member, op(10))
    member.step(LeasesLearned(frozenset({C2})), now=0)
    return member, decide(member)


def heard(member: RingMember, frame: Frame) -> list[Effect]:
    return member.step(Received(Envelope(A, frame)), now=LATER)


def op(number: int) -> OpFrame:
    return OpFrame("q", 2, 9, 9, 2, number, False, (), b"op")


def resumes(effects: list[Effect]) -> list[int]:
    frames = [effect.frame for effect in effects if isinstance(effect, Send)]
    return [frame.last for frame in frames if isinstance(frame, Resume)]


def test_a_joiner_takes_nothing_while_the_decision_for_its_log_is_open() -> None:
    member, asked = joiner_that_is_named()
    assert member.loss_is_open
    assert heard(member, op(11)) == []
    assert heard(member, MarksFrame("q", 2, 10, 10, ())) == []
    assert member.ops.last == 10
    # A later answer of the master: nothing is lost, and the ops that were not taken come again.
    pong = Pong("q", 2, nonce_of(asked), 2, 11, True)
    effects = heard(member, pong)
    assert effects[0] == LossEnded(LossOutcome.MEMBERS_LIVE)
    assert not member.loss_is_open
    assert resumes(effects) == [10]
    assert Deliver(11, 2, b"op") in heard(member, op(11))
    member.check()


def test_a_greeting_that_comes_meanwhile_is_answered_afterwards() -> None:
    member = member_of(C2, LogEnd(1, 5))
    member.step(MembershipWanted(True), now=0)
    member.step(ViewLearned(JOINED), now=0)
    member.step(LeasesLearned(frozenset({C2})), now=0)
    asked = decide(member)
    # It would begin to catch up, and its application would cut the log that was named.
    assert heard(member, Hello("q", 2, 2, 12, 10, 10)) == []
    effects = heard(member, Pong("q", 2, nonce_of(asked), 2, 12, True))
    assert StartCatchUp(12) in effects
    assert resumes(effects) == [12]
    member.check()


def test_a_joiner_whose_decision_may_yet_take_effect_asks_to_be_put_out() -> None:
    """Whatever the next epoch is, it is the answer that the registry didn't give."""
    member, _ = joiner_that_is_named()
    (proposed,) = [e for e in member.step(Tick(), now=2 * LATER) if isinstance(e, Propose)]
    ended = ProposalEnded(proposed.view, ProposalOutcome.UNKNOWN)
    assert LossEnded(LossOutcome.UNKNOWN) in member.step(ended, now=2 * LATER)
    assert member.loss_is_open
    assert heard(member, op(11)) == []
    (leaving,) = [e for e in member.step(Tick(), now=3 * LATER) if isinstance(e, Propose)]
    assert leaving == Propose(2, view(3, A, min_insync=1))
    member.step(ProposalEnded(leaving.view, ProposalOutcome.WON), now=3 * LATER)
    assert (member.role, member.loss_is_open) == (Role.OUTSIDE, False)


def test_a_joiner_whose_decision_has_lost_goes_on() -> None:
    member, _ = joiner_that_is_named()
    (proposed,) = [e for e in member.step(Tick(), now=2 * LATER) if isinstance(e, Propose)]
    member.step(ProposalEnded(proposed.view, ProposalOutcome.LOST), now=2 * LATER)
    assert not member.loss_is_open
    assert resumes(member.step(Tick(), now=3 * LATER)) == [10]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (ProposalOutcome.LOST, LossOutcome.RING_CHANGED),
        (ProposalOutcome.UNKNOWN, LossOutcome.UNKNOWN),
    ],
)
def test_a_proposal_that_does_not_win_is_told(outcome: ProposalOutcome, told: LossOutcome) -> None:
    member = left_over()
    decide(member)
    member.step(Tick(), now=2 * LATER)
    assert LossEnded(told) in member.step(ProposalEnded(BEGUN, outcome), now=2 * LATER)


def test_each_decision_is_answered_once() -> None:
    member = left_over()
    decide(member)
    assert decide(member) == [LossEnded(LossOutcome.BUSY)]
    effects = member.step(ViewLearned(view(3, A, B)), now=LATER)
    assert effects.count(LossEnded(LossOutcome.RING_CHANGED)) == 1
    decide(member)
    assert LossEnded(LossOutcome.RING_DELETED) in member.step(ViewLearned(None), now=LATER)


def test_a_synchronised_member_and_one_without_a_view_refuse() -> None:
    member = member_of(A)
    assert decide(member) == [LossEnded(LossOutcome.NO_VIEW)]
    member.step(ViewLearned(view(1, A, B)), now=0)
    assert decide(member) == [LossEnded(LossOutcome.IN_RING)]


def test_the_record_travels_with_the_view_and_is_bounded() -> None:
    assert View.decode(BEGUN.encode()) == BEGUN
    assert BEGUN.with_joiner(A2, ()).losses == (LOSS,)  # type: ignore[union-attr]
    value = BEGUN
    for _ in range(2 * LOSSES_MAX):
        value = value.begun_with_loss(dataclasses.replace(LOSS, epoch=value.epoch + 1))
    assert len(value.losses) == LOSSES_MAX
    assert value.own_loss == value.losses[-1]


@pytest.mark.parametrize(
    ("end", "is_overruled"),
    [
        ((1, 5), False),
        ((1, 6), True),
        ((2, 3), True),
        ((0, 9), False),
        ((3, 9), False),
    ],
)
def test_a_log_from_before_with_more_is_overruled(end: tuple[int, int], is_overruled: bool) -> None:
    later = view(7, A, B)
    later = dataclasses.replace(later, losses=(LOSS,))
    assert later.overrules(*end) == (LOSS if is_overruled else None)
