"""A joiner that is close behind is waited for, until it can be counted or takes too long."""

from __future__ import annotations

from played_ring import B, C

from ringmq_gm.core.courting import COURTED_AGAIN, Courting
from ringmq_gm.core.frames import Mark
from ringmq_gm.core.timing import Timing

TIMING = Timing()
CLOSE_S = TIMING.court_s / 2


def told(courting: Courting, persisted: int, needed: int, now: float) -> bool:
    """c tells its mark, and `needed` may have been confirmed: whether it is courted."""
    courting.look((C, Mark(persisted, persisted, complete=True)), needed, TIMING, now)
    return courting.courted == C


def test_a_joiner_that_soon_reaches_what_was_confirmed_is_courted() -> None:
    courting = Courting()
    assert not told(courting, 5, 10, 0.0)
    assert not told(courting, 9, 14, 0.1)
    assert told(courting, 10, 15, CLOSE_S)


def test_one_that_takes_long_for_it_is_not_and_may_be_later() -> None:
    courting = Courting()
    assert not told(courting, 5, 100, 0.0)
    assert not told(courting, 100, 150, 9.0)
    assert told(courting, 151, 152, 9.0 + CLOSE_S)


def test_if_it_takes_too_long_the_others_go_on_for_a_good_while() -> None:
    courting = Courting()
    told(courting, 5, 10, 0.0)
    assert told(courting, 10, 15, 0.1)
    assert courting.due == 0.1 + 2 * TIMING.court_s
    assert not courting.tick(TIMING, courting.due - 0.01)
    end = courting.due
    assert courting.tick(TIMING, end)
    assert courting.courted is None
    assert courting.due is None
    again = end + COURTED_AGAIN * TIMING.court_s
    assert not told(courting, 20, 21, again - 0.2)
    assert not told(courting, 22, 23, again - 0.1)
    assert not told(courting, 23, 24, again)
    assert told(courting, 24, 25, again + 0.1)


def test_another_joiner_begins_anew_and_none_ends_it() -> None:
    courting = Courting()
    told(courting, 5, 10, 0.0)
    courting.look((B, Mark(10, 10, complete=True)), 15, TIMING, 0.1)
    assert courting.courted is None
    told(courting, 5, 10, 0.2)
    assert told(courting, 10, 15, 0.3)
    courting.look(None, 15, TIMING, 0.4)
    assert courting.courted is None
    assert courting.due is None
