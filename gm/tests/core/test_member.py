"""Scenarios of a few members, frame by frame; each bug that was found has its own."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from ringmq_gm.core.events import (
    CaughtUp,
    Deliver,
    Effect,
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    MembershipWanted,
    Multicast,
    PeerStalled,
    Persisted,
    PromotionAsked,
    PromotionEnded,
    PromotionOutcome,
    ProposalEnded,
    ProposalOutcome,
    Propose,
    Received,
    RefreshView,
    Refusal,
    RingDeleted,
    Role,
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
    Mark,
    MarksFrame,
    OpFrame,
    Ping,
    Pong,
    Resume,
    Stale,
    Submit,
)
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import Member, MemberId, View

A, B, C = (MemberId(node, 1) for node in "abc")
A2, B2, C2 = (MemberId(node, 2) for node in "abc")
LATER = 1000.0


class Even:
    """No chance: every back-off is the mean."""

    def random(self) -> float:
        return 0.5


def view(epoch: int, *members: MemberId | Member, min_insync: int = 2) -> View:
    return View(
        epoch,
        tuple(m if isinstance(m, Member) else Member(m, synced=True) for m in members),
        min_insync,
    )


def joining(member_id: MemberId) -> Member:
    return Member(member_id, synced=False)


def member_of(me: MemberId, log: LogEnd | None = None, *, log_is_whole: bool = True) -> RingMember:
    return RingMember(me, "q", log or LogEnd(), log_is_whole=log_is_whole, chance=Even())


class Ring:
    """Members with links between them; frames wait until `run` or `deliver`."""

    def __init__(self, *ids: MemberId) -> None:
        self.members = {member_id.node: member_of(member_id) for member_id in ids}
        self.links: dict[tuple[str, str], deque[Frame]] = {}
        self.done: dict[str, list[Effect]] = {name: [] for name in self.members}
        for one, two in itertools.permutations(self.members, 2):
            self.links[one, two] = deque()
            self.step(one, LinkUp(two))

    def step(self, name: str, event: Event, *, now: float = 0.0) -> list[Effect]:
        member = self.members[name]
        effects = member.step(event, now=now)
        member.check()
        self.done[name] += effects
        for effect in effects:
            if isinstance(effect, Send) and effect.node in self.members:
                self.links[name, effect.node].append(effect.frame)
        return effects

    def learn(self, value: View, *names: str) -> None:
        for name in names or tuple(self.members):
            self.step(name, ViewLearned(value))

    def deliver(self, source: str, target: str) -> list[Effect]:
        """The oldest frame from one to the other."""
        frame = self.links[source, target].popleft()
        sender = self.members[source].me
        return self.step(target, Received(Envelope(sender, frame)))

    def run(self) -> None:
        """Delivers until nothing is on its way."""
        while waiting := [pair for pair, frames in self.links.items() if frames]:
            self.deliver(*waiting[0])

    def multicast(self, name: str, *payloads: bytes, urgent: bool = False) -> None:
        for payload in payloads:
            self.step(name, Multicast(payload, urgent))

    def persist(self, number: int, *names: str) -> None:
        for name in names:
            self.step(name, Persisted(number))

    def crash(self, name: str) -> None:
        del self.members[name]
        for pair in self.links:
            if name in pair:
                self.links[pair].clear()

    def delivered(self, name: str) -> list[bytes]:
        return [effect.payload for effect in self.done[name] if isinstance(effect, Deliver)]

    def confirmed(self, name: str) -> int:
        marks = [effect for effect in self.done[name] if isinstance(effect, Watermarks)]
        return marks[-1].persisted if marks else 0

    def proposals(self, name: str) -> list[View]:
        return [effect.view for effect in self.done[name] if isinstance(effect, Propose)]


def ring_of_three() -> Ring:
    """Quiet, after the handshakes of view 1."""
    ring = Ring(A, B, C)
    ring.learn(view(1, A, B, C))
    ring.run()
    return ring


# --- a trip ---


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
    ring = Ring(*value.ids)
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
    # What it said of received ops is not taken for "on disk" once it counts.
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
    member = RingMember(A, "q", LogEnd(), chance=Even(), cache_bytes_max=3)
    member.step(ViewLearned(view(1, A, B)), now=0)
    member.step(Multicast(b"four"), now=0)
    assert member.refusal() is Refusal.FULL


# --- links and deaths ---


def test_a_new_link_brings_what_the_old_one_lost() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1", b"2")
    ring.links["a", "b"].clear()
    ring.step("a", LinkUp("b"))
    ring.step("b", LinkUp("a"))
    ring.run()
    assert ring.delivered("c") == [b"1", b"2"]


def test_a_dead_mirrors_upstream_sends_again_what_it_had_not_passed_on() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.crash("b")
    ring.learn(view(2, A, C))
    ring.run()
    assert ring.delivered("c") == [b"1"]


def test_the_first_mirror_takes_over_with_what_it_had() -> None:
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


def test_who_sees_nobody_does_not_vote_the_others_out() -> None:
    ring = ring_of_three()
    ring.step("a", LinkDown("b"))
    ring.step("a", LinkDown("c"))
    ring.step("a", Tick(), now=LATER)
    assert ring.proposals("a") == []


def test_who_sees_nobody_goes_on_alone_when_their_leases_have_run_out() -> None:
    ring = ring_of_three()
    ring.step("a", LinkDown("b"))
    ring.step("a", LinkDown("c"))
    ring.step("a", LeasesLearned(frozenset({A})))
    ring.step("a", Tick(), now=LATER)
    assert ring.proposals("a") == [view(2, A)]


def test_a_frame_of_an_old_epoch_is_refused() -> None:
    ring = ring_of_three()
    ring.learn(view(2, B, C), "b", "c")
    ring.multicast("a", b"late")
    assert ring.deliver("a", "b") == [Send("a", Stale("q", 2))]
    assert ring.deliver("b", "c") is not None
    assert ring.delivered("b") == []


def test_a_master_that_is_told_of_a_newer_epoch_looks_at_the_registry() -> None:
    ring = ring_of_three()
    assert ring.step("a", Received(Envelope(B, Stale("q", 2)))) == [RefreshView()]


def test_a_stalled_mirror_is_put_out_but_never_below_min_insync() -> None:
    ring = ring_of_three()
    assert ring.step("a", PeerStalled("b")) == [Propose(1, view(2, A, C))]
    pair = Ring(A, B)
    pair.learn(view(1, A, B))
    assert pair.step("a", PeerStalled("b")) == []


# --- views and handshakes: found by the simulator, or on the way to it ---


def test_a_new_view_tells_members_what_was_stable_before_it() -> None:
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
    member.step(Received(Envelope(C, Hello("q", 3, 0, 0))), now=0)
    member.step(Received(Envelope(A, Hello("q", 2, 0, 0))), now=0)
    effects = member.step(ViewLearned(view(3, C, B)), now=0)
    assert Send("c", Resume("q", 3, 0)) in effects


def test_a_joiner_in_the_middle_that_has_caught_up_is_counted() -> None:
    """The member after it saw nothing new in its marks, and didn't pass them on."""
    ring = Ring(A, B, C)
    ring.learn(view(1, A, joining(B), C))
    ring.run()
    ring.step("b", CaughtUp(0))
    ring.run()
    assert ring.proposals("a") == [view(2, A, B, C)]


