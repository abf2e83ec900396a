"""Promotions that policies refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run

from ringmq_node.broker.promoting import Promoting
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
