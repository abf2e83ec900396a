"""A mirror that comes back to a queue whose policy leaves its synchronisation to an operator."""

from __future__ import annotations

from nemesis import Cluster, scenario, until

from ringmq import Client, MasterLocator, Policy, QueueRules, SyncMode, SyncPhase, SyncProgress

RATE_BYTES = 200_000
MANUAL = Policy("manual", "^q", sync_mode=SyncMode.MANUAL, sync_rate_bytes_max=RATE_BYTES)


async def progress(client: Client, node: str, queue: str) -> SyncProgress | None:
    ring = (await client.queue(queue)).ring
    return next((replica.sync for replica in ring if replica.node == node), None)


async def wait_phase(client: Client, node: str, phase: SyncPhase, queue: str = "q") -> SyncProgress:
    found: list[SyncProgress] = []

    async def is_so() -> bool:
        sync = await progress(client, node, queue)
        if sync is not None and sync.phase is phase:
            found.append(sync)
        return bool(found)

    await until(is_so, f"{node} is {phase.name}", within_s=20)
    return found[0]


async def away_meanwhile(cluster: Cluster, client: Client, messages: int) -> str:
    """A mirror is away while so many messages of 1 KiB are published; returns its node."""
    mirror = (await cluster.mirrors_of("q"))[-1]
    cluster.kill(mirror)
    async with client.publisher("q") as publisher:
        await publisher.publish_batch([bytes(1024)] * messages)
    await cluster.start(mirror)
    return mirror


