"""`ringmq queue verify` on replicas that are equal, in use, and damaged."""

from __future__ import annotations

from nemesis import Cluster, scenario
from nemesis.falsifying import falsify

from ringmq import DifferenceKind


@scenario(deadline_s=90, queue="")
async def test_replicas_are_compared_in_use_and_a_changed_body_is_named(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.declare_queue("q")
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"%06d" % at + bytes(500) for at in range(2000)])
        found = await client.operator.verify_queue("q")
        assert found.done
        assert (found.messages, found.differences, len(found.nodes)) == (2000, (), 3)
        assert found.bytes >= 2000 * 506

        await client.declare_queue("busy")
        # Beside a publisher and a consumer that never stop.
        async with cluster.publishing("busy", total=10_000) as load, cluster.consuming("busy"):
            for _ in range(2):
                found = await client.operator.verify_queue("busy")
                assert found.done
                assert found.differences_total == 0, found.differences
            await load.finishes(within_s=40)

        await client.declare_queue("still")
        async with client.publisher("still") as publisher:
            await publisher.publish_batch([b"still %06d" % at + bytes(500) for at in range(100)])
    mirror = (await cluster.mirrors_of("still"))[0]
    cluster.kill(*cluster.nodes)
    falsify(cluster.data(mirror), b"still 000042", b"still 000043")
    await cluster.start()
    await cluster.wait_synchronised("still", within_s=40)
    async with cluster.client() as client:
        found = await client.operator.verify_queue("still")
        assert found.differences_total == 1
        (difference,) = found.differences
        assert (difference.position, difference.kind) == (42, DifferenceKind.BODY)
        assert mirror in (difference.node, difference.other)
