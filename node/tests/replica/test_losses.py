"""A loss is accepted at a replica: its log keeps the end that the ring was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run

from ringmq_gm import LossAccepted, LossOutcome, LossRefusedError, MemberId
from ringmq_node.replica.losses import SYNCS_MAX, AcceptedLosses

ME = MemberId("a", 1)


class LeftOver:
    """A replica whose log ends at op 7. At each sync one more op comes, `ops_coming` in all."""

    queue_name = "q"
    view = SimpleNamespace(losses=[SimpleNamespace(overruled=(MemberId("b", 1),))])

    def __init__(self, ops_coming: int = 0) -> None:
        state = SimpleNamespace(epoch=3, last_number=7, next_position=20)
        self.store = SimpleNamespace(state=state, durable_number=0)
        self.ops_coming = ops_coming
        self.ring = AskedRing()
        self.losses = AcceptedLosses(cast(Any, self))

    async def settle(self) -> None:
        self.store.durable_number = self.store.state.last_number
        await asyncio.sleep(0)
        if self.ops_coming:
            self.ops_coming -= 1
            self.store.state.last_number += 1

    async def is_free(self) -> bool:
        """Whether a state may be installed."""
        waiting = asyncio.ensure_future(self.losses.wait_none_open())
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        return waiting.done()


class AskedRing:
    """Answers when the test does."""

    me = ME

    def __init__(self) -> None:
        self.loss_is_open = False
        self.told: list[LossAccepted] = []
        self.answer: asyncio.Future[LossOutcome] | None = None

    async def accept_loss(self, accepted: LossAccepted) -> None:
        self.loss_is_open = True
        self.told.append(accepted)
        self.answer = asyncio.get_running_loop().create_future()
        outcome = await asyncio.shield(self.answer)
        if outcome is not LossOutcome.DONE:
            raise LossRefusedError("q", ME, outcome)


async def asked(replica: LeftOver) -> asyncio.Task[None]:
    task = asyncio.create_task(replica.losses.accept("on call", at_ms=1))
    while replica.ring.answer is None and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return task


def played(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    run(bounded())


@pytest.mark.logs(r"on call has accepted that confirmed messages may be lost")
def test_the_ring_is_told_the_end_that_is_on_disk() -> None:
    async def work() -> None:
        replica = LeftOver(ops_coming=2)
        task = await asked(replica)
        assert replica.ring.told == [LossAccepted(3, 9, 20, "on call", 1)]
        assert replica.ring.answer is not None
        replica.ring.answer.set_result(LossOutcome.DONE)
        await task

    played(work)


def test_a_log_that_grows_on_is_not_left_over() -> None:
    async def work() -> None:
        replica = LeftOver(ops_coming=2 * SYNCS_MAX)
        task = await asked(replica)
        with pytest.raises(LossRefusedError) as refused:
            await task
        assert refused.value.outcome is LossOutcome.MEMBERS_LIVE
        assert await replica.is_free()

    played(work)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_no_state_is_installed_until_the_ring_has_answered(is_cancelled: bool) -> None:
    async def work() -> None:
        replica = LeftOver()
        assert await replica.is_free()
        task = await asked(replica)
        assert not await replica.is_free()
        if is_cancelled:
            # The operator's call has run out of time. The ring goes on with it all the same.
            task.cancel()
            await asyncio.wait({task})
            assert not await replica.is_free()
        waiting = asyncio.create_task(replica.losses.wait_none_open())
        assert replica.ring.answer is not None
        replica.ring.answer.set_result(LossOutcome.MEMBERS_LIVE)
        replica.ring.loss_is_open = False
        replica.losses.ended()
        await waiting
        await asyncio.wait({task})
        assert is_cancelled or isinstance(task.exception(), LossRefusedError)

    played(work)


def test_a_decision_that_may_yet_take_effect_holds_the_log_until_the_next_view() -> None:
    async def work() -> None:
        replica = LeftOver()
        task = await asked(replica)
        assert replica.ring.answer is not None
        replica.ring.answer.set_result(LossOutcome.UNKNOWN)
        with pytest.raises(LossRefusedError):
            await task
        assert not await replica.is_free()
        waiting = asyncio.create_task(replica.losses.wait_none_open())
        replica.ring.loss_is_open = False
        replica.losses.ended()
        await waiting

    played(work)