@scenario(deadline_s=90)
async def test_manual_waits_for_an_operator_who_may_stop_it_again(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.operator.set_policy(MANUAL)
        mirror = await away_meanwhile(cluster, client, 1000)
        lagging = await wait_phase(client, mirror, SyncPhase.MANUAL)
        assert (lagging.messages_missing, lagging.messages_fetched) == (1000, 0)
        (listed,) = await client.queues("q")
        assert [replica.sync for replica in listed.ring if not replica.synchronised] == [lagging]

        assert await client.sync_queue("q") == [mirror]
        # A megabyte takes five seconds at this rate.
        fetching = await wait_phase(client, mirror, SyncPhase.FETCHING)
        assert fetching.messages_missing > 0
        assert await client.sync_queue("q", node=mirror, cancel=True) == [mirror]
        stopped = await wait_phase(client, mirror, SyncPhase.CANCELLED)
        assert stopped.messages_missing > 0
        await client.sync_queue("q")
        await cluster.wait_synchronised("q", within_s=30)

        async def nobody_lacks_any() -> bool:
            return await client.sync_queue("q") == []

        # Another node answers, which learns of the ring's view a moment later.
        await until(nobody_lacks_any, "all nodes know that all are synchronised", within_s=20)
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_called_off_when_idle_twice_and_as_the_master_dies(cluster: Cluster) -> None:
    """eager_sync_cancel: nothing is lost by it, and the replica that was called off stays so under
    the next master, until an operator asks."""
    async with cluster.client() as client:
        assert await client.sync_queue("q", cancel=True) == []
        await client.operator.set_policy(MANUAL)
        mirror = await away_meanwhile(cluster, client, 1000)
        await wait_phase(client, mirror, SyncPhase.MANUAL)
        await client.sync_queue("q")
        await wait_phase(client, mirror, SyncPhase.FETCHING)
        assert await client.sync_queue("q", cancel=True) == [mirror]
        stopped = await wait_phase(client, mirror, SyncPhase.CANCELLED)
        assert await client.sync_queue("q", cancel=True) in ([], [mirror])
        master = await cluster.master_of("q")
        cluster.kill(master)

        async def moved() -> bool:
            return await cluster.master_of("q") not in (master, mirror)

        await until(moved, "the synchronised mirror is the master", within_s=20)
        again = await wait_phase(client, mirror, SyncPhase.CANCELLED)
        assert 0 < again.messages_missing <= stopped.messages_missing
        await cluster.start(master)
        await client.sync_queue("q")
        await cluster.wait_synchronised("q", within_s=30)
        assert (await client.queue("q")).messages_ready == 1000
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_a_policy_that_becomes_automatic_begins_the_fetch(cluster: Cluster) -> None:
    """eager_sync_auto_on_policy_change, and again with the master killed behind the change."""
    async with cluster.client() as client:
        for kills in (False, True):
            await client.operator.set_policy(MANUAL)
            mirror = await away_meanwhile(cluster, client, 500)
            await wait_phase(client, mirror, SyncPhase.MANUAL)
            await client.operator.set_policy(Policy("manual", "^q", sync_mode=SyncMode.AUTOMATIC))
            if kills:
                master = await cluster.master_of("q")
                cluster.kill(master)
                await cluster.start(master)
            await cluster.wait_synchronised("q", within_s=30)
        assert (await client.queue("q")).messages_ready == 1000
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_a_mirror_lacks_a_message_as_long_as_a_consumer_holds_it(cluster: Cluster) -> None:
    """follower_synchronization in mode `manual`: neither held nor requeued is gone; acked is."""
    async with cluster.client() as client:
        await client.operator.set_policy(MANUAL)
        mirror = await away_meanwhile(cluster, client, 1)
        lagging = await wait_phase(client, mirror, SyncPhase.MANUAL)
        assert lagging.messages_missing == 1
        async with client.consumer("q", pulls=True) as consumer:
            for _ in range(2):
                held = await consumer.pull()
                assert len(held) == 1
                sync = await progress(client, mirror, "q")
                assert sync is not None
                assert (sync.phase, sync.messages_missing) == (SyncPhase.MANUAL, 1)
                await consumer.nack(held)
            held = await consumer.pull()
            assert await consumer.ack(held, wait=True)
        await cluster.wait_synchronised("q", within_s=20)
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_the_master_dies_while_a_mirror_lacks_what_a_consumer_holds(
    cluster: Cluster,
) -> None:
    """follower_synchronization in mode `manual`, with the master killed: not the mirror that lacks
    the message is the next one, the message comes again, and its ack ends what is lacking."""
    async with cluster.client() as client:
        await client.operator.set_policy(MANUAL)
        mirror = await away_meanwhile(cluster, client, 1)
        await wait_phase(client, mirror, SyncPhase.MANUAL)
        async with client.consumer("q", prefetch=1) as consumer:
            held = await consumer.next_batch(timeout_s=20.0)
            assert held is not None
            assert (len(held), held[0].redelivered) == (1, False)
            master = await cluster.master_of("q")
            cluster.kill(master)
            again = await consumer.next_batch(timeout_s=20.0)
            assert again is not None
            assert (len(again), again[0].redelivered) == (1, True)
            assert (await cluster.master_of("q")) not in (master, mirror)
            assert (await wait_phase(client, mirror, SyncPhase.MANUAL)).messages_missing == 1
            # It has the message, and is synchronised without being told to.
            await cluster.start(master)
            await cluster.wait_synchronised("q", 2)
            assert (await wait_phase(client, mirror, SyncPhase.MANUAL)).messages_missing == 1
            assert await consumer.ack(again, wait=True)
        await cluster.wait_synchronised("q", within_s=20)
        info = await client.queue("q")
        assert (info.messages_ready, info.messages_unacknowledged) == (0, 0)
    await cluster.wait_same_bodies("q")


@scenario(deadline_s=90)
async def test_it_is_synchronised_by_itself_when_all_that_it_lacks_is_consumed(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        await client.operator.set_policy(MANUAL)
        mirror = await away_meanwhile(cluster, client, 300)
        await wait_phase(client, mirror, SyncPhase.MANUAL)
        assert await client.purge_queue("q") == 300
        await cluster.wait_synchronised("q", within_s=20)
    await cluster.wait_equal("q")


# Queues by how many of their messages that expire the mirror knows, and how many it lacks.
EXPIRING = {"q.unknown": (0, 2), "q.mixed": (1, 1), "q.known": (2, 0)}


async def lacking_what_expires(cluster: Cluster, client: Client, ttl_ms: int) -> None:
    """Node a is the master of these queues, and c comes back, and lacks some of their messages."""
    local = MasterLocator.CLIENT_LOCAL
    await client.declare_queue("letters", master_locator=local)
    rules = QueueRules(dead_letter_exchange="", dead_letter_routing_key="letters")
    for queue in EXPIRING:
        await client.declare_queue(queue, rules=rules, master_locator=local)
    for queue in (*EXPIRING, "letters"):
        await cluster.wait_synchronised(queue)
    await client.operator.set_policy(MANUAL)
    for queue, (known, _) in EXPIRING.items():
        async with client.publisher(queue) as publisher:
            await publisher.publish(b"stays")
            await publisher.publish_batch([bytes(1024)] * known, ttl_ms=ttl_ms)
    cluster.kill("c")
    for queue, (_, unknown) in EXPIRING.items():
        async with client.publisher(queue) as publisher:
            await publisher.publish_batch([bytes(1024)] * unknown, ttl_ms=ttl_ms)
    await cluster.start("c")
    for queue, (_, unknown) in EXPIRING.items():
        if unknown:
            lagging = await wait_phase(client, "c", SyncPhase.MANUAL, queue)
            assert lagging.messages_missing == unknown
        else:
            await cluster.wait_synchronised(queue)


async def only_one_stays(cluster: Cluster, client: Client) -> None:
    async def arrived() -> bool:
        return (await client.queue("letters")).messages_ready == 2 * len(EXPIRING)

    for queue in EXPIRING:
        await cluster.wait_synchronised(queue, within_s=40)
    await until(arrived, "all letters", within_s=20)
    for queue in EXPIRING:
        assert [each.body for each in await client.get_messages(queue, 10)] == [b"stays"]
        await cluster.wait_equal(queue)
    await cluster.wait_synchronised("letters", within_s=40)
    assert (await client.queue("letters")).messages_ready == 2 * len(EXPIRING)
    await cluster.wait_equal("letters")


@scenario(deadline_s=90, queue="")
async def test_it_is_synchronised_by_itself_when_all_that_it_lacks_has_expired(
    cluster: Cluster,
) -> None:
    """follower_synchronization_ttl: both unknown to the mirror, one of them, and none."""
    async with cluster.client("a") as client:
        await lacking_what_expires(cluster, client, ttl_ms=6000)
        await only_one_stays(cluster, client)


@scenario(deadline_s=90, queue="")
async def test_the_master_dies_before_all_that_a_mirror_lacks_has_expired(cluster: Cluster) -> None:
    """follower_synchronization_ttl with the master killed: the next one lets them expire, once."""
    async with cluster.client("a") as client:
        await lacking_what_expires(cluster, client, ttl_ms=8000)
    cluster.kill("a")

    async def moved() -> bool:
        return {await cluster.master_of(queue) for queue in ("q.unknown", "q.mixed")} == {"b"}

    await until(moved, "the synchronised mirror is the master", within_s=20)
    # Two of three have to have an op: until the killed one is back nothing leaves the queue.
    await cluster.start("a")
    async with cluster.client() as client:
        await only_one_stays(cluster, client)
