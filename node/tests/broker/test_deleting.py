"""Deleting a queue if it is empty: the condition still holds when the deletion takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from expected_logs import DAMAGE
from loops import run
from node.tests.nodes import lone_node, replica_of, running_nodes
from waiting import until

import ringmq
from ringmq.errors import QueueNotEmptyError, RingMQError, UnavailableError
from ringmq_gm import MemberId, Role, first_view, ring_key
from ringmq_gm.registry.base import (
    CommitUnknownError,
    Delete,
    Guard,
    Put,
    RegistryUnavailableError,
    Removed,
)
from ringmq_node.node import Node
from ringmq_node.replica.description import queue_info
from ringmq_node.storage.errors import CorruptionReport

Commit = Callable[..., Awaitable[int | None]]


def with_node(folder: Path, work: Callable[[Node, ringmq.Client], Awaitable[None]]) -> None:
    """A node with an empty queue q."""

    async def main() -> None:
        node = await lone_node(folder)
        async with asyncio.timeout(20):
            await node.start()
            try:
                async with ringmq.connect(node.address) as client:
                    await client.declare_queue("q")
                    await work(node, client)
            finally:
                await node.stop()

    run(main())


class Registrar:
    """Stands before the registry's commit: a delete waits for `go`, then does `then`."""

    def __init__(self, node: Node, then: Callable[[Commit], Commit] = lambda commit: commit):
        self._commit = node.registry.commit
        self._then = then(self._commit)
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        cast(Any, node.registry).commit = self.commit

    async def commit(self, guards: Any, operations: Any, **rest: Any) -> int | None:
        if not any(isinstance(each, Delete) for each in operations):
            return await self._commit(guards, operations, **rest)
        self.reached.set()
        await self.go.wait()
        return await self._then(guards, operations)


async def consume(client: ringmq.Client) -> None:
    async with client.consumer("q") as consumer:
        async for _ in consumer:
            return


def refused(commit: Commit) -> Commit:
    async def instead(*arguments: Any) -> int | None:
        raise RegistryUnavailableError("it is away")

    return instead


