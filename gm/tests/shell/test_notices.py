"""What a node's application tells others: by its links at once, in its record for all of them."""

from __future__ import annotations

from pathlib import Path

from group_harness import local_cluster
from loops import run
from waiting import until

from ringmq_gm import GroupOptions

OPTIONS = GroupOptions(ring_timeout_s=0.5, lease_ttl_s=1.0)


def test_a_notice_reaches_linked_nodes_and_ends_with_its_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with local_cluster(tmp_path, "abc", OPTIONS) as cluster:
            a, b, c = (cluster.nodes[name].group for name in "abc")
            changes: list[dict[str, int]] = []
            a.on_notices = lambda: changes.append(dict(a.notices()))
            await cluster.create_ring("q", "ab")
            await until(lambda: "b" in a.linked_nodes())
            b.set_notice(3)
            await until(lambda: a.notices() == {"b": 3})
            b.set_notice(1)
            await until(lambda: a.notices() == {"b": 1})
            b.set_notice(0)
            await until(lambda: a.notices() == {})
            b.set_notice(2)
            await until(lambda: a.notices() == {"b": 2})
            # No ring is shared with c, so there is no link.
            assert c.notices() == {}
            await cluster.nodes["b"].stop()
            await until(lambda: a.notices() == {})
            assert {"b": 3} in changes
            await cluster.start("b")

    run(story())


def test_a_description_reaches_every_node_without_a_lapse_of_the_lease(tmp_path: Path) -> None:
    async def story() -> None:
        async with local_cluster(tmp_path, "ab", OPTIONS) as cluster:
            a, b = (cluster.nodes[name].group for name in "ab")
            await until(lambda: "b" in a.nodes())
            present: list[bool] = []
            a.on_notices = lambda: present.append("b" in a.nodes())
            for facts in (["disk"], ["disk", "memory"], []):
                b.describe(alarms=facts)
                await until(lambda facts=facts: a.nodes()["b"].extra.get("alarms") == facts)
                assert b.registry_available
            assert all(present)

    run(story())
