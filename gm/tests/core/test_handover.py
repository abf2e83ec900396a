"""The planned change of the master: drained, turned, called off or refused."""

from __future__ import annotations

import pytest
from played_ring import LATER, A, B, C, ring_of_three, view

from ringmq_gm.core.events import (
    PromotionAsked,
    PromotionEnded,
    PromotionOutcome,
    ProposalEnded,
    ProposalOutcome,
    Refusal,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.views import MemberId


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
