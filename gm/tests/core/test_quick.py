"""The short way of a step is for what is expected. All else goes the long way.

That both have the same outcome is shown on the traces of whole rings
(`cluster-tests/simulation/test_fast_paths.py`); here is what these seldom come to.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from played_ring import A2, A, B, C, PlayedRing, ring_of_three, view

from ringmq_gm.core.events import Deliver, LinkDown, Received, Watermarks
from ringmq_gm.core.frames import Envelope, Mark, MarksFrame, OpFrame
from ringmq_gm.core.views import MemberId


def in_its_second_epoch() -> PlayedRing:
    """With an op that only the master has on disk."""
    ring = ring_of_three()
    ring.learn(view(2, A, B, C))
    ring.run()
    ring.multicast("a", b"one")
    ring.run()
    ring.persist(1, "a")
    return ring


def op(number: int, epoch: int) -> OpFrame:
    return OpFrame("q", epoch, 0, 0, epoch, number, False, (), b"two")


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_op_of_another_epoch_is_not_taken(epoch: int) -> None:
    ring = in_its_second_epoch()
    effects = ring.step("b", Received(Envelope(A, op(2, epoch))))
    assert not [effect for effect in effects if isinstance(effect, Deliver)]


@pytest.mark.parametrize("epoch", [1, 3])
def test_marks_of_another_epoch_confirm_nothing(epoch: int) -> None:
    ring = in_its_second_epoch()
    all_of_it = Mark(1, 1, complete=True)
    frame = MarksFrame("q", epoch, 0, 0, (all_of_it, all_of_it))
    effects = ring.step("a", Received(Envelope(C, frame)))
    assert not [effect for effect in effects if isinstance(effect, Watermarks)]
    effects = ring.step("a", Received(Envelope(C, replace(frame, epoch=2))))
    assert Watermarks(1, 1) in effects


@pytest.mark.parametrize("sender", [C, A2], ids=str)
def test_the_next_op_from_anybody_but_the_neighbour_is_not_taken(sender: MemberId) -> None:
    ring = in_its_second_epoch()
    effects = ring.step("b", Received(Envelope(sender, op(2, 2))))
    assert not [effect for effect in effects if isinstance(effect, Deliver)]


def test_a_step_that_finds_a_neighbour_dead_asks_the_others() -> None:
    ring = in_its_second_epoch()
    ring.step("b", LinkDown("a"))
    # The op is the next one: it is taken, and the view changes all the same.
    ring.step("b", Received(Envelope(A, op(2, 2))))
    assert ring.links["b", "c"]
    ring.run()
    assert ring.proposals("b")
