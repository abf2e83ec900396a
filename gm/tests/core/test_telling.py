"""Members tell each other the views: one that is cut from the registry learns them all the same."""

from __future__ import annotations

from played_ring import LATER, A, B, C, PlayedRing, joining, ring_of_three, view

from ringmq_gm.core.events import (
    CaughtUp,
    Effect,
    LinkDown,
    LinkUp,
    ProposalEnded,
    ProposalOutcome,
    Received,
    RefreshView,
    Role,
    Send,
    Tick,
)
from ringmq_gm.core.frames import Envelope, Hello, Ping, Pong, ViewAsked, ViewTold, ViewWanted
from ringmq_gm.core.views import View

NEXT = view(2, A, C)
TOLD = ViewTold("q", 2, NEXT)


def without_b() -> PlayedRing:
    """b is dead, and c alone knows the view that follows."""
    ring = ring_of_three()
    ring.crash("b")
    ring.step("a", LinkDown("b"))
    ring.learn(NEXT, "c")
    return ring


def test_a_master_is_told_the_view_and_goes_on() -> None:
    ring = without_b()
    ring.links["a", "c"].clear()
    assert ring.step("c", Tick(), now=LATER) == [Send("a", TOLD)]
    ring.run()
    assert ring.members["a"].view == NEXT
    ring.multicast("a", b"1")
    ring.run()
    ring.persist(1, "a", "c")
    ring.run()
    assert ring.confirmed("a") == 1


def test_a_mirror_that_was_greeted_tells_nobody() -> None:
    ring = ring_of_three()
    ring.learn(view(2, A, B, C))
    ring.run()
    assert ring.step("c", Tick(), now=LATER) == []


def test_a_new_link_brings_the_view_that_the_old_one_lost() -> None:
    ring = without_b()
    ring.step("c", Tick(), now=LATER)
    assert Send("a", TOLD) in ring.step("c", LinkUp(A))


def test_a_mirror_asks_its_greeter_for_the_view() -> None:
    ring = ring_of_three()
    hello = Hello("q", 2, 0, 0, 0, 0)
    asked = ring.step("c", Received(Envelope(A, hello)))
    assert asked == [RefreshView(), Send("a", ViewAsked("q", 1))]
    ring.learn(NEXT, "a")
    ring.links["a", "c"].clear()
    assert ring.step("a", Received(Envelope(C, ViewAsked("q", 1)))) == [Send("c", TOLD)]
    ring.run()
    # The Hello came before the view, and counts.
    assert ring.members["c"].view == NEXT
    assert ring.members["c"].next_deadline() is None


def test_a_ping_and_its_answer_bring_the_view() -> None:
    ring = without_b()
    assert Send("a", TOLD) in ring.step("c", Received(Envelope(A, Ping("q", 1, 7))))
    assert Send("a", TOLD) in ring.step("c", Received(Envelope(A, Pong("q", 1, 7, 0, 0, True))))


def test_a_member_that_tells_an_older_view_is_told_the_newer_one() -> None:
    ring = ring_of_three()
    ring.learn(view(3, A, B), "a")
    told = ring.step("a", Received(Envelope(C, TOLD)))
    assert told == [Send("c", ViewTold("q", 3, view(3, A, B)))]
    assert ring.members["a"].view == view(3, A, B)


def test_a_master_that_was_put_out_is_told_and_steps_down() -> None:
    ring = ring_of_three()
    ring.learn(view(2, B, C), "b", "c")
    ring.multicast("a", b"late")
    ring.run()
    assert ring.members["a"].role is Role.OUTSIDE


def test_a_proposal_whose_answer_was_lost_is_told_to_nobody() -> None:
    """It may never take effect: another view of that epoch may."""
    ring = ring_of_three()
    ring.crash("c")
    ring.step("b", LinkDown("c"))
    ring.run()
    (proposal,) = ring.proposals("b")
    ring.step("b", ProposalEnded(proposal, ProposalOutcome.UNKNOWN))
    for sender, frame in ((A, Ping("q", 0, 1)), (A, ViewAsked("q", 0))):
        told = told_in(ring, "b", Received(Envelope(sender, frame)))
        assert told == [view(1, A, B, C)]


