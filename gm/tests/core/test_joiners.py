"""A joiner that takes nothing: the ring goes on, and the joiner is put out and comes back later."""

from __future__ import annotations

from played_ring import A, B, C, Even, PlayedRing, joining, ring_of_three, view

from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.events import (
    CaughtUp,
    Effect,
    LinkDown,
    LinkUp,
    MembershipWanted,
    Multicast,
    PeerStalled,
    Persisted,
    Received,
    Refusal,
    Role,
    Send,
    StartCatchUp,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import Envelope, Hello, Mark, MarksFrame, OpFrame, Ping, Resume
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import View


def ring_with_a_joiner() -> PlayedRing:
    ring = PlayedRing(A, B, C)
    ring.learn(view(1, A, B, joining(C)))
    ring.run()
    return ring


def without_frames_to_c(ring: PlayedRing) -> None:
    """Delivers all frames but those to c, which are lost."""
    while waiting := [pair for pair, frames in ring.links.items() if frames and pair[1] != "c"]:
        ring.deliver(*waiting[0])
    for source in "ab":
        ring.links[source, "c"].clear()


def master_of(value: View, *, cache_bytes_max: int, joiner_bytes_max: int) -> RingMember:
    member = RingMember(
        value.master,
        "q",
        LogEnd(),
        chance=Even(),
        budgets=Budgets(cache_bytes_max, joiner_bytes_max),
    )
    member.step(ViewLearned(value), now=0)
    return member


def test_confirms_do_not_wait_for_a_joiner_that_takes_nothing() -> None:
    """The last member alone told the marks of all, and that was the joiner."""
    ring = ring_with_a_joiner()
    ring.multicast("a", b"1")
    ring.persist(1, "a")
    without_frames_to_c(ring)
    ring.persist(1, "b")
    without_frames_to_c(ring)
    assert ring.confirmed("a") == 1


def test_what_only_a_joiner_lacks_does_not_fill_the_ring() -> None:
    member = master_of(view(1, A, joining(B), min_insync=1), cache_bytes_max=4, joiner_bytes_max=9)
    member.step(Multicast(b"four"), now=0)
    assert member.refusal() is Refusal.FULL
    member.step(Persisted(1), now=0)
    assert member.refusal() is None
    assert len(member.ops.cache) == 1


def test_a_joiner_that_needs_more_copies_than_are_kept_is_put_out() -> None:
    value = view(1, A, joining(B), min_insync=1)
    member = master_of(value, cache_bytes_max=100, joiner_bytes_max=9)
    effects = []
    for number in (1, 2, 3):
        member.step(Multicast(b"four"), now=0)
        effects += member.step(Persisted(number), now=0)
        member.check()
    (proposal,) = [effect for effect in effects if hasattr(effect, "view")][-1:]
    assert proposal.view == view(2, A, min_insync=1)
    assert len(member.ops.cache) == 0


def test_a_synchronised_member_is_never_left_behind() -> None:
    member = master_of(view(1, A, B), cache_bytes_max=100, joiner_bytes_max=0)
    for number in (1, 2, 3):
        member.step(Multicast(b"four"), now=0)
        member.step(Persisted(number), now=0)
    assert len(member.ops.cache) == 3


def test_a_joiner_that_may_be_synchronised_already_is_not_left_behind() -> None:
    """1. a proposes that B is synchronised, and the answer is lost. 2. The proposal took effect.
    3. a drops an op that B lacks. 4. a dies, and B is master without it."""
    member = master_of(view(1, A, joining(B), min_insync=1), cache_bytes_max=9, joiner_bytes_max=0)
    told = MarksFrame("q", 1, 0, 0, (Mark(0, 0, complete=True),))
    member.step(Received(Envelope(B, told)), now=0)
    for number in (1, 2, 3):
        member.step(Multicast(b"four"), now=0)
        member.step(Persisted(number), now=0)
    assert len(member.ops.cache) == 3
    assert member.refusal() is Refusal.FULL


def test_a_joiner_that_was_left_behind_is_not_counted() -> None:
    member = master_of(view(1, A, joining(B), min_insync=1), cache_bytes_max=9, joiner_bytes_max=0)
    member.step(Multicast(b"four"), now=0)
    member.step(Persisted(1), now=0)
    told = MarksFrame("q", 1, 0, 0, (Mark(1, 1, complete=True),))
    effects = member.step(Received(Envelope(B, told)), now=0)
    assert not [effect for effect in effects if hasattr(effect, "view")]


def test_a_joiner_that_was_left_behind_fetches_again_in_the_next_view_and_not_before() -> None:
    ring = ring_with_a_joiner()
    behind = Hello("q", 1, 1, 9, 7, 0)
    assert ring.step("c", Received(Envelope(B, behind))) == []
    ring.learn(view(2, A, B, joining(C)), "c")
    effects = ring.step("c", Received(Envelope(B, Hello("q", 2, 1, 9, 7, 0))))
    assert StartCatchUp(9) in effects
    assert Send("b", Resume("q", 2, 9)) in effects


def test_a_joiner_that_asks_for_ops_that_are_gone_is_told_so_and_sent_nothing() -> None:
    ring = ring_with_a_joiner()
    ring.multicast("a", b"1", b"2")
    without_frames_to_c(ring)
    ring.step("b", Received(Envelope(A, MarksFrame("q", 1, 2, 0, ()))))
    effects = ring.step("b", Received(Envelope(C, Resume("q", 1, 0))))
    assert effects == [Send("c", Hello("q", 1, 1, 2, 2, 0))]
    ring.multicast("a", b"3")
    sent = ring.deliver("a", "b")
    assert not [e for e in sent if isinstance(e, Send) and isinstance(e.frame, OpFrame)]


def test_the_answer_to_an_older_hello_does_not_stop_a_joiner() -> None:
    """The link was opened anew, so there were two of them."""
    ring = ring_with_a_joiner()
    ring.multicast("a", b"1")
    ring.run()
    ring.step("b", Received(Envelope(A, MarksFrame("q", 1, 1, 0, ()))))
    ring.step("b", Received(Envelope(C, Resume("q", 1, 0))))
    ring.run()
    ring.multicast("a", b"2")
    ring.run()
    assert ring.delivered("c") == [b"1", b"2"]


def test_a_stalled_joiner_is_put_out_by_the_member_before_it() -> None:
    ring = ring_with_a_joiner()
    ring.multicast("a", b"1")
    ring.run()
    ring.step("b", PeerStalled("c"))
    assert ring.proposals("b") == [view(2, A, B)]


def test_a_joiner_does_not_hold_up_a_promotion() -> None:
    ring = ring_with_a_joiner()
    ring.multicast("a", b"1")
    ring.step("c", CaughtUp(0))
    without_frames_to_c(ring)
    ring.persist(1, "a", "b")
    without_frames_to_c(ring)
    member = ring.members["a"]
    assert member.marks()[C].received < 1 == member.marks()[B].received


# --- coming back ---


def pauses(count: int, *, stays_s: float) -> list[float]:
    """How long a member that is put out `count` times stays away, having been in for `stays_s`."""
    ring = ring_of_three()
    member = ring.members["c"]
    member.step(MembershipWanted(True), now=0)
    found: list[float] = []
    now = 0.0
    for turn in range(count):
        now += stays_s
        member.step(ViewLearned(view(2 * turn + 2, A, B)), now=now)
        out_at = now
        asked: list[Effect] = []
        while not asked:
            deadline = member.next_deadline()
            assert deadline is not None
            now = deadline
            asked = member.step(Tick(), now=now)
        assert all(isinstance(each, Send) and isinstance(each.frame, Ping) for each in asked)
        found.append(now - out_at)
        member.step(ViewLearned(view(2 * turn + 3, A, B, joining(C))), now=now)
        assert member.role is Role.JOINER
    return found


def test_the_pause_of_a_member_that_is_put_out_again_and_again_grows() -> None:
    timing = Timing()
    found = pauses(6, stays_s=1.0)
    least_s, most_s = timing.put_out_s_min, timing.put_out_s_max
    wanted = [timing.retry_s, least_s, 2 * least_s, 4 * least_s, most_s, most_s]
    assert [round(pause_s, 3) for pause_s in found] == wanted


def test_a_member_that_had_settled_comes_back_soon() -> None:
    timing = Timing()
    assert {round(each, 3) for each in pauses(4, stays_s=timing.settled_s)} == {timing.retry_s}


def test_other_changes_of_the_view_do_not_end_the_pause() -> None:
    """Two slow members brought each other back at once."""
    ring = ring_of_three()
    ring.step("c", MembershipWanted(True))
    for value in (view(2, A, B), view(3, A, B, joining(C)), view(4, A, B)):
        ring.learn(value, "c")
    ring.links["c", "a"].clear()
    ring.learn(view(5, B, A), "c")
    assert not ring.links["c", "a"]


def test_a_link_that_comes_up_does_not_end_the_pause() -> None:
    """One that came and went brought its member back each time, to be put out with the next cut."""
    ring = ring_of_three()
    ring.step("c", MembershipWanted(True))
    for value in (view(2, A, B), view(3, A, B, joining(C)), view(4, A, B)):
        ring.learn(value, "c")
    ring.links["c", "a"].clear()
    ring.step("c", LinkDown("a"))
    ring.step("c", LinkUp(A))
    assert not ring.links["c", "a"]


def test_a_ring_that_can_confirm_nothing_gets_its_member_back_at_once() -> None:
    ring = ring_of_three()
    ring.step("c", MembershipWanted(True))
    for value in (view(2, A, B), view(3, A, B, joining(C)), view(4, A, B)):
        ring.learn(value, "c")
    ring.links["c", "a"].clear()
    ring.learn(view(5, A, eligible=(B,)), "c")
    assert isinstance(ring.links["c", "a"][0], Ping)


def test_a_link_that_comes_up_ends_a_short_pause() -> None:
    ring = ring_of_three()
    ring.step("c", MembershipWanted(True))
    ring.learn(view(2, A, B), "c")
    ring.step("c", LinkUp(A))
    assert ring.links["c", "a"][0] == Ping("q", 2, 1)