def test_a_joiner_is_told_where_it_begins_and_to_fetch_what_was_before() -> None:
    ring = Ring(A, B, C)
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
    ring = Ring(A, B)
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


def test_a_new_master_counts_a_joiner_only_when_it_has_what_the_old_one_confirmed() -> None:
    ring = Ring(A, B, C)
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


def test_an_op_that_was_fetched_before_it_came_is_on_disk_when_it_comes() -> None:
    ring = Ring(A, B)
    ring.learn(view(1, A, joining(B), min_insync=1))
    ring.run()
    ring.multicast("a", b"1", b"2")
    ring.step("b", CaughtUp(2))
    ring.run()
    assert ring.members["b"].marks()[B] == Mark(2, 2, True)


def test_persisted_of_the_log_before_joining_is_not_believed() -> None:
    ring = Ring(A, B)
    ring.learn(view(1, A, joining(B), min_insync=1))
    ring.run()
    ring.multicast("a", b"1")
    ring.run()
    ring.persist(50, "b")
    assert ring.members["b"].marks()[B] == Mark(1, 0, False)


def test_whoever_was_put_out_waits_before_it_comes_back() -> None:
    """Two that could not see each other put each other out 25 times in 0.2 s."""
    ring = ring_of_three()
    ring.step("c", MembershipWanted(True))
    ring.learn(view(2, A, B), "c")
    assert not ring.links["c", "a"]
    ring.step("c", Tick(), now=LATER)
    assert ring.links["c", "a"][0] == Ping("q", 2, 1)


