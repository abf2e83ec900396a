"""A mirror that comes back to a queue whose policy leaves its synchronisation to an operator."""

from __future__ import annotations

from nemesis import Cluster, scenario, until

from ringmq import Client, Policy, QueueRules, SyncMode, SyncPhase, SyncProgress

RATE_BYTES = 200_000
# The policy's pattern leaves out the queues of other tests.
MANUAL = Policy("manual", "^q$", sync_mode=SyncMode.MANUAL, sync_rate_bytes_max=RATE_BYTES)


async def progress(client: Client, node: str) -> SyncProgress | None:
    ring = (await client.queue("q")).ring
    return next((replica.sync for replica in ring if replica.node == node), None)


async def wait_phase(client: Client, node: str, phase: SyncPhase) -> SyncProgress:
    found: list[SyncProgress] = []

    async def is_so() -> bool:
        sync = await progress(client, node)
        if sync is not None and sync.phase is phase:
            found.append(sync)
        return bool(found)

    await until(is_so, f"{node} is {phase.name}", within_s=20)
    return found[0]


async def away_meanwhile(
    cluster: Cluster, client: Client, messages: int, ttl_ms: int | None = None
) -> str:
    """A mirror is away while so many messages of 1 KiB are published; returns its node."""
    mirror = (await cluster.mirrors_of("q"))[-1]
    cluster.kill(mirror)
    async with client.publisher("q") as publisher:
        await publisher.publish_batch([bytes(1024)] * messages, ttl_ms=ttl_ms)
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
        assert await client.sync_queue("q") == []
    await cluster.wait_equal("q")


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


@scenario(deadline_s=90, queue="")
async def test_it_is_synchronised_by_itself_when_all_that_it_lacks_has_expired(
    cluster: Cluster,
) -> None:
    """follower_synchronization_ttl, with a message that the mirror knows: that one stays."""
    async with cluster.client() as client:
        await client.declare_queue("letters")
        await client.declare_queue(
            "q", rules=QueueRules(dead_letter_exchange="", dead_letter_routing_key="letters")
        )
        await cluster.wait_synchronised("q")
        await client.operator.set_policy(MANUAL)
        async with client.publisher("q") as publisher:
            await publisher.publish(b"known")
        mirror = await away_meanwhile(cluster, client, 2, ttl_ms=5000)
        lagging = await wait_phase(client, mirror, SyncPhase.MANUAL)
        assert lagging.messages_missing == 2
        await cluster.wait_synchronised("q", within_s=20)
        assert (await client.queue("q")).messages_ready == 1

        async def arrived() -> bool:
            return (await client.queue("letters")).messages_ready == 2

        await until(arrived, "both letters")
    await cluster.wait_equal("q")


@scenario(deadline_s=90, queue="")
async def test_the_master_dies_before_all_that_a_mirror_lacks_has_expired(cluster: Cluster) -> None:
    """follower_synchronization_ttl with the master killed: the next one lets them expire, once."""
    async with cluster.client() as client:
        await client.declare_queue("letters")
        await client.declare_queue(
            "q", rules=QueueRules(dead_letter_exchange="", dead_letter_routing_key="letters")
        )
        await cluster.wait_synchronised("q")
        await cluster.wait_synchronised("letters")
        await client.operator.set_policy(MANUAL)
        async with client.publisher("q") as publisher:
            await publisher.publish(b"known")
        master = await cluster.master_of("q")
        mirror = await away_meanwhile(cluster, client, 2, ttl_ms=8000)
        lagging = await wait_phase(client, mirror, SyncPhase.MANUAL)
        assert lagging.messages_missing == 2
        cluster.kill(master)

        async def moved() -> bool:
            return await cluster.master_of("q") not in (master, mirror)

        await until(moved, "the synchronised mirror is the master", within_s=20)
        # Two of three have to have an op: until the killed one is back nothing leaves the queue.
        await cluster.start(master)
        await cluster.wait_synchronised("q", within_s=40)
        assert [each.body for each in await client.get_messages("q", 10)] == [b"known"]

        async def arrived() -> bool:
            return (await client.queue("letters")).messages_ready == 2

        await until(arrived, "both letters")
        await cluster.wait_synchronised("letters")
        assert (await client.queue("letters")).messages_ready == 2
    for queue in ("q", "letters"):
        await cluster.wait_equal(queue)