def told_in(ring: PlayedRing, name: str, event: Received) -> list[View]:
    effects = ring.step(name, event)
    frames = [effect.frame for effect in effects if isinstance(effect, Send)]
    return [frame.view for frame in frames if isinstance(frame, ViewTold)]


def test_a_view_told_late_does_not_let_its_master_confirm() -> None:
    """a enters view 2 as its master when c has gone on to view 3 without it."""
    ring = without_b()
    ring.learn(view(3, C, joining(B)), "c")
    ring.links["a", "c"].clear()
    ring.step("a", Received(Envelope(C, TOLD)))
    member = ring.members["a"]
    roles = [member.role]
    ring.multicast("a", b"1")
    ring.persist(1, "a")
    ring.run()
    assert ring.confirmed("a") == 0
    roles.append(member.role)
    assert roles == [Role.MASTER, Role.OUTSIDE]


def unanswered() -> tuple[PlayedRing, View, list[Effect]]:
    """b and c can't see each other. b's proposal was not answered, and it turns to a."""
    ring = ring_of_three()
    ring.step("b", LinkDown("c"))
    ring.run()
    (proposal,) = ring.proposals("b")
    effects = ring.step("b", ProposalEnded(proposal, ProposalOutcome.UNKNOWN))
    return ring, proposal, effects


def test_a_member_that_the_registry_does_not_answer_asks_another_to_propose() -> None:
    ring, proposal, effects = unanswered()
    assert Send("a", ViewWanted("q", 1, proposal)) in effects
    ring.run()
    assert ring.proposals("a") == [proposal]
    ring.step("a", ProposalEnded(proposal, ProposalOutcome.WON))
    ring.run()
    assert ring.members["b"].view == proposal


def test_a_proposal_that_lost_once_is_not_passed_on() -> None:
    """Two neighbours of a dead member propose, and one of them is second."""
    ring = ring_of_three()
    ring.step("b", LinkDown("c"))
    ring.run()
    (proposal,) = ring.proposals("b")
    lost = ProposalEnded(proposal, ProposalOutcome.LOST)
    assert ring.step("b", lost) == [RefreshView()]
    ring.step("b", Tick(), now=LATER)
    ring.run()
    assert Send("a", ViewWanted("q", 1, proposal)) in ring.step("b", lost)


def test_a_wanted_view_is_not_passed_on_any_further() -> None:
    """Members that are all cut off would ask each other for ever."""
    ring, proposal, _ = unanswered()
    ring.run()
    unknown = ProposalEnded(proposal, ProposalOutcome.UNKNOWN)
    assert ring.step("a", unknown) == [RefreshView()]


def test_a_wanted_view_of_another_epoch_is_not_proposed() -> None:
    ring = ring_of_three()
    ring.learn(NEXT)
    for epoch in (1, 3):
        ring.step("a", Received(Envelope(C, ViewWanted("q", epoch, view(epoch + 1, A, B)))))
    assert ring.proposals("a") == []


def test_a_joiner_that_another_was_asked_to_count_is_waited_for() -> None:
    """The answer "lost" may mean that the registry was away; the other one may reach it."""
    ring = PlayedRing(A, B, C)
    ring.learn(view(1, A, B, joining(C)))
    ring.run()
    ring.step("c", CaughtUp(0))
    ring.run()
    proposal = view(2, A, B, C)
    lost = ProposalEnded(proposal, ProposalOutcome.LOST)
    ring.step("a", lost)
    ring.step("a", Tick(), now=LATER)
    assert ring.proposals("a") == [proposal, proposal]
    assert Send("b", ViewWanted("q", 1, proposal)) in ring.step("a", lost)
    ring.multicast("a", b"1")
    ring.run()
    ring.persist(1, "a", "b")
    ring.run()
    assert ring.confirmed("a") == 0