def test_a_joiner_keeps_a_member_that_answers_without_a_lease() -> None:
    ring = Ring(A, B, C2)
    ring.step("c", MembershipWanted(True))
    ring.step("c", LeasesLearned(frozenset({A, C2})))
    ring.learn(view(1, A, B, C))
    ring.run()
    assert ring.proposals("c") == [view(2, A, B, joining(C2))]


# --- beginning again ---


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


# --- handing over ---


def test_a_promotion_drains_then_turns_the_ring() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.step("a", PromotionAsked(C))
    assert ring.members["a"].refusal() is Refusal.DRAINING
    ring.run()
    assert ring.proposals("a") == []
    ring.persist(1, "a", "b", "c")
    ring.run()
    assert ring.proposals("a") == [view(2, C, A, B)]
    ring.learn(view(2, C, A, B))
    assert PromotionEnded(PromotionOutcome.DONE) in ring.done["a"]


def test_a_promotion_is_not_called_off_while_its_proposal_may_take_effect() -> None:
    """Ops that the old master took meanwhile would have had numbers of the new one's."""
    ring = ring_of_three()
    ring.step("a", PromotionAsked(C))
    turned = view(2, C, A, B)
    assert ring.proposals("a") == [turned]
    ring.step("a", ProposalEnded(turned, ProposalOutcome.UNKNOWN))
    ring.step("a", Tick(), now=LATER)
    assert ring.members["a"].refusal() is Refusal.DRAINING
    assert ring.proposals("a") == [turned, turned]
    ring.step("a", ViewLearned(turned))
    assert PromotionEnded(PromotionOutcome.DONE) in ring.done["a"]


def test_a_promotion_that_does_not_drain_is_called_off() -> None:
    ring = ring_of_three()
    ring.multicast("a", b"1")
    ring.step("a", PromotionAsked(C))
    effects = ring.step("a", Tick(), now=LATER)
    assert PromotionEnded(PromotionOutcome.NOT_DRAINED) in effects
    assert ring.members["a"].refusal() is None


@pytest.mark.parametrize(
    ("name", "target", "outcome"),
    [
        ("b", C, PromotionOutcome.NOT_MASTER),
        ("a", A, PromotionOutcome.ALREADY_MASTER),
        ("a", MemberId("z", 1), PromotionOutcome.NOT_A_MEMBER),
    ],
)
def test_a_promotion_that_makes_no_sense_is_refused(
    name: str, target: MemberId, outcome: PromotionOutcome
) -> None:
    assert ring_of_three().step(name, PromotionAsked(target)) == [PromotionEnded(outcome)]


# --- every role, every event ---

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
        Hello("q", epoch, 3, 1),
        Resume("q", epoch, 0),
        OpFrame("q", epoch, 0, epoch, 1, True, (), b"x"),
        OpFrame("q", epoch, 0, epoch, 9, False, (Mark(8, 8, True),), b"x"),
        MarksFrame("q", epoch, 0, ()),
        MarksFrame("q", epoch, 0, (Mark(), Mark(0, 0, True))),
        Stale("q", epoch),
        Ping("q", epoch, 1),
        Pong("q", epoch, 1, 4, 4),
        Submit("q", epoch, False, b"x"),
    )
]
EVENTS: list[Event] = [
    *(Received(Envelope(sender, frame)) for sender in (A, C, A2) for frame in FRAMES),
    *(kind(node) for kind in (LinkUp, LinkDown, PeerStalled) for node in "acz"),
    ViewLearned(None),
    *(ViewLearned(view(epoch, A, joining(B), C)) for epoch in (4, 5, 6)),
    ViewLearned(view(6, C, A)),
    LeasesLearned(frozenset()),
    LeasesLearned(frozenset({A, B2, C})),
    Persisted(0),
    Persisted(7),
    CaughtUp(0),
    CaughtUp(7),
    MembershipWanted(True),
    MembershipWanted(False),
    PromotionAsked(C),
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
