"""A replica that raises is quarantined. Its node, and every other queue, goes on."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from loops import run
from node.tests.nodes import lone_node, replica_of, running_nodes
from waiting import until

import ringmq
from ringmq import Mirrors, Policy
from ringmq_gm import RingFailedError, Role
from ringmq_gm.core.events import Event, PromotionAsked
from ringmq_node.node import Node, make_node
from ringmq_node.queue.ops import Forget, Op, Remove, Use
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica import remembering
from ringmq_node.replica.producer_budget import ProducerBudget
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import QueueStore, Store
from ringmq_node.storage.errors import ReadError, UnsupportedFormatError, is_shortage


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[ringmq.Client]:
    async with asyncio.timeout(30):
        await node.start()
        try:
            async with ringmq.connect([node.address]) as client:
                yield client
        finally:
            await node.stop()


async def is_served(client: ringmq.Client, queue: str) -> None:
    async with client.publisher(queue) as publisher:
        await publisher.publish(b"x")


async def listed(client: ringmq.Client) -> dict[str, ringmq.QueueInfo]:
    return {info.queue: info for info in await client.queues()}


def read_error(number: int) -> ReadError:
    error = ReadError("1.idx: can't be read")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


def failing_reads(monkeypatch: pytest.MonkeyPatch, where: str, error: ReadError) -> list[str]:
    """From now on, reads of the queues whose ids are in the list raise `error`: those for an ack
    of a folded segment, or those for a consumer."""
    bad: list[str] = []
    appending, reading = QueueStore.append, QueueStore._read

    def append(self: QueueStore, number: int, op: Op, payload: bytes) -> Any:
        if self.queue in bad and isinstance(op, Remove):
            raise error
        return appending(self, number, op, payload)

    def read(self: QueueStore, *bounds: Any, **kinds: Any) -> Any:
        if self.queue in bad:
            raise error
        return reading(self, *bounds, **kinds)

    if where == "an ack":
        monkeypatch.setattr(QueueStore, "append", append)
    else:
        monkeypatch.setattr(QueueStore, "_read", read)
    return bad


async def meet(node: Node, client: ringmq.Client, where: str) -> None:
    """Has the queue "bad" read."""
    with suppress(ringmq.RingMQError, RingFailedError):
        if where == "an ack":
            replica_of(node, "bad").multicast(Remove(((0, 0),)))
        else:
            await client.get_messages("bad", 1, deadline_s=1.0)


READS = pytest.mark.parametrize("where", ["an ack", "a read"])


@pytest.mark.logs("ring '.*' at a#1 has failed")
@pytest.mark.logs("queue bad is '.*': quarantined on this node")
@READS
def test_a_replica_whose_file_can_not_be_read_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It took the node out of its rings, with every other queue, and again after each start."""

    async def main() -> None:
        bad = failing_reads(monkeypatch, where, read_error(errno.EIO))
        node = await lone_node(tmp_path)
        async with serving(node) as client:
            await client.declare_queue("bad")
            await client.declare_queue("good")
            await is_served(client, "bad")
            bad.append(replica_of(node, "bad").record.id)
            await meet(node, client, where)
            await until(lambda: bool(node.hosting.failed))
            await is_served(client, "good")
            assert (await listed(client))["bad"].state is ringmq.QueueState.QUARANTINED
            assert node.gate.failure is None
            assert node.store.failure is None

    run(main())


