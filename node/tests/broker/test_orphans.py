"""Exclusive, auto-delete and server-named queues on one node, without a door; and `Missed`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from loops import run
from node.tests.broker.test_broker import Session, reason_of
from node.tests.nodes import lone_node, replica_of

from ringmq_gm import MemberId
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.connections import Connections
from ringmq_node.broker.orphans import Fate, Missed
from ringmq_node.broker.ownership import generated_name
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.model.connections import Owner, OwnerError, owner_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.node import Node
from ringmq_node.queue.consumers import ConsumerTerms

NOBODY = Caller(5.0)
EXCLUSIVE = QueueArguments(exclusive=True)
AUTO_DELETE = QueueArguments(auto_delete=True)


# --- the cores ---


def test_what_is_missed_for_long_enough_is_due_and_what_is_orphaned_at_once() -> None:
    missed = Missed(10.0)
    looks = {"held": Fate.HELD, "missed": Fate.MISSED, "orphaned": Fate.ORPHANED}
    assert missed.due(looks, 100.0) == ["orphaned"]
    looks = {"held": Fate.MISSED, "missed": Fate.MISSED}
    assert missed.due(looks, 109.9) == []
    assert missed.due(looks, 110.0) == ["missed"]
    # Found in between: counted anew.
    assert missed.due({"held": Fate.HELD}, 112.0) == []
    assert missed.due({"held": Fate.MISSED}, 125.0) == []
    assert missed.due({"held": Fate.MISSED}, 135.0) == ["held"]


def test_an_owner_tells_its_home_and_not_the_secret() -> None:
    connections = Connections(MemberId("n.1", 7))
    connection, other = connections.open(), connections.open()
    owner = connection.owner
    assert (owner.node, owner.incarnation, owner.number) == ("n.1", 7, 1)
    assert owner_of(connection.id) == owner == Owner.decode(owner.encode())
    secret = connection.id.rsplit(".", 1)[1]
    assert len(secret) == 22
    assert secret not in owner.encode()
    assert owner.name == "n.1.7.1"
    # Who knows the owner doesn't know the id.
    assert owner_of(owner.encode()) != owner
    assert not connections.is_over(owner)
    connections.close(connection)
    assert connections.is_over(owner)
    assert not connections.is_over(other.owner)
    # Of other lives and homes nothing is known here.
    assert not connections.is_over(Owner("n.1", 6, 1, "k"))
    assert not connections.is_over(Owner("m", 7, 1, "k"))
    assert connections.is_over(Owner("n.1", 7, 99, "k"))


@pytest.mark.parametrize("text", ["", "a", "a.1.2", ".1.2.k", "a.x.2.k", "a.1.x.k", "a.1.2."])
def test_no_other_text_is_an_owner_or_a_connection(text: str) -> None:
    with pytest.raises(OwnerError):
        Owner.decode(text)
    with pytest.raises(BrokerError) as caught:
        owner_of(text)
    assert caught.value.metadata["field"] == "connection"


def test_a_token_gives_a_name_of_the_cluster_s_and_always_the_same() -> None:
    name = generated_name(b"token")
    assert name == generated_name(b"token") != generated_name(b"other")
    assert name.startswith("amq.gen-")
    assert len(name) == len("amq.gen-") + 22
    for token in (b"", bytes(65)):
        with pytest.raises(BrokerError):
            generated_name(token)


# --- a node ---


def with_node(folder: Path, work: Callable[[Broker, Node], Awaitable[None]]) -> None:
    async def main() -> None:
        node = await lone_node(folder, orphan_s=0.05)
        async with asyncio.timeout(20):
            await node.start()
            try:
                await work(node.broker, node)
            finally:
                await node.stop()

    run(main())


async def wait_gone(node: Node, queue: str) -> None:
    await node.catalogue.wait_gone(node.catalogue.record_of(queue))


def test_an_exclusive_queue_is_its_connection_s_alone_and_goes_with_it(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        mine, others = broker.orphans.open(), broker.orphans.open()
        me, other = Caller(5.0, connection=mine.id), Caller(5.0, connection=others.id)
        assert await reason_of(broker.declare("x", EXCLUSIVE, NOBODY)) is Reason.BAD_REQUEST
        declared = await broker.declare("x", EXCLUSIVE, me)
        assert declared.created
        assert declared.info.owner == mine.owner.name
        # Neither the record nor its description has the secret.
        assert mine.id.encode() not in node.catalogue.record_of("x").encode()
        for caller in (NOBODY, other):
            for use in (
                broker.declare("x", QueueArguments(), caller),
                broker.declare_passively("x", caller),
                broker.purge("x", caller),
                broker.get("x", caller, messages_max=1, bytes_max=0, remove=False),
                broker.delete("x", DeleteConditions(), caller),
                broker.route("x", caller, consumes=True),
            ):
                assert await reason_of(use) is Reason.QUEUE_LOCKED
        # Anybody may publish, and look.
        assert await broker.route("x", other) == ""
        assert (await broker.queue_info("x", NOBODY)).queue == "x"
        assert not (await broker.declare("x", EXCLUSIVE, me)).created
        assert not (await broker.declare("x", QueueArguments(), me)).created
        assert (await broker.declare_passively("x", me)).info.queue == "x"
        refused = broker.declare("x", QueueArguments(exclusive=False), me)
        assert await reason_of(refused) is Reason.QUEUE_EXISTS

        await broker.declare("y", EXCLUSIVE, other)
        await broker.orphans.close(mine)
        assert "x" not in node.catalogue.records
        assert "y" in node.catalogue.records
        # Without a word: the sweep.
        broker.orphans.lose(others)
        await wait_gone(node, "y")
        # One that is declared after the end doesn't stay either.
        await broker.declare("late", EXCLUSIVE, me)
        if "late" in node.catalogue.records:
            await wait_gone(node, "late")

    with_node(tmp_path, work)


def test_a_namesake_does_not_wait_for_the_sweep(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        mine, others = broker.orphans.open(), broker.orphans.open()
        await broker.declare("x", EXCLUSIVE, Caller(5.0, connection=mine.id))
        node.orphans.connections.close(mine)
        again = await broker.declare("x", EXCLUSIVE, Caller(5.0, connection=others.id))
        assert again.created
        assert again.info.owner == others.owner.name

    with_node(tmp_path, work)


def test_who_pulls_keeps_no_auto_delete_queue_and_takes_none_along(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        await broker.declare("q", AUTO_DELETE, NOBODY)
        replica = node.hosting.replicas[node.catalogue.record_of("q").id]
        pulls = ConsumerTerms(pulls=True)
        for _ in range(2):
            puller = await broker.consuming.open_here("q", Session(), pulls)
            puller.begin()
            assert list((await puller.pull(1, 0)).runs) == []
            puller.close(in_good_order=True)
        # Nobody has asked for it to go, also not the sweep.
        await asyncio.sleep(0.2)
        assert "q" in node.catalogue.records
        assert not replica.store.state.used
        puller = await broker.consuming.open_here("q", Session(), pulls)
        puller.begin()
        consumer = await broker.consuming.open_here("q", Session())
        consumer.begin()
        consumer.close(in_good_order=True)
        await wait_gone(node, "q")

    with_node(tmp_path, work)


def test_an_auto_delete_queue_goes_with_its_last_consumer(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        assert (await broker.declare("q", AUTO_DELETE, NOBODY)).info.auto_delete
        refused = broker.declare("q", QueueArguments(auto_delete=False), NOBODY)
        assert await reason_of(refused) is Reason.QUEUE_EXISTS
        # It has never had a consumer.
        await asyncio.sleep(0.2)
        assert "q" in node.catalogue.records
        first = await broker.consuming.open_here("q", Session())
        first.begin()
        second = await broker.consuming.open_here("q", Session())
        second.begin()
        replica = node.hosting.replicas[node.catalogue.record_of("q").id]
        assert replica.store.state.used
        first.close(in_good_order=True)
        await asyncio.sleep(0.2)
        assert "q" in node.catalogue.records
        second.close(in_good_order=True)
        await wait_gone(node, "q")

    with_node(tmp_path, work)


def test_a_consumer_that_was_lost_may_come_back(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        await broker.declare("q", AUTO_DELETE, NOBODY)
        first = await broker.consuming.open_here("q", Session())
        first.begin()
        first.close()
        assert "q" in node.catalogue.records
        second = await broker.consuming.open_here("q", Session())
        second.begin()
        # Longer than the grace.
        await asyncio.sleep(0.7)
        assert "q" in node.catalogue.records
        second.close()
        await wait_gone(node, "q")

    with_node(tmp_path, work)


def test_the_cluster_names_queues_and_keeps_its_names(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        first = await broker.declare("", QueueArguments(), NOBODY, name_token=b"t")
        again = await broker.declare("", QueueArguments(), NOBODY, name_token=b"t")
        assert first.info.queue == again.info.queue == generated_name(b"t")
        assert (first.created, again.created) == (True, False)
        other = await broker.declare("", QueueArguments(), NOBODY)
        assert other.info.queue != first.info.queue
        for name in ("amq.mine", first.info.queue):
            refused = broker.declare(name, QueueArguments(), NOBODY)
            assert await reason_of(refused) is Reason.ACCESS_REFUSED
        passive = await broker.declare_passively(first.info.queue, NOBODY)
        assert not passive.created
        absent = broker.declare_passively("none", NOBODY)
        assert await reason_of(absent) is Reason.QUEUE_NOT_FOUND
        assert "none" not in node.catalogue.records

    with_node(tmp_path, work)


@pytest.mark.logs("ring '.*' at a#1 has failed")
@pytest.mark.logs("queue x is '.*': quarantined on this node")
def test_a_consumer_whose_replica_has_failed_before_it_began_hears_that_it_moved(
    tmp_path: Path,
) -> None:
    """Its door tells its client that it is subscribed in between. It raised a `KeyError`."""

    async def work(broker: Broker, node: Node) -> None:
        await broker.declare("x", AUTO_DELETE, NOBODY)
        session = Session()
        consuming = await broker.consuming.open_here("x", session, ConsumerTerms())
        replica_of(node, "x").ring.fail(RuntimeError("a bug"))
        consuming.begin()
        assert session.reasons == [Reason.NOT_MASTER]

    with_node(tmp_path, work)
