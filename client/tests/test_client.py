"""Calls of the client against a real gRPC server with queues in memory (`fake_broker`)."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Awaitable, Callable

import pytest
from fake_broker import FakeNode
from on_loops import Run, bodies

import ringmq
from ringmq.v1 import broker_pb2 as broker


def test_modes_of_a_queue(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            lazy = await client.declare_queue("q", mode=ringmq.QueueMode.LAZY)
            assert (lazy.mode, lazy.storage) == (ringmq.QueueMode.LAZY, None)
            assert (await client.declare_queue("plain")).mode is ringmq.QueueMode.DEFAULT
            before = await client.set_queue_mode("q", ringmq.QueueMode.DEFAULT)
            assert before is ringmq.QueueMode.LAZY
            info = await client.queue("q")
            assert info.mode is ringmq.QueueMode.DEFAULT
            assert info.storage is not None
            assert (info.storage.messages_q4, info.storage.messages_target) == (0, None)
            for act in (
                client.set_queue_mode("q", ringmq.QueueMode.UNKNOWN),
                client.declare_queue("new", mode=ringmq.QueueMode.UNKNOWN),
            ):
                with pytest.raises(ringmq.BadRequestError, match="mode") as caught:
                    await act
                assert caught.value.metadata == {"field": "mode"}
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.set_queue_mode("nothing", ringmq.QueueMode.LAZY)
            # A mode of a newer node.
            node.cluster.queues["q"].mode = 7  # type: ignore[assignment]
            assert (await client.queue("q")).mode is ringmq.QueueMode.UNKNOWN

    run(test)


def test_durability_of_a_queue(run: Run) -> None:
    """None says nothing, so that the node takes the queue as it is."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            assert not (await client.declare_queue("t", durable=False)).durable
            assert not (await client.declare_queue("t")).durable
            assert (await client.declare_queue("q", durable=True)).durable
            assert (await client.declare_queue("r")).durable
            node.cluster.queues["t"].durable = None
            assert (await client.queue("t")).durable

    run(test)


def test_target_of_a_queue_may_be_zero() -> None:
    """Which is not the same as none."""
    wire = broker.QueueInfo(storage=broker.QueueStorage(messages_target=0.0, publish_rate=2.5))
    storage = ringmq.QueueInfo.from_wire(wire).storage
    assert storage is not None
    assert (storage.messages_target, storage.publish_rate) == (0.0, 2.5)


def test_what_the_wire_cannot_hold_is_a_bad_request(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            strange = os.fsdecode(b"\xff\xfe")
            calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                ("replicas", lambda: client.declare_queue("q", replicas=2**40)),
                ("min_insync", lambda: client.declare_queue("q", min_insync=2**32)),
                ("messages_max", lambda: client.get_messages("q", 2**40)),
                ("messages_max", lambda: client.get_messages("q", -1)),
                ("queue", lambda: client.queue(strange)),
                ("queue", lambda: client.locate_queue(strange)),
                ("prefix", lambda: client.queues(strange)),
                ("node", lambda: client.promote_mirror("q", strange)),
                ("prefetch_messages", lambda: client.consumer("q", prefetch=2**33).open()),
                ("prefetch_bytes", lambda: client.consumer("q", prefetch_bytes=2**80).open()),
                ("consumer_tag", lambda: client.consumer("q", consumer_tag=strange).open()),
                ("queue", lambda: client.publisher(strange).open()),
            ]
            for field, call in calls:
                with pytest.raises(ringmq.BadRequestError, match=field) as caught:
                    await call()
                assert caught.value.field == field
            with pytest.raises(ringmq.BadRequestError, match="udcff"):
                await ringmq.connect(f"{strange}:7801")

    run(test)


def test_queues_are_declared_listed_looked_at_purged_and_deleted(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            for name in ("a", "b", "c", "d", "x"):
                await client.declare_queue(name)
            assert [each.queue for each in await client.queues()] == ["a", "b", "c", "d", "x"]
            assert [each.queue for each in await client.queues("x")] == ["x"]
            async with client.publisher("a") as publisher:
                await publisher.publish_batch(bodies(3), ringmq.Properties(message_id="m"))
            info = await client.queue("a")
            assert (info.messages_ready, info.state) == (3, ringmq.QueueState.RUNNING)
            assert info.master == "a"
            peeked = await client.get_messages("a", 2)
            assert peeked.bodies == bodies(2)
            assert peeked[0].properties.message_id == "m"
            assert (await client.get_messages("a", 1, remove=True)).bodies == bodies(1)
            with pytest.raises(ringmq.QueueNotEmptyError):
                await client.delete_queue("a", if_empty=True)
            assert await client.purge_queue("a") == 2
            assert await client.discard_damaged("a") == 3
            assert await client.delete_queue("a") == 0
            with pytest.raises(ringmq.QueueNotFoundError) as caught:
                await client.queue("a")
            assert caught.value.metadata == {"queue": "a"}
            assert (await client.locate_queue("b")).address == node.address
            assert (await client.promote_mirror("b", "n2")).new_master == "n2"
            assert await client.sync_queue("b", node="n2") == ["n2"]
        with pytest.raises(ringmq.ClosedError):
            await client.queues()

    run(test)


def test_what_was_never_opened_goes_with_its_last_reference(run: Run) -> None:
    """The client keeps what is open: it closes that with itself."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            left: list[weakref.ref[object]] = [
                weakref.ref(client.publisher("q")),
                weakref.ref(client.consumer("q")),
            ]
            late = client.publisher("q")
            publisher = client.publisher("q")
            await publisher.open()
            opened = weakref.ref(publisher)
            del publisher
            gc.collect()
            assert [each() for each in left] == [None, None]
            held = opened()
            assert held is not None
            await held.publish(b"x")
            await client.close()
            with pytest.raises(ringmq.ClosedError):
                await held.publish(b"y")
            with pytest.raises(ringmq.ClosedError):
                await late.open()

    run(test)
