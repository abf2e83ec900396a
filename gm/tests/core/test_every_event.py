"""Every role takes or ignores every event, and every pair of events."""

from __future__ import annotations

import itertools

import pytest
from played_ring import A2, B2, LATER, A, B, C, joining, member_of, view

from ringmq_gm.core.events import (
    CaughtUp,
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    MembershipWanted,
    MinInsyncAsked,
    NodesKnown,
    PeerStalled,
    Persisted,
    PromotionAsked,
    ProposalEnded,
    ProposalOutcome,
    Received,
    RemovalAsked,
    Role,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import (
    Envelope,
    Frame,
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
)
from ringmq_gm.core.views import MemberId

ROLES = {
    Role.MASTER: view(5, B, A, C),
    Role.MIRROR: view(5, A, B, C),
    Role.JOINER: view(5, A, joining(B), C),
    Role.OUTSIDE: view(5, A, C),
}
FRAMES: list[Frame] = [
    frame
    for epoch in (4, 5, 6)
    for frame in (
        Hello("q", epoch, 1, 3, 1, 0),
        Resume("q", epoch, 0),
        OpFrame("q", epoch, 0, 0, epoch, 1, True, (), b"x"),
        OpFrame("q", epoch, 0, 0, epoch, 9, False, (Mark(8, 8, True),), b"x"),
        MarksFrame("q", epoch, 0, 0, ()),
        MarksFrame("q", epoch, 0, 0, (Mark(), Mark(0, 0, True))),
        ViewTold("q", epoch, view(epoch, A, C)),
        ViewAsked("q", epoch),
        ViewWanted("q", epoch, view(epoch + 1, A, C)),
        Ping("q", epoch, 1),
        Pong("q", epoch, 1, 4, 4, True),
        Submit("q", epoch, False, b"x"),
        Gone("q", epoch),
    )
]
EVENTS: list[Event] = [
    *(Received(Envelope(sender, frame)) for sender in (A, C, A2) for frame in FRAMES),
    *(LinkUp(life) for life in (A, A2, C, MemberId("z", 1))),
    *(kind(node) for kind in (LinkDown, PeerStalled) for node in "acz"),
    ViewLearned(None),
    *(ViewLearned(view(epoch, A, joining(B), C)) for epoch in (4, 5, 6)),
    ViewLearned(view(6, C, A)),
    LeasesLearned(frozenset()),
    LeasesLearned(frozenset({A, B2, C})),
    Persisted(0),
    Persisted(7),
    CaughtUp(0),
    MembershipWanted(True),
    MembershipWanted(False),
    PromotionAsked(C),
    RemovalAsked(A),
    RemovalAsked(C),
    MinInsyncAsked(2),
    NodesKnown(frozenset("ab")),
    *(ProposalEnded(view(6, A, C), outcome) for outcome in ProposalOutcome),
    Tick(),
]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.value)
def test_every_event_is_taken_or_ignored_in_every_role(role: Role) -> None:
    """And every pair of events, one after the other."""
    for first, second in itertools.product(EVENTS, repeat=2):
        member = member_of(B)
        member.step(ViewLearned(ROLES[role]), now=0)
        assert member.role is role
        for now, event in enumerate((first, second)):
            member.step(event, now=LATER * now)
            member.check()