@pytest.mark.logs("the store has failed, this node leaves its rings: 1.idx: can't be read")
@READS
def test_a_read_without_file_descriptors_ends_the_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its queues come back by themselves as soon as there are some again; a quarantine would wait
    for somebody who starts the node anew."""

    async def main() -> None:
        bad = failing_reads(monkeypatch, where, read_error(errno.EMFILE))
        node = await lone_node(tmp_path)
        async with serving(node) as client:
            await client.declare_queue("bad")
            await is_served(client, "bad")
            bad.append(replica_of(node, "bad").record.id)
            await meet(node, client, where)
            await until(lambda: node.gate.failure is not None)
            failure = node.gate.failure
            assert failure is not None
            assert is_shortage(failure)
            assert not node.hosting.failed

    run(main())


@pytest.mark.logs("ring '.*' at a#1 has failed")
@pytest.mark.logs("queue bad is '.*': quarantined on this node")
@pytest.mark.may_log("has failed: RuntimeError")
@pytest.mark.parametrize("where", ["the op", "the watermark", "a task", "the round"])
def test_a_replica_that_raises_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    armed = asyncio.Event()

    def failing(method: Any) -> Any:
        def replaced(self: Any, *arguments: Any) -> Any:
            owner = self.record.name if isinstance(self, Replica) else "bad"
            if armed.is_set() and owner == "bad":
                raise RuntimeError("a bug")
            return method(self, *arguments)

        return replaced

    async def main() -> None:
        async with serving(await lone_node(tmp_path)) as client:
            await client.declare_queue("bad")
            await client.declare_queue("good")
            assert (await listed(client))["bad"].quarantine == ""
            async with client.publisher("bad") as publisher:
                await publisher.publish(b"x")
                armed.set()
                with suppress(ringmq.RingMQError):
                    await publisher.publish(b"x", deadline_s=1.0)
            await is_served(client, "good")
            found = await listed(client)
            assert found["bad"].state is ringmq.QueueState.QUARANTINED
            assert "node a: ring" in found["bad"].quarantine
            assert found["good"].quarantine == ""
            with pytest.raises(ringmq.RingMQError, match="quarantined: on node 'a'"):
                await client.queue("bad", deadline_s=1.0)
            armed.clear()
            await client.delete_queue("bad", force=True)
            await client.declare_queue("bad")
            await is_served(client, "bad")

    methods = {
        "the op": "apply",
        "the watermark": "watermarks",
        "the round": "durable",
    }
    if where == "a task":
        spawn = Replica.durable

        def spawning(self: Replica) -> None:
            async def work() -> None:
                raise RuntimeError("a bug")

            if armed.is_set() and self.record.name == "bad":
                self.spawn(work(), "a task that raises")
            spawn(self)

        monkeypatch.setattr(Replica, "durable", spawning)
    else:
        name = methods[where]
        monkeypatch.setattr(Replica, name, failing(getattr(Replica, name)))
    run(main())


@pytest.mark.logs("queue bad is '.*': quarantined on this node")
@pytest.mark.may_log("queue bad can't be opened")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug"),
        UnsupportedFormatError("journal", "journal.jif", 9, 1),
        read_error(errno.EIO),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_queue_that_cannot_be_opened_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    opening = Store.open_queue

    def failing(self: Store, queue: str, **arguments: Any) -> QueueStore:
        if arguments["label"] == "bad":
            raise error
        return opening(self, queue, **arguments)

    async def main() -> None:
        monkeypatch.setattr(Store, "open_queue", failing)
        async with serving(await lone_node(tmp_path)) as client:
            with pytest.raises(ringmq.RingMQError, match="quarantined"):
                await client.declare_queue("bad", deadline_s=1.0)
            await client.declare_queue("good")
            await is_served(client, "good")
            assert (await listed(client))["bad"].state is ringmq.QueueState.QUARANTINED

    run(main())


@pytest.mark.logs("ring '.*' at a#1 has failed")
@pytest.mark.logs("queue q is '.*': quarantined on this node")
def test_an_abandoned_queue_is_whole_at_the_next_start(tmp_path: Path) -> None:
    """Its files stay as they were: every op that was durable is there."""

    async def main() -> None:
        node = await lone_node(tmp_path)
        async with serving(node) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch([bytes(100)] * 10)
                await publisher.publish_batch([bytes(10_000)] * 10)
            (replica,) = node.hosting.replicas.values()
            replica.ring.fail(RuntimeError("a bug"))
            await until(lambda: not node.hosting.replicas)
        again = await lone_node(tmp_path)
        async with serving(again) as client:
            await until(lambda: len(again.hosting.replicas) == 1)
            await is_served(client, "q")
            assert (await client.queue("q")).messages_ready == 21

    run(main())


@pytest.mark.logs("ring '.*' at c#1 has failed")
@pytest.mark.logs("queue q is '.*': quarantined on this node .* failed before, and left the node")
def test_a_failed_replica_that_comes_back_is_quarantined_until_its_node_starts_again(
    tmp_path: Path,
) -> None:
    """It joined its ring, and was put out by those that had heard of its failure, again and again:
    two views every five seconds, and nobody was told why."""

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            running_nodes(tmp_path, ("a", "b", "c")) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            everywhere = Policy("p", "q", mirrors=Mirrors(nodes=("a", "b", "c")))
            await client.operator.set_policy(everywhere)
            await client.declare_queue("q", master_locator=ringmq.MasterLocator.CLIENT_LOCAL)
            await is_served(client, "q")
            master = replica_of(nodes["a"])

            def synced() -> list[str]:
                return sorted(each.node for each in master.view.synced)

            await until(lambda: synced() == ["a", "b", "c"])
            replica_of(nodes["c"]).ring.fail(RuntimeError("a bug"))
            await until(lambda: synced() == ["a", "b"])
            await client.operator.set_policy(Policy("p", "q", mirrors=Mirrors(nodes=("a", "b"))))
            await until(lambda: not nodes["c"].hosting.failed, "it has left")
            await client.operator.set_policy(everywhere)
            await until(lambda: bool(nodes["c"].hosting.failed), "it is back")
            assert "failed before" in (await listed(client))["q"].quarantine
            await nodes["c"].stop()
            nodes["c"] = await make_node(nodes["c"].config)
            await nodes["c"].start()
            await until(lambda: synced() == ["a", "b", "c"])
            assert (await listed(client))["q"].quarantine == ""

    run(main())


@pytest.mark.logs("ring '.*' at a#1 has failed")
@pytest.mark.logs("queue q is '.*': quarantined on this node")
@pytest.mark.parametrize("by", ["its node", "a client"])
def test_a_replica_that_fails_while_it_hands_over_ends_alone(tmp_path: Path, by: str) -> None:
    """The hand-over of a drained node is a task of the node."""

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            running_nodes(tmp_path, ("a", "b", "c")) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            await client.declare_queue("q", master_locator=ringmq.MasterLocator.CLIENT_LOCAL)
            await is_served(client, "q")
            ring = replica_of(nodes["a"]).ring
            asked = asyncio.Event()
            step = ring.step

            def stepped(event: Event) -> None:
                if isinstance(event, PromotionAsked):
                    asked.set()  # and the ring doesn't come to an end of it
                else:
                    step(event)

            cast(Any, ring).step = stepped
            if by == "its node":
                await client.operator.drain("a")
            else:
                promoting = asyncio.create_task(client.promote_mirror("q", "b", deadline_s=5.0))
            await asked.wait()
            ring.fail(RuntimeError("a bug"))
            await until(lambda: replica_of(nodes["b"]).ring.role is Role.MASTER)
            if by == "a client":
                # The call is repeated, and may find b to be the master already.
                with suppress(ringmq.BadRequestError):
                    await promoting
            await is_served(client, "q")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await nodes["a"].wait_fatal()

    run(main())


@pytest.mark.logs("ring '.*' at a#1 has failed")
@pytest.mark.logs("queue bad is '.*': quarantined on this node")
@pytest.mark.parametrize("op", [Use, Forget])
def test_a_task_that_looks_after_all_queues_outlives_a_replica_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: type[Use | Forget]
) -> None:
    """An exception out of it would be the node's."""
    apply = ReplicatedState.apply

    def failing(self: ReplicatedState, number: int, applied: Op) -> Any:
        if isinstance(applied, op):
            raise RuntimeError("a bug")
        return apply(self, number, applied)

    async def main() -> None:
        node = await lone_node(tmp_path)
        async with serving(node) as client:
            await client.declare_queue("bad")
            async with client.publisher("bad", producer_id=b"p") as publisher:
                await publisher.publish(b"x")
            monkeypatch.setattr(remembering, "FORGET_AFTER_S", 0.0)
            replica = replica_of(node, "bad")
            replica.remembering.taken_over(replica.serving())
            monkeypatch.setattr(ReplicatedState, "apply", failing)
            if op is Use:
                replica.remembering.note_use()
            else:
                await ProducerBudget(node.hosting.replicas.values, 0).look()
            assert [record.name for record, _ in node.hosting.failed.values()] == ["bad"]

    run(main())
