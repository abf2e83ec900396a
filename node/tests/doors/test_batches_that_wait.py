"""Batches that wait for their ring: at each stage, and however the wait ends, their bytes count at
the node's doors, once, and are given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import MIB
from ringmq_gm import Refusal, RingClosedError
from ringmq_node.broker.locating import NOWHERE
from ringmq_node.broker.publishing import Publishing
from ringmq_node.doors.grpc.blocked import BlockTeller
from ringmq_node.doors.grpc.held import HeldBatches
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.replica.room import QueueRoom
from ringmq_node.resources.budget import SHARE, PublishBudget
from ringmq_node.resources.connection_states import ConnectionStates
from ringmq_node.resources.credit import Credit

LIMIT = 12 * MIB
SIZE = MIB


class PlayedRing:
    """Full until `free` is called; it ends with `close`."""

    def __init__(self) -> None:
        self.cached_bytes = 0
        self.is_full = True
        self._is_closed = False
        self._changed = asyncio.Event()

    def refusal(self) -> Refusal | None:
        return Refusal.FULL if self.is_full else None

    async def wait_writable(self) -> None:
        while self.is_full and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        if self._is_closed:
            raise RingClosedError("q")

    def free(self, *, full: bool = False) -> None:
        self.is_full = full
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()


class Scene:
    """One queue, whose ring is full, and the budget of its node."""

    def __init__(self) -> None:
        self.ring = PlayedRing()
        self.used_bytes = 0
        self.budget = PublishBudget(LIMIT, lambda: self.used_bytes)
        self.room = QueueRoom(cast(Any, self.ring), cast(Any, SimpleNamespace(has_room=True)))
        self.told: list[broker.PublishResponse] = []

    def publishing(self, number: int = 1) -> Publishing:
        mastership = SimpleNamespace(epoch=1, queue_id="id", room=self.room, queue=None)
        return Publishing(
            cast(Any, mastership),
            BrokerSettings(MIB),
            producer_id=b"",
            number=number,
            last_sequence=0,
            budget=self.budget,
            successor=lambda _: NOWHERE,
        )

    def held(self, number: int) -> HeldBatches:
        """Of another stream."""
        publishing = self.publishing(number)
        peer = ConnectionStates("a", lambda: 0.0, frozenset).stream("peer").__enter__()
        teller = BlockTeller(publishing.block_reasons, self.told.append, peer)
        return HeldBatches(publishing, Credit(), teller)

    def use_up(self) -> None:
        self.used_bytes = LIMIT

    def give_back(self) -> None:
        self.used_bytes = 0
        self.budget.freed()

    def check_nothing_is_left(self) -> None:
        budget = self.budget
        assert (budget.held_bytes, budget.waiting, budget._granted_bytes) == (0, 0, 0)
        assert budget.is_readable()
        assert not budget._held_of
        assert not self.room.flow._held


def story(work: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work(Scene())

    run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def in_the_ring(scene: Scene) -> None:
    """The batch waits for room in the ring."""


async def in_the_budget(scene: Scene) -> None:
    """... and then, as the node has no room, for its turn."""
    scene.use_up()
    scene.ring.free()
    await turns()
    assert scene.budget.waiting == 1


async def in_the_ring_again(scene: Scene) -> None:
    """... and then, as the ring has filled up meanwhile, for room there once more."""
    await in_the_budget(scene)
    scene.ring.free(full=True)
    scene.give_back()
    await turns()
    assert scene.budget.waiting == 0


STAGES = pytest.mark.parametrize("stage", [in_the_ring, in_the_budget, in_the_ring_again])


@STAGES
@pytest.mark.parametrize("end", ["it goes on", "its stream dies", "the ring ends"])
def test_a_batch_counts_once_while_it_waits_and_not_behind_that(
    stage: Callable[[Scene], Awaitable[None]], end: str
) -> None:
    async def work(scene: Scene) -> None:
        waiting = asyncio.create_task(scene.publishing().wait_room(SIZE))
        await turns()
        await stage(scene)
        assert not waiting.done()
        assert scene.budget.held_bytes == SIZE
        if end == "its stream dies":
            waiting.cancel()
        elif end == "the ring ends":
            scene.ring.free(full=True)
            scene.give_back()
            scene.ring.close()
        else:
            scene.give_back()
            scene.ring.free()
        with suppress(RingClosedError, asyncio.CancelledError):
            await waiting
        await turns()
        scene.check_nothing_is_left()

    story(work)


def test_the_heads_of_many_streams_close_the_doors_and_say_why() -> None:
    """Of 1000 streams, each would have a batch in its hands that nothing counts."""

    async def work(scene: Scene) -> None:
        batch = broker.PublishBatch(first_sequence=1, bodies=[b"x"])
        held: list[HeldBatches] = []
        published: list[broker.PublishBatch] = []
        while scene.budget.is_readable(scene.room):
            # A door reads a batch only while it may.
            assert len(held) < 1000
            held.append(scene.held(len(held)))
            held[-1].add(batch, SIZE, published.append)
            await turns()
        assert scene.budget.held_bytes == len(held) * SIZE
        # The rest is for other queues.
        assert scene.budget.held_bytes > SHARE * (LIMIT - scene.budget.held_bytes) > 0
        assert scene.budget.is_readable()
        # Those that aren't read hear why, beside what stops the others.
        assert scene.publishing().block_reasons() == (
            BlockReason.PUBLISH_BUDGET,
            BlockReason.RING_FULL,
        )
        # They need nothing of the budget that they use up: as soon as the ring takes them they go.
        scene.ring.free()
        await scene.budget.wait_readable(scene.room)
        await turns()
        assert len(published) == len(held)
        for each in held:
            each.close()
        scene.check_nothing_is_left()

    story(work)


def test_streams_that_end_behind_a_full_ring_open_the_doors_again() -> None:
    async def work(scene: Scene) -> None:
        batch = broker.PublishBatch(first_sequence=1, bodies=[b"x"])
        held = [scene.held(number) for number in range(LIMIT // SIZE)]
        for each in held:
            # One in front, which waits for the ring, and one behind it.
            each.add(batch, SIZE // 2, lambda _: None)
            each.add(batch, SIZE // 2 - 1, lambda _: None)
        await turns()
        assert scene.budget.held_bytes == len(held) * (SIZE - 1)
        for each in held:
            each.close()
        await turns()
        scene.check_nothing_is_left()

    story(work)
