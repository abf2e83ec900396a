"""A node that dies in ten thousand rings: all of them probe at once, and answers take seconds."""

from __future__ import annotations

from played_ring import LATER, A, B, C, PlayedRing, member_of, ring_of_three, view

from ringmq_gm.core.events import (
    LeasesLearned,
    LinkDown,
    LinkUp,
    MembershipWanted,
    Send,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import Ping
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId

D = MemberId("d", 1)


def without_b() -> PlayedRing:
    """b is dead, and a has asked c."""
    ring = ring_of_three()
    ring.crash("b")
    ring.step("a", LinkDown("b"))
    return ring


def pings(ring: PlayedRing) -> list[Ping]:
    return [frame for frame in ring.links["a", "c"] if isinstance(frame, Ping)]


def test_an_answer_counts_though_its_time_is_over() -> None:
    ring = without_b()
    ring.step("a", Tick(), now=LATER)
    assert ring.proposals("a") == []
    ring.run()
    assert ring.proposals("a") == [view(2, A, C)]


def test_an_answer_to_the_probe_before_counts() -> None:
    ring = without_b()
    ring.step("a", Tick(), now=LATER)
    ring.step("a", Tick(), now=2 * LATER)
    assert len(pings(ring)) == 2
    ring.deliver("a", "c")
    ring.deliver("c", "a")
    assert ring.proposals("a") == [view(2, A, C)]


def test_an_answer_of_the_view_before_does_not_count() -> None:
    ring = without_b()
    ring.deliver("a", "c")
    ring.learn(view(2, A, B, C), "a")
    ring.deliver("c", "a")
    assert ring.proposals("a") == []


def _asked_within(ring: PlayedRing, duration_s: float) -> int:
    """How many probes a sends to c, which doesn't answer."""
    a, now, before = ring.members["a"], 0.0, len(pings(ring))
    while now < duration_s:
        deadline = a.next_deadline()
        assert deadline is not None
        now = max(now, deadline)
        ring.step("a", Tick(), now=now)
    return len(pings(ring)) - before


def test_a_member_that_does_not_answer_in_time_is_asked_less_and_less_often() -> None:
    ring = without_b()
    timing = Timing()
    assert _asked_within(ring, 10 * timing.probe_s_max) <= 15


def test_when_a_link_changes_the_probe_begins_again_with_the_short_time() -> None:
    ring = without_b()
    _asked_within(ring, 20.0)
    asked = len(pings(ring))
    ring.step("a", LinkUp(C), now=100.0)
    assert len(pings(ring)) > asked
    deadline = ring.members["a"].next_deadline()
    assert deadline is not None
    assert deadline <= 100.0 + Timing().probe_s


def _outside() -> RingMember:
    """d, which wants to join, and has a link to a alone."""
    outside = member_of(D)
    outside.step(MembershipWanted(True), now=0.0)
    outside.step(LinkUp(A), now=0.0)
    for node in ("b", "c"):
        outside.step(LinkDown(node), now=0.0)
    outside.step(ViewLearned(view(1, A, B, C)), now=0.0)
    return outside


def _asked(outside: RingMember, duration_s: float) -> int:
    """How often it asks a."""
    now, asked = 0.0, 0
    while now < duration_s:
        deadline = outside.next_deadline()
        assert deadline is not None
        now = max(now, deadline)
        effects = outside.step(Tick(), now=now)
        asked += sum(isinstance(each, Send) and each.node == "a" for each in effects)
    return asked


def test_a_joiner_that_cannot_reach_a_member_seldom_asks() -> None:
    """A node that returned to 10 000 rings did nothing else, and lost its links for it."""
    outside = _outside()
    assert _asked(outside, Timing().probe_s_max) <= 1


def test_a_joiner_asks_at_once_when_the_link_is_there() -> None:
    outside = _outside()
    outside.step(LinkUp(B), now=0.1)
    effects = outside.step(LinkUp(C), now=0.2)
    assert {each.node for each in effects if isinstance(each, Send)} == {"a", "b", "c"}


def test_a_joiner_does_not_wait_for_a_member_without_a_lease() -> None:
    outside = _outside()
    effects = outside.step(LeasesLearned(frozenset({A, D})), now=0.1)
    assert {each.node for each in effects if isinstance(each, Send)} == {"a", "b", "c"}
    deadline = outside.next_deadline()
    assert deadline is not None
    assert deadline <= 0.1 + Timing().probe_s
