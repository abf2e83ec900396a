"""A member looks at its neighbours' lives anew whenever one of them may have ended."""

from __future__ import annotations

import random

import pytest
from played_ring import A, B, C, view

from ringmq_gm.core.changes import ViewChanger
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId


@pytest.mark.parametrize("end", ["a later life is seen", "its link is down", "its member is gone"])
def test_a_neighbour_that_was_found_alive_may_die(end: str) -> None:
    changer = ViewChanger(A, "q", Timing(), random.Random(1))
    here = view(1, A, B, C)
    assert not changer.has_dead_neighbour(here)
    assert not changer.has_dead_neighbour(here)
    match end:
        case "a later life is seen":
            changer.lives.saw(MemberId("b", B.incarnation + 1))
        case "its link is down":
            changer.lives.down.add("b")
        case _:
            changer.lives.has_gone(B)
    assert changer.has_dead_neighbour(here)
    # A view that was looked at before it died says nothing about the next one.
    assert changer.has_dead_neighbour(view(2, A, B, C))
    assert not changer.has_dead_neighbour(view(3, A, C))