def test_nothing_is_confirmed_between_the_check_and_the_delete(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        registrar = Registrar(node)
        async with client.publisher("q") as publisher:
            await publisher.publish(b"before")
            with pytest.raises(QueueNotEmptyError):
                await client.delete_queue("q", if_empty=True)
            await client.purge_queue("q")
            deleting = asyncio.create_task(client.delete_queue("q", if_empty=True))
            await registrar.reached.wait()
            publishing = asyncio.create_task(publisher.publish(b"between"))
            consuming = asyncio.create_task(consume(client))
            done, _ = await asyncio.wait({publishing, consuming}, timeout=0.3)
            assert not done
            assert not queue_info(replica_of(node)).consumers
            registrar.go.set()
            await deleting
            for task in (publishing, consuming):
                with pytest.raises(RingMQError):
                    await task

    with_node(tmp_path, work)


def test_nothing_is_confirmed_before_the_delete_though_the_master_was_out_of_contact(
    tmp_path: Path,
) -> None:
    """With contact again in the same view it takes over anew, while the commit is on its way."""

    async def work(node: Node, client: ringmq.Client) -> None:
        registrar = Registrar(node)
        replica = replica_of(node)
        deleting = asyncio.create_task(client.delete_queue("q", if_empty=True))
        await registrar.reached.wait()
        before = replica.serving()
        replica.contact_changed(False)
        replica.contact_changed(True)
        await replica.wait_serving()
        assert replica.serving() is not before
        async with client.publisher("q") as publisher:
            publishing = asyncio.create_task(publisher.publish(b"between"))
            done, _ = await asyncio.wait({publishing}, timeout=0.3)
            assert not done
            registrar.go.set()
            await deleting
            with pytest.raises(RingMQError):
                await publishing

    with_node(tmp_path, work)


def test_queue_goes_on_after_a_delete_that_failed(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        registrar = Registrar(node, refused)
        replica = replica_of(node)
        deleting = asyncio.create_task(client.delete_queue("q", if_unused=True, deadline_s=1))
        await registrar.reached.wait()
        async with client.publisher("q") as publisher:
            publishing = asyncio.create_task(publisher.publish(b"between"))
            registrar.go.set()
            with pytest.raises(RingMQError):
                await deleting
            await publishing
        assert not replica.serving().is_deleting
        assert not replica.deletion_holds
        assert queue_info(replica).messages_ready == 1

    with_node(tmp_path, work)


def test_a_master_that_was_replaced_deletes_nothing(tmp_path: Path) -> None:
    """It doesn't know of its successor yet, and the queue that it takes for empty isn't."""

    async def work(node: Node, client: ringmq.Client) -> None:
        replica = replica_of(node)
        key = ring_key(replica.record.id)

        def overtaken(commit: Commit) -> Commit:
            async def instead(guards: Any, operations: Any) -> int | None:
                entry = await node.registry.get(key)
                assert entry is not None
                later = replace(first_view([MemberId("b", 1)], 1), epoch=replica.view.epoch + 1)
                await commit([Guard(key, entry.revision)], [Put(key, later.encode())])
                return await commit(guards, operations)

            return instead

        Registrar(node, overtaken).go.set()
        with pytest.raises(UnavailableError):
            await client.delete_queue("q", if_empty=True, deadline_s=1)
        assert await node.registry.get(replica.record.key) is not None

    with_node(tmp_path, work)


def test_a_master_that_was_replaced_and_is_master_again_deletes_nothing(tmp_path: Path) -> None:
    """The commit of before can't take effect, and the queue may have got messages since."""

    async def work(node: Node, client: ringmq.Client) -> None:
        replica = replica_of(node)

        def replaced(commit: Commit) -> Commit:
            async def instead(*arguments: Any) -> int | None:
                replica.role_changed(Role.OUTSIDE, replica.view)
                replica.role_changed(Role.MASTER, replica.view)
                raise CommitUnknownError("no answer")

            return instead

        Registrar(node, replaced).go.set()
        with pytest.raises(UnavailableError):
            await client.delete_queue("q", if_empty=True, deadline_s=1)
        async with client.publisher("q") as publisher:
            await publisher.publish(b"after")
        assert (await client.queue("q")).messages_ready == 1

    with_node(tmp_path, work)


def test_an_unknown_outcome_is_found_out(tmp_path: Path) -> None:
    """Until then the queue serves nobody."""

    async def work(node: Node, client: ringmq.Client) -> None:
        record = node.catalogue.record_of("q")
        calls = 0

        def unknown(commit: Commit) -> Commit:
            async def instead(guards: Any, operations: Any) -> int | None:
                nonlocal calls
                calls += 1
                if calls == 2:
                    raise RegistryUnavailableError("it is away")
                if calls == 3:
                    return await commit(guards, operations)
                raise CommitUnknownError("no answer")

            return instead

        Registrar(node, unknown).go.set()
        await client.delete_queue("q", if_empty=True)
        assert calls == 3
        assert await node.registry.get(record.key) is None

    with_node(tmp_path, work)


@pytest.mark.logs(DAMAGE)
def test_a_queue_whose_messages_are_all_damaged_is_not_empty(tmp_path: Path) -> None:
    """A replica that is away may still have their bodies."""

    async def work(node: Node, client: ringmq.Client) -> None:
        async with client.publisher("q") as publisher:
            await publisher.publish(b"confirmed")
        replica = replica_of(node)
        for entry in [*replica.store.bodies.index]:
            replica.store.bodies.lose(entry, CorruptionReport("file", 0, 1, "bad crc"))
        while not queue_info(replica).messages_damaged:  # noqa: ASYNC110 - a number has no event
            await asyncio.sleep(0.01)
        assert queue_info(replica).messages_ready == 0
        with pytest.raises(QueueNotEmptyError, match="has 1 messages"):
            await client.delete_queue("q", if_empty=True)
        assert await client.discard_damaged("q") == 1
        assert await client.delete_queue("q", if_empty=True) == 0

    with_node(tmp_path, work)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_queue_deleted_by_its_master_is_gone_from_the_node_that_was_asked(
    tmp_path: Path, is_late: bool
) -> None:
    """It used to be listed there, as down, until that node's watch had shown the deletion."""

    async def main() -> None:
        async with running_nodes(tmp_path, ("a", "b")) as nodes, asyncio.timeout(20):
            async with ringmq.connect(nodes["b"].address) as client:
                await client.declare_queue("q", master_locator=ringmq.MasterLocator.CLIENT_LOCAL)
            catalogue, shown = cast(Any, nodes["a"].catalogue), asyncio.Event()
            learn = catalogue._learn_change

            async def learn_late(change: Any, *rest: Any) -> int:
                if isinstance(change, Removed):
                    await shown.wait()
                return cast(int, await learn(change, *rest))

            catalogue._learn_change = learn_late
            async with ringmq.connect(nodes["a"].address) as client:
                deadline_s = 1 if is_late else 15
                deleting = asyncio.create_task(client.delete_queue("q", deadline_s=deadline_s))
                await until(lambda: "q" not in nodes["b"].catalogue.records, "q is deleted")
                if not is_late:
                    done, _ = await asyncio.wait({deleting}, timeout=0.3)
                    assert not done
                    shown.set()
                assert await deleting == 0
                listed = [info.queue for info in await client.queues()]
                assert listed == (["q"] if is_late else [])
                shown.set()

    run(main())
