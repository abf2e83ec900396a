"""Transient queues in the node: when one is deleted, and how a publish to one is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from loops import run
from node.tests.replica.scene import PlayedHost, PlayedRing, Publisher
from node.tests.storage.workload import run_store

from ringmq_gm import Member, MemberId, Ring, Role, View, ring_key
from ringmq_gm.registry.base import Guard, Put, Registry
from ringmq_gm.registry.url import open_registry
from ringmq_node.broker.transient import TransientQueues, is_gone
from ringmq_node.model.records import QueueRecord
from ringmq_node.queue.ops import Publish
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import Store

RECORD = QueueRecord("q", "id", ("a", "b", "c"), 2, durable=False)
RING = ring_key("id")


def view_of(epoch: int = 4, **members: tuple[int, bool]) -> View:
    """`a=(incarnation, synchronised)`."""
    return View(
        epoch, tuple(Member(MemberId(name, n), synced) for name, (n, synced) in members.items()), 2
    )


VIEW = view_of(a=(3, True), b=(5, True), c=(7, False))


@pytest.mark.parametrize(
    ("seen", "gone"),
    [
        ({"a": 4, "b": 6}, True),
        ({"a": 9, "b": 6, "c": 8}, True),
        ({"a": 4, "b": 5}, False),
        ({"a": 4}, False),
        ({"a": 3, "b": 5, "c": 8}, False),
        ({}, False),
    ],
)
def test_gone_when_a_later_life_was_seen_of_each_that_was_synchronised(
    seen: dict[str, int], gone: bool
) -> None:
    assert is_gone(VIEW, lambda node: seen.get(node, 0)) == gone


def test_not_gone_while_an_eligible_life_may_begin_the_ring_again() -> None:
    shrunk = View(5, (Member(MemberId("a", 3), synced=True),), 2, (MemberId("b", 5),))
    assert not is_gone(shrunk, {"a": 4, "b": 5}.__getitem__)
    assert is_gone(shrunk, {"a": 4, "b": 6}.__getitem__)


class PlayedGroup:
    """The facts that this node has seen: a view, perhaps an old one, and lives of the others."""

    def __init__(self, **seen: int) -> None:
        self.seen = seen

    def view(self, ring: str) -> View:
        return VIEW

    def known_incarnation(self, node: str) -> int:
        return self.seen.get(node, 0)


def with_transient(
    folder: Path, group: PlayedGroup, work: Callable[[TransientQueues, Registry], Awaitable[None]]
) -> None:
    """The queue is declared, its ring has `VIEW`."""

    async def main() -> None:
        registry = open_registry(f"sqlite:///{folder / 'registry.db'}")
        try:
            await registry.commit(
                [Guard(RECORD.key, 0)],
                [Put(RECORD.key, RECORD.encode()), Put(RING, VIEW.encode())],
            )
            await work(TransientQueues(registry, cast(Any, group)), registry)
        finally:
            await registry.close()

    run(main())


async def is_there(registry: Registry) -> bool:
    record, ring = await registry.get(RECORD.key), await registry.get(RING)
    assert (record is None) == (ring is None)
    return ring is not None


def test_deleted_with_its_ring(tmp_path: Path) -> None:
    async def work(queues: TransientQueues, registry: Registry) -> None:
        assert await queues.delete_if_gone(RECORD)
        assert not await is_there(registry)
        assert not await queues.delete_if_gone(RECORD)

    with_transient(tmp_path, PlayedGroup(a=4, b=6, c=8), work)


def test_not_deleted_while_one_may_live(tmp_path: Path) -> None:
    """Neither an answer nor a lease counts: only a later life of its node does."""

    async def work(queues: TransientQueues, registry: Registry) -> None:
        assert not await queues.delete_if_gone(RECORD)
        assert await is_there(registry)

    with_transient(tmp_path, PlayedGroup(a=3, b=6, c=8), work)


def test_not_deleted_if_another_has_been_synchronised(tmp_path: Path) -> None:
    """The watch has not shown it here yet."""

    async def work(queues: TransientQueues, registry: Registry) -> None:
        entry = await registry.get(RING)
        assert entry is not None
        later = VIEW.with_synced(MemberId("c", 7))
        await registry.commit([Guard(RING, entry.revision)], [Put(RING, later.encode())])
        assert not await queues.delete_if_gone(RECORD)
        assert await is_there(registry)

    with_transient(tmp_path, PlayedGroup(a=4, b=6, c=7), work)


def test_not_deleted_if_the_ring_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that comes between the judgement and the commit: the guards notice it."""

    async def work(queues: TransientQueues, registry: Registry) -> None:
        commit = registry.commit

        async def overtaken(guards: Any, puts: Any) -> int | None:
            entry = await registry.get(RING)
            assert entry is not None
            later = VIEW.with_synced(MemberId("c", 7))
            await commit([Guard(RING, entry.revision)], [Put(RING, later.encode())])
            return await commit(guards, puts)

        monkeypatch.setattr(registry, "commit", overtaken)
        assert not await queues.delete_if_gone(RECORD)
        assert await is_there(registry)

    with_transient(tmp_path, PlayedGroup(a=4, b=6, c=7), work)


def test_its_namesake_is_left_alone(tmp_path: Path) -> None:
    async def work(queues: TransientQueues, registry: Registry) -> None:
        entry = await registry.get(RECORD.key)
        assert entry is not None
        other = QueueRecord("q", "another", ("a",), 1)
        await registry.commit([Guard(entry.key, entry.revision)], [Put(entry.key, other.encode())])
        assert not await queues.delete_if_gone(RECORD)
        assert await is_there(registry)

    with_transient(tmp_path, PlayedGroup(a=4, b=6, c=8), work)


@pytest.mark.parametrize("members", [1, 3])
def test_publish_is_confirmed_without_the_disk(tmp_path: Path, members: int) -> None:
    """A publisher that asks for persistence gets no more; acks are settled the same way. What it
    has asked for stays with the message, whose letter may get it elsewhere."""
    store = Store.open(tmp_path, cluster_id="c", node="a")
    queue = store.open_queue("id", durable=False)
    replica = Replica(RECORD, queue, PlayedHost(store))
    ring = PlayedRing(replica, members)
    replica.attach(cast(Ring, ring))
    store.on_durable = lambda _: replica.durable()

    async def work() -> None:
        ring.enter(Role.MASTER, 1)
        async with asyncio.timeout(30):
            await replica.wait_serving()
        publisher = Publisher()
        number, _ = await replica.serving().open_publisher(publisher, b"")
        ring.hold_marks = True
        replica.serving().publish(number, b"", 1, [b"x"] * 3, [], transient=False)
        # All members have received the op, and none has said yet that it is persisted.
        replica.watermarks(ring.last_number, ring.last_number - 1)
        assert publisher.sequences == [(1, 3)]
        ring.hold_marks = False
        (op,) = ring.sent()
        assert isinstance(op, Publish)
        assert not op.transient
        assert len(await replica.serving().take(10, 1 << 20)) == 1
        assert queue.state.last_number == 2
        assert (store.statistics().rounds, store.statistics().files_synced) == (0, 0)

    run_store(store, work)
