"""A producer that says that it has ended is forgotten, by every replica at the same op."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.tests.replica.scene import Publisher, Scene, scenario
from node.tests.replica.test_producer_expiry import known, look, mirror_of

from ringmq_gm import Refusal
from ringmq_node.queue import ops
from ringmq_node.queue.ops import Forget
from ringmq_node.replica import publishers as publishers_module


async def publish_and_end(scene: Scene, name: bytes, *, ended: bool = True) -> None:
    serving = scene.replica.serving()
    number, last = await serving.open_publisher(Publisher(), name)
    scene.publish(last + 1, b"x", producer=name, to=number)
    serving.close_publisher(number, name, ended=ended)


def forgetting(scene: Scene) -> list[tuple[bytes, ...]]:
    found = (ops.decode(payload) for _, _, payload in scene.ring.log)
    return [op.producer_ids for op in found if isinstance(op, Forget)]


def test_who_has_ended_is_forgotten_at_the_next_look_on_every_replica(tmp_path: Path) -> None:
    """Also right after a take-over: nobody comes back under that id. Who has only left stays."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        for name, ended in ((b"left", False), (b"ended", True), (b"gone", True)):
            await publish_and_end(scene, name, ended=ended)
        assert known(scene) == [b"left", b"ended", b"gone"]
        assert await look(scene) == 2
        assert known(scene) == [b"left"]
        assert forgetting(scene) == [(b"ended", b"gone")]
        assert mirror_of(scene).digest() == scene.replica.store.state.digest()
        assert await look(scene) == 0

    scenario(tmp_path, play)


def test_many_that_have_ended_are_forgotten_without_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a thousand short ones in a second would push out all others before the next look."""
    monkeypatch.setattr(publishers_module, "ENDED_TOGETHER", 5)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        await publish_and_end(scene, b"stays", ended=False)
        for number in range(23):
            await publish_and_end(scene, b"%d" % number)
            assert len(known(scene)) <= 1 + 5
        assert [len(ids) for ids in forgetting(scene)] == [5, 5, 5, 5]
        assert await look(scene) == 3
        assert known(scene) == [b"stays"]
        assert mirror_of(scene).digest() == scene.replica.store.state.digest()

    scenario(tmp_path, play)


def test_a_session_that_was_fenced_ends_nobody_and_one_that_opens_anew_goes_on(
    tmp_path: Path,
) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        serving = scene.replica.serving()
        older, _ = await serving.open_publisher(Publisher(), b"p")
        scene.publish(1, b"x", producer=b"p", to=older)
        newer, last = await serving.open_publisher(Publisher(), b"p")
        assert last == 1
        serving.close_publisher(older, b"p", ended=True)
        assert await look(scene) == 0
        # Its last word, and then another one of it comes before the look.
        serving.close_publisher(newer, b"p", ended=True)
        again, last = await serving.open_publisher(Publisher(), b"p")
        assert (last, await look(scene)) == (1, 0)
        # So a repeat is recognised while it lives.
        scene.publish(1, b"x", producer=b"p", to=again)
        assert scene.replica.store.state.next_position == 1

    scenario(tmp_path, play)


def test_a_ring_that_takes_nothing_has_them_forgotten_later(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        await publish_and_end(scene, b"p")
        scene.ring.refuses = Refusal.FULL
        assert await look(scene) == 0
        scene.ring.refuses = None
        assert await look(scene) == 1
        assert known(scene) == []

    scenario(tmp_path, play)


def test_an_empty_end_sends_no_op(tmp_path: Path) -> None:
    """A publisher without an id, one that has published nothing, and one that expired before."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        serving = scene.replica.serving()
        for name in (b"", b"silent"):
            number, _ = await serving.open_publisher(Publisher(), name)
            serving.close_publisher(number, name, ended=True)
        assert await look(scene) == 0
        assert forgetting(scene) == []

    scenario(tmp_path, play)


def test_those_that_have_ended_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers_module, "ENDED_MAX", 2)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        for name in (b"a", b"b", b"c"):
            await publish_and_end(scene, name)
        assert await look(scene) == 2
        assert known(scene) == [b"a"]

    scenario(tmp_path, play)
