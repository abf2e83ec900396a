"""A master that hears too few of its ring sends its clients away, and takes them again."""

from __future__ import annotations

import pytest
from played_ring import LATER, A, B, C, PlayedRing, ring_of_three, view

from ringmq_gm.core.contact import has_contact
from ringmq_gm.core.events import (
    ContactChanged,
    LinkDown,
    LinkUp,
    Propose,
    Received,
    Refusal,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import Envelope, Pong
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId

D, E = MemberId("d", 1), MemberId("e", 1)
LOST = ContactChanged(has_contact=False)
FOUND = ContactChanged(has_contact=True)
CONTACT_S = Timing().contact_s


def cut_off() -> PlayedRing:
    """a hears nobody, and the time for that is over."""
    ring = ring_of_three()
    ring.step("a", LinkDown("b"))
    ring.step("a", LinkDown("c"))
    ring.step("a", Tick(), now=CONTACT_S)
    return ring


def test_a_master_that_hears_nobody_refuses_and_says_so() -> None:
    """It served for ever: publishes timed out, though their clients could reach the others."""
    ring = cut_off()
    assert ring.done["a"].count(LOST) == 1
    assert ring.members["a"].refusal() is Refusal.OUT_OF_CONTACT


def test_it_asks_for_the_moment_at_which_it_has_waited_long_enough() -> None:
    ring = ring_of_three()
    member = ring.members["a"]
    ring.step("a", LinkDown("b"), now=5.0)
    ring.step("a", LinkDown("c"), now=5.0)
    assert member.next_deadline() == 5.0 + CONTACT_S
    ring.step("a", Tick(), now=5.0 + CONTACT_S / 2)
    assert member.refusal() is None
    ring.step("a", LinkUp(C), now=5.0 + CONTACT_S / 2)
    ring.step("a", Tick(), now=LATER)
    assert LOST not in ring.done["a"]


def test_a_master_that_hears_enough_again_takes_ops() -> None:
    ring = cut_off()
    assert FOUND in ring.step("a", LinkUp(C), now=9.0)
    assert ring.members["a"].refusal() is None


def test_a_new_view_begins_with_contact() -> None:
    """The registry has answered, so this member is its master."""
    ring = cut_off()
    ring.step("a", ViewLearned(view(2, A, C)), now=9.0)
    assert ring.members["a"].refusal() is None


def test_a_master_that_hears_of_a_later_epoch_does_not_wait_for_the_registry() -> None:
    ring = ring_of_three()
    ring.step("a", Received(Envelope(B, Pong("q", 3, 0, 0, 0, True))))
    ring.step("a", Tick(), now=CONTACT_S)
    assert ring.members["a"].refusal() is Refusal.OUT_OF_CONTACT
    ring.step("a", ViewLearned(view(2, A, B, C)), now=1.0)
    assert ring.members["a"].refusal() is None
    ring.step("a", Tick(), now=2.0)
    assert ring.members["a"].refusal() is Refusal.OUT_OF_CONTACT
    ring.step("a", ViewLearned(view(3, A, B, C)), now=3.0)
    ring.step("a", Tick(), now=LATER)
    assert ring.members["a"].refusal() is None


def test_a_master_goes_on_without_a_member_that_only_it_misses() -> None:
    """c is no neighbour of a, and its own neighbours hear it: nobody else changes the view."""
    ring = PlayedRing(A, B, C, D)
    ring.learn(view(1, A, B, C, D, min_insync=1))
    ring.run()
    ring.step("a", LinkDown("c"))
    assert LOST in ring.step("a", Tick(), now=CONTACT_S)
    ring.run()
    proposed = [effect.view for effect in ring.done["a"] if isinstance(effect, Propose)]
    assert proposed == [view(2, A, B, D, min_insync=1, eligible=())]


@pytest.mark.parametrize(
    ("members", "min_insync", "unheard", "found"),
    [
        ((A, B, C), 2, "", True),
        ((A, B, C), 2, "c", True),
        ((A, B, C), 2, "bc", False),
        ((A, B, C), 3, "bc", False),
        ((A, B, C, D, E), 3, "de", True),
        ((A, B, C, D, E), 3, "cde", False),
        # These two could have made a view of their own.
        ((A, B, C, D, E), 2, "de", False),
        ((A, B, C), 1, "c", False),
        # Such a view confirms nothing, and all of it is heard.
        ((A,), 2, "bc", True),
        ((A, B), 3, "c", True),
        ((A, B), 3, "b", False),
    ],
)
def test_how_many_members_a_master_has_to_hear(
    members: tuple[MemberId, ...], min_insync: int, unheard: str, found: bool
) -> None:
    lives = Lives(down=set(unheard))
    assert has_contact(view(1, *members, min_insync=min_insync), lives) == found
