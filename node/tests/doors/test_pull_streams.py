"""A client that pulls from a node whose answers are held up: nothing else of the stream waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import lone_node
from waiting import until

import ringmq
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.broker.peers import Got

Story = Callable[["Scene"], Awaitable[None]]


class Scene:
    """Four messages, and a client; `pass_on` lets pulls come to the queue."""

    def __init__(self, client: ringmq.Client) -> None:
        self.client = client
        self.pass_on = asyncio.Event()
        self.pass_on.set()
        self.in_hand = 0

    @asynccontextmanager
    async def puller(self, prefetch: int = 0) -> AsyncIterator[ringmq.Consumer]:
        async with self.client.consumer("q", pulls=True, prefetch=prefetch) as consumer:
            yield consumer

    async def hold_up(self, consumer: ringmq.Consumer) -> asyncio.Task[ringmq.Batch]:
        """A pull that has come to the node, and no further."""
        self.pass_on.clear()
        pulling = asyncio.create_task(consumer.pull(1))
        await until(lambda: self.in_hand == 1)
        return pulling

    async def count(self) -> int:
        """How many are left when everybody has let go."""
        found = 0
        async with self.puller() as puller:
            self.pass_on.set()
            while batch := await puller.pull(10):
                found += len(batch)
        return found


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, story: Story) -> None:
    scenes: list[Scene] = []
    pull = Consuming.pull

    async def held_up(self: Consuming, messages_max: int, bytes_max: int) -> Got:
        (scene,) = scenes
        scene.in_hand += 1
        try:
            await scene.pass_on.wait()
        finally:
            scene.in_hand -= 1
        return await pull(self, messages_max, bytes_max)

    async def main() -> None:
        node = await lone_node(folder)
        await node.start()
        try:
            async with ringmq.connect(node.address) as client:
                await client.declare_queue("q")
                async with client.publisher("q") as publisher:
                    await publisher.publish_batch([b"1", b"2", b"3", b"4"])
                scenes.append(Scene(client))
                await story(scenes[0])
        finally:
            await node.stop()

    monkeypatch.setattr(Consuming, "pull", held_up)
    run(main())


def bodies(batch: ringmq.Batch) -> list[bytes]:
    return [each.body for each in batch]


def test_an_ack_is_settled_while_a_pull_is_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(scene: Scene) -> None:
        async with scene.puller() as puller:
            held = await puller.pull(2)
            pulling = await scene.hold_up(puller)
            assert await puller.ack(held, wait=True)
            assert not pulling.done()
            scene.pass_on.set()
            assert bodies(await pulling) == [b"3"]

    played(tmp_path, monkeypatch, story)


@pytest.mark.parametrize("left", [False, True], ids=["awaited", "abandoned"])
def test_acks_before_a_close_are_for_good_though_a_pull_is_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    async def story(scene: Scene) -> None:
        async with scene.puller() as puller:
            held = await puller.pull(2)
            pulling = await scene.hold_up(puller)
            if left:
                pulling.cancel()
            assert await puller.ack(held)
        with pytest.raises((ringmq.ClosedError, asyncio.CancelledError)):
            await pulling
        assert await scene.count() == 2

    played(tmp_path, monkeypatch, story)


def test_a_late_answer_goes_back_before_the_next_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(scene: Scene) -> None:
        async with scene.puller() as puller:
            given_up = await scene.hold_up(puller)
            given_up.cancel()
            pulling = asyncio.create_task(puller.pull(2))
            await asyncio.wait([given_up])
            scene.pass_on.set()
            batch = await pulling
            assert bodies(batch) == [b"1", b"2"]
            assert [each.redelivered for each in batch] == [True, False]

    played(tmp_path, monkeypatch, story)


def test_a_pull_is_asked_under_the_prefetch_that_was_set_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(scene: Scene) -> None:
        async with scene.puller(prefetch=1) as puller:
            assert bodies(await puller.pull(5)) == [b"1"]
            await puller.set_prefetch(3)
            assert bodies(await puller.pull(5)) == [b"2", b"3"]

    played(tmp_path, monkeypatch, story)


def test_who_was_never_opened_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(ringmq.ClosedError, match="not open"):
            await scene.client.consumer("q", pulls=True).pull()
        with pytest.raises(ringmq.ClosedError, match="not open"):
            await scene.client.consumer("q").next_batch()

    played(tmp_path, monkeypatch, story)
