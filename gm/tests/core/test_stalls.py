"""A member whose disk hangs is put out if those that would stay are there."""

from __future__ import annotations

import pytest
from played_ring import C2, A, B, C, PlayedRing, ring_of_three, view

from ringmq_gm.core.events import Effect, LinkDown, Propose, Received, Send, Tick
from ringmq_gm.core.frames import Envelope, Ping, Pong
from ringmq_gm.core.stalls import look_s
from ringmq_gm.core.timing import Timing

TIMING = Timing()
LOOK_S = look_s(TIMING)


def without_the_disk_of_b() -> PlayedRing:
    """Everybody has op 1, and all but b have written it; a knows that of b through c."""
    ring = ring_of_three()
    ring.multicast("a", b"one")
    ring.run()
    ring.persist(1, "a", "c")
    ring.step("c", Tick(), now=LOOK_S)
    ring.run()
    return ring


def until_it_is_judged(ring: PlayedRing) -> tuple[list[Effect], float]:
    """The first effects at a which aren't for the marks' sake, and when they came."""
    now = LOOK_S
    while now < 3 * TIMING.disk_stall_s:
        found = ring.step("a", Tick(), now=now)
        if wanted := [each for each in found if isinstance(each, Propose) or is_ping(each)]:
            return wanted, now
        now += LOOK_S
    return [], now


def is_ping(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.frame, Ping)


def pong(ring: PlayedRing, now: float) -> list[Effect]:
    """c answers the probe of a."""
    ping = ring.links["a", "c"][-1]
    assert isinstance(ping, Ping)
    answer = Pong("q", 1, ping.nonce, 1, 1, log_is_whole=True)
    return ring.step("a", Received(Envelope(C, answer)), now=now)


def test_it_is_put_out_as_soon_as_the_others_have_answered() -> None:
    ring = without_the_disk_of_b()
    asked, now = until_it_is_judged(ring)
    assert [each.node for each in asked if isinstance(each, Send)] == ["c"]
    assert TIMING.disk_stall_s <= now <= TIMING.disk_stall_s + 3 * LOOK_S
    assert Propose(1, view(2, A, C)) in pong(ring, now + 0.01)


def test_it_stays_while_the_member_that_told_of_its_disk_does_not_answer() -> None:
    """c was cut off: b, which was well, was put out on the word of its last mark."""
    ring = without_the_disk_of_b()
    _, now = until_it_is_judged(ring)
    ring.step("a", Tick(), now=now + TIMING.probe_s)
    assert ring.proposals("a") == []


@pytest.mark.parametrize("later_s", [0.1, 2 * TIMING.probe_s], ids=["probing", "waiting"])
def test_a_member_that_is_found_dead_meanwhile_goes_first(later_s: float) -> None:
    ring = without_the_disk_of_b()
    _, now = until_it_is_judged(ring)
    now += later_s
    ring.step("a", Tick(), now=now)
    asked = ring.step("a", LinkDown("c"), now=now)
    (ping,) = [each for each in asked if isinstance(each, Send) and is_ping(each)]
    assert ping.node == "b"
    assert isinstance(ping.frame, Ping)
    answer = Pong("q", 1, ping.frame.nonce, 1, 1, log_is_whole=True)
    assert Propose(1, view(2, A, B)) in ring.step("a", Received(Envelope(B, answer)), now=now)


def test_an_answer_of_another_life_is_none() -> None:
    ring = without_the_disk_of_b()
    _, now = until_it_is_judged(ring)
    ping = ring.links["a", "c"][-1]
    assert isinstance(ping, Ping)
    answer = Pong("q", 0, ping.nonce, 1, 1, log_is_whole=True)
    assert Propose(1, view(2, A, C)) not in ring.step("a", Received(Envelope(C2, answer)), now=now)
