"""Promotions that policies refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run

from ringmq_gm import MemberId, View, first_view
from ringmq_node.broker.promoting import Promoting, Standing
from ringmq_node.model.policies import ForcedPromotion, Mirrors, Wanted
from ringmq_node.model.reasons import BrokerError, Reason


@pytest.mark.parametrize("forced", ForcedPromotion)
def test_no_loss_is_accepted_where_a_policy_refuses_it(forced: ForcedPromotion) -> None:
    asked: list[str] = []

    async def accept_loss(operator: str, *, at_ms: int) -> None:
        asked.append(operator)

    wanted = Wanted(Mirrors(), 3, 2, forced_promotion=forced, policy="precious")
    losses = SimpleNamespace(accept=accept_loss)
    replica = SimpleNamespace(wanted=wanted, losses=losses)
    locator = SimpleNamespace(replica_of=lambda queue: replica)
    promoting = Promoting(*(cast(Any, part) for part in (None, None, locator, None)))

    async def work() -> None:
        await promoting._accept_loss("q", "a", "me", cast(Any, None))

    if forced is ForcedPromotion.REFUSED:
        with pytest.raises(BrokerError, match="precious") as caught:
            run(work())
        assert caught.value.reason is Reason.FORBIDDEN_BY_POLICY
        assert asked == []
    else:
        run(work())
        assert asked == ["me"]


@pytest.mark.parametrize("answers", [True, False])
def test_an_operator_is_told_of_nodes_that_may_be_alive(answers: bool) -> None:
    """Without a lease and a link, a master that runs can't be told from one that is dead."""
    a, c = MemberId("a", 1), MemberId("c", 1)
    view = first_view([a], min_insync=1)
    found = [
        Standing("a", "synchronised", str(a), is_up=answers),
        Standing("c", "behind", str(c), is_up=True, log_epoch=1, last_number=7),
    ]
    promoting = Promoting(*(cast(Any, None) for _ in range(4)))

    async def standings(queue: str, view: View) -> list[Standing]:
        return found

    promoting.standings = standings  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="beyond op 7 of epoch 1 would be lost") as caught:
        run(promoting._refuse("q", "c", view))
    assert caught.value.reason is Reason.MESSAGES_MAY_BE_LOST
    assert ("No answer from a: a node that still runs" in str(caught.value)) is not answers
