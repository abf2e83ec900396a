"""A node that remembers too many producers makes its queues forget the oldest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.tests.replica.scene import Publisher, Scene, scenario

from ringmq_gm import Refusal, Role
from ringmq_node.queue import ops
from ringmq_node.queue.ops import Forget
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica import producer_budget
from ringmq_node.replica import remembering as remembering_module
from ringmq_node.replica.producer_budget import ProducerBudget, allowance


@given(st.lists(st.integers(0, 50)), st.integers(0, 300))
def test_the_allowance_is_the_largest_that_fits(counts: list[int], producers_max: int) -> None:
    allowed = allowance(counts, producers_max)
    if allowed is None:
        assert sum(counts) <= producers_max
        return
    assert sum(min(count, allowed) for count in counts) <= producers_max
    assert sum(min(count, allowed + 1) for count in counts) > producers_max


def test_a_small_queue_does_not_pay_for_a_large_one() -> None:
    assert allowance([10_000, 10, 10_000], 10_010) == 5_000


def known(scene: Scene) -> list[bytes]:
    return [*scene.replica.store.state.producers]


def budget(scene: Scene, producers_max: int) -> ProducerBudget:
    return ProducerBudget(lambda: [scene.replica], producers_max)


async def master_of_ten(scene: Scene) -> None:
    await scene.become_master()
    for number in range(10):
        scene.publish(1, b"x", producer=b"p%d" % number)


def test_the_oldest_are_forgotten_but_not_the_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 0.0)

    async def play(scene: Scene) -> None:
        await master_of_ten(scene)
        assert await budget(scene, 10).look() == 0
        number, last = await scene.replica.serving().open_publisher(Publisher(), b"p0")
        assert last == 1
        assert await budget(scene, 6).look() == 4
        assert known(scene) == [b"p0", b"p5", b"p6", b"p7", b"p8", b"p9"]
        # p0 goes on; when it has gone, it is the newest.
        scene.publish(2, b"y", producer=b"p0", to=number)
        scene.replica.serving().close_publisher(number, b"p0")
        assert await budget(scene, 2).look() == 4
        assert known(scene) == [b"p9", b"p0"]
        # Every replica agrees, by the ops alone.
        mirror = ReplicatedState()
        mirror.begin_epoch(1)
        for op_number, _, payload in scene.ring.log:
            mirror.apply(op_number, ops.decode(payload))
        assert mirror.digest() == scene.replica.store.state.digest()

    scenario(tmp_path, play)


def test_who_was_forgotten_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 0.0)

    async def play(scene: Scene) -> None:
        await master_of_ten(scene)
        await budget(scene, 9).look()
        assert (await scene.replica.serving().open_publisher(Publisher(), b"p0"))[1] == 0
        assert (await scene.replica.serving().open_publisher(Publisher(), b"p1"))[1] == 1

    scenario(tmp_path, play)


def test_a_new_master_a_mirror_and_a_full_ring_forget_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(scene: Scene) -> None:
        await master_of_ten(scene)
        # Its clients may be on their way from the old master.
        assert await budget(scene, 1).look() == 0
        monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 0.0)
        scene.ring.enter(Role.MIRROR, 2)
        assert await budget(scene, 1).look() == 0
        await scene.become_master(3)
        scene.ring.refuses = Refusal.FULL
        assert await budget(scene, 1).look() == 0
        scene.ring.refuses = None
        assert await budget(scene, 1).look() == 9

    scenario(tmp_path, play)


def test_one_look_forgets_no_more_than_an_op_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 0.0)
    monkeypatch.setattr(producer_budget, "FORGOTTEN_MAX", 3)

    async def play(scene: Scene) -> None:
        await master_of_ten(scene)
        looks = [await budget(scene, 2).look() for _ in range(4)]
        assert looks == [3, 3, 2, 0]
        assert sum(isinstance(op, Forget) for op in scene.ring.sent()) == 3

    scenario(tmp_path, play)


def test_it_is_told_once_that_the_budget_is_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 0.0)
    monkeypatch.setattr(producer_budget, "LOOK_S", 0.001)

    async def play(scene: Scene) -> None:
        await master_of_ten(scene)
        watching = asyncio.create_task(budget(scene, 4).run())
        await scene.until(lambda: "within producers_max again" in caplog.text)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert caplog.text.count("10 producers are remembered, 4 are allowed") == 1
        assert len(known(scene)) == 4

    with caplog.at_level("INFO"):
        scenario(tmp_path, play)
