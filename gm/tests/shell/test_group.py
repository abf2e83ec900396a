"""Groups over real sockets: one process, several nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from group_harness import DEADLINE_S, ListApplication, LocalCluster, local_cluster
from loops import run
from tcp_proxy import TcpProxy
from waiting import leeway, until

from ringmq_gm import (
    FullError,
    GroupOptions,
    LossAccepted,
    MemberId,
    NotMasterError,
    PromotionError,
    RingClosedError,
    RingFailedError,
    Role,
    SupersededError,
    Timing,
    TooLargeError,
    View,
    first_view,
    ring_key,
)
from ringmq_gm.core.views import AcceptedLoss
from ringmq_gm.nodes import NODES
from ringmq_gm.registry.base import (
    Change,
    Delete,
    Guard,
    Operation,
    Put,
    RegistryUnavailableError,
    Session,
    Snapshot,
)
from ringmq_gm.registry.sqlite import SqliteRegistry

# As in use, but for a failure detector that doesn't make the tests wait.
FAST = GroupOptions(ring_timeout_s=0.5, timing=Timing(probe_s=0.2, retry_s=0.1))


def synced(view: View | None) -> list[str]:
    return [member_id.node for member_id in view.synced] if view is not None else []


def prefix_of(shorter: Sequence[object], longer: Sequence[object]) -> bool:
    return list(shorter) == list(longer[: len(shorter)])


@asynccontextmanager
async def proxied(
    tmp_path: Path, nodes: str, options: GroupOptions
) -> AsyncIterator[tuple[LocalCluster, dict[str, TcpProxy]]]:
    """A cluster whose nodes are reached through a proxy each."""
    proxies = {node: TcpProxy() for node in nodes}
    for proxy in proxies.values():
        await proxy.start()
    try:
        async with local_cluster(tmp_path, "", options) as cluster:
            for node, proxy in proxies.items():
                started = await cluster.start(node, advertised=f"127.0.0.1:{proxy.port}")
                proxy.target = started.port
            yield cluster, proxies
    finally:
        for proxy in proxies.values():
            await proxy.close()


def test_ops_of_the_master_are_delivered_everywhere_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(1000):
                assert rings["a"].multicast(b"%d" % index) == index + 1
                assert len(apps["a"].ops) == index + 1
            await until(lambda: apps["a"].confirmed[1] == 1000)
            assert apps["b"].ops == apps["a"].ops
            assert apps["c"].ops == apps["a"].ops
            assert all(mark.persisted == 1000 for mark in rings["a"].marks().values())

    run(main())


def test_order_holds_while_links_are_cut_under_load(tmp_path: Path) -> None:
    """Only open links are cut: a dial that is cut is one that failed, and says that its node is
    down. And a redial counts as quick however long a busy machine takes for it."""

    async def main() -> None:
        options = GroupOptions(timing=Timing(retry_s=0.1), redial_s=DEADLINE_S)
        async with proxied(tmp_path, "abc", options) as (cluster, proxies):
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]

            def all_linked() -> bool:
                return all(len(node.group.linked_nodes()) == 2 for node in cluster.nodes.values())

            for index in range(600):
                if index % 100 == 30:
                    await until(all_linked, "all nodes are linked with each other")
                if index % 100 == 50:
                    list(proxies.values())[index // 100 % 3].cut()
                rings["a"].multicast(b"%d" % index + bytes(10_000))
                if index % 10 == 0:
                    await asyncio.sleep(0.005)
            await until(lambda: apps["a"].confirmed[1] == 600)
            assert [op[0] for op in apps["c"].ops] == list(range(1, 601))
            assert apps["c"].ops == apps["b"].ops == apps["a"].ops
            # A cut that is mended by the quick redial suspects nobody.
            assert rings["a"].view is not None
            assert rings["a"].view.epoch == 1

    run(main())


def test_the_next_member_takes_over_when_the_master_refuses_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(100):
                rings["a"].multicast(b"%d" % index)
            await until(lambda: apps["a"].confirmed[1] == 100)
            began = time.monotonic()
            await cluster.nodes["a"].stop()
            await until(lambda: rings["b"].role is Role.MASTER)
            assert time.monotonic() - began < leeway(1.0)
            rings["b"].multicast(b"after")
            await until(lambda: apps["b"].confirmed[1] == 101)
            assert prefix_of(apps["a"].payloads, apps["b"].payloads)
            assert apps["c"].ops == apps["b"].ops

    run(main())


def test_a_node_that_comes_back_joins_and_catches_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(50):
                rings["a"].multicast(b"%d" % index)
            await until(lambda: apps["a"].confirmed[1] == 50)
            await cluster.nodes["a"].stop()
            await until(lambda: rings["b"].role is Role.MASTER)
            for index in range(50):
                rings["b"].multicast(b"more %d" % index)
            await cluster.start("a")
            back = cluster.open("r", "a")
            back.want(True)
            await until(lambda: synced(rings["b"].view) == ["b", "c", "a"])
            rings["b"].multicast(b"last")
            await until(lambda: apps["b"].confirmed[1] == 101)
            assert len(apps["a"].catch_ups) == 1
            assert apps["a"].ops == apps["b"].ops == apps["c"].ops

    run(main())


def test_every_member_may_submit(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", GroupOptions(payload_bytes_max=1000)) as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            # All links are up once a first op has come around.
            rings["a"].multicast(b"first")
            await until(lambda: apps["a"].confirmed[1] == 1)
            for node in "bca":
                rings[node].submit(node.encode(), urgent=True)
            await until(lambda: apps["a"].confirmed[1] == 4)
            assert sorted(apps["c"].payloads) == [b"a", b"b", b"c", b"first"]
            assert apps["b"].ops == apps["c"].ops
            with pytest.raises(NotMasterError):
                rings["b"].multicast(b"x")
            with pytest.raises(TooLargeError):
                rings["a"].multicast(bytes(1001))

    run(main())


def test_a_slow_receiver_holds_the_master_back_and_is_then_put_out(tmp_path: Path) -> None:
    async def main() -> None:
        options = GroupOptions(
            # Long: a node whose frames are held counts as slow, not as dead.
            ring_timeout_s=20,
            slow_timeout_s=1.0,
            window_bytes=128 * 1024,
            cache_bytes_max=1024 * 1024,
        )
        async with proxied(tmp_path, "abc", options) as (cluster, proxies):
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            rings["a"].multicast(b"first")
            await until(lambda: apps["a"].confirmed[1] == 1)
            proxies["b"].hold()
            while rings["a"].refusal() is None:
                rings["a"].multicast(bytes(64 * 1024))
            with pytest.raises(FullError):
                rings["a"].multicast(b"x")
            sent = rings["a"].last_number
            assert sent < 20
            waiting = asyncio.create_task(rings["a"].wait_writable())
            await until(lambda: synced(rings["a"].view) == ["a", "c"])
            await asyncio.wait_for(waiting, 30)
            rings["a"].multicast(b"goes on")
            await until(lambda: apps["a"].confirmed[1] == sent + 1)
            assert apps["c"].ops == apps["a"].ops
            proxies["b"].release()

    run(main())


@pytest.mark.slow
def test_a_node_that_holds_its_credit_back_gets_a_window_and_the_rest_later(tmp_path: Path) -> None:
    """It lives meanwhile; held for too long, it is put out."""

    async def main() -> None:
        options = GroupOptions(
            ring_timeout_s=0.4, slow_timeout_s=1.2, window_bytes=128 * 1024, message_bytes=8 * 1024
        )
        async with local_cluster(tmp_path, "abc", options) as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            rings["a"].multicast(b"first")
            await until(lambda: apps["a"].confirmed[1] == 1)
            cluster.nodes["b"].group.hold_credit(True)
            for _ in range(100):
                rings["a"].multicast(bytes(8 * 1024))
            # More than a silent node would be given.
            await asyncio.sleep(0.7)
            assert 10 <= len(apps["b"].ops) <= 20
            assert synced(rings["a"].view) == ["a", "b", "c"]
            cluster.nodes["b"].group.hold_credit(False)
            await until(lambda: apps["a"].confirmed[1] == 101)
            assert rings["a"].view is not None
            assert rings["a"].view.epoch == 1
            cluster.nodes["b"].group.hold_credit(True)
            for _ in range(100):
                rings["a"].multicast(bytes(8 * 1024))
            await until(lambda: synced(rings["a"].view) == ["a", "c"])
            await until(lambda: apps["a"].confirmed[1] == 201)

    run(main())


def test_frames_that_are_held_and_released_arrive_once_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path, "abc", GroupOptions(window_bytes=64 * 1024)) as (
            cluster,
            proxies,
        ):
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            rings["a"].multicast(b"first")
            await until(lambda: apps["a"].confirmed[1] == 1)
            for proxy in proxies.values():
                proxy.hold()
            for index in range(100):
                rings["a"].multicast(b"%d" % index + bytes(20_000))
            await asyncio.sleep(0.3)
            assert len(apps["c"].ops) == 1
            for proxy in proxies.values():
                proxy.release()
            await until(lambda: apps["a"].confirmed[1] == 101)
            assert apps["a"].ops == apps["b"].ops == apps["c"].ops
            assert rings["a"].view is not None
            assert rings["a"].view.epoch == 1

    run(main())


def test_a_large_op_travels_in_parts_and_others_pass_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            large = await cluster.create_ring("large", "abc")
            small = await cluster.create_ring("small", "abc")
            small["a"].multicast(b"first")
            large["a"].multicast(b"first")
            await until(lambda: cluster.apps["small"]["a"].confirmed[1] == 1)
            await until(lambda: cluster.apps["large"]["a"].confirmed[1] == 1)
            body = bytes(range(256)) * (40 * 4096)
            large["a"].multicast(body)
            large["a"].multicast(b"behind")
            small["a"].multicast(b"beside")
            await until(lambda: len(cluster.apps["small"]["c"].ops) == 2)
            # A plain number: pytest would print all of the bytes.
            large_ops = len(cluster.apps["large"]["c"].ops)
            assert large_ops == 1
            await until(lambda: cluster.apps["large"]["a"].confirmed[1] == 3)
            same = cluster.apps["large"]["c"].payloads == [b"first", body, b"behind"]
            assert same

    run(main())


def test_promotion_hands_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            for index in range(100):
                rings["a"].multicast(b"%d" % index)
            await rings["a"].promote(cluster.nodes["c"].group.me)
            await until(lambda: rings["c"].role is Role.MASTER)
            rings["c"].multicast(b"after")
            await until(lambda: apps["c"].confirmed[1] == 101)
            assert apps["a"].ops == apps["b"].ops == apps["c"].ops
            with pytest.raises(PromotionError, match="not master"):
                await rings["a"].promote(cluster.nodes["b"].group.me)
            with pytest.raises(PromotionError, match="already master"):
                await rings["c"].promote(cluster.nodes["c"].group.me)

    run(main())


def test_a_deleted_ring_ends_at_every_member(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            rings["a"].multicast(b"x")
            await until(lambda: apps["a"].confirmed[1] == 1)
            await cluster.nodes["a"].registry.commit([], [Delete(ring_key("r"))])
            await until(lambda: all(app.deleted for app in apps.values()))
            with pytest.raises(RingClosedError):
                rings["a"].multicast(b"y")
            # Made again, it begins from nothing.
            apps.clear()
            again = await cluster.create_ring("r", "abc")
            assert again["a"].multicast(b"new") == 1
            await until(lambda: apps["a"].confirmed[1] == 1)

    run(main())


def test_a_member_that_opens_the_ring_last_still_gets_its_hello(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "ab") as cluster:
            # The links are up, and stay so: nothing but a kept Hello can begin ring "late".
            await cluster.create_ring("first", "ab")
            members = [cluster.nodes[node].group.me for node in "ab"]
            registry = cluster.nodes["a"].registry
            put = Put(ring_key("late"), first_view(members, 2).encode())
            await registry.commit([Guard(ring_key("late"), 0)], [put])
            ring = cluster.open("late", "a")
            await until(lambda: ring.role is Role.MASTER)
            ring.multicast(b"x")
            await asyncio.sleep(0.1)
            cluster.open("late", "b")
            await until(lambda: cluster.apps["late"]["a"].confirmed[1] == 1)

    run(main())


class FailingApplication(ListApplication):
    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        raise RuntimeError("the disk is gone")


@pytest.mark.logs("ring 'r' at [bc]#1 has failed")
@pytest.mark.parametrize("failing", ["b", "c"])
@pytest.mark.parametrize("nodes", ["abc", "bca"], ids=["a mirror", "the master or its neighbour"])
def test_a_member_that_fails_leaves_its_ring_and_harms_no_other(
    tmp_path: Path, nodes: str, failing: str
) -> None:
    """Its node goes on answering heartbeats, so nothing but `Gone` shows the others its end."""

    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", nodes)
            others = await cluster.create_ring("s", nodes)
            apps = cluster.apps["r"]
            rings[nodes[0]].multicast(b"x")
            await until(lambda: all(app.payloads == [b"x"] for app in apps.values()))
            rings[failing].fail(RuntimeError("a bug"))
            assert isinstance(apps[failing].failure, RingFailedError)
            rings[failing].persisted(1)
            with pytest.raises(RingFailedError):
                rings[failing].multicast(b"y")
            left = [node for node in nodes if node != failing]
            await until(lambda: synced(rings[left[0]].view) == left)
            rings[left[0]].multicast(b"y")
            await until(lambda: apps[left[0]].confirmed[1] == rings[left[0]].last_number)
            # The other ring of the same nodes has not noticed anything.
            others[nodes[0]].multicast(b"z")
            await until(lambda: cluster.apps["s"][nodes[0]].confirmed[1] == 1)
            assert synced(others[nodes[0]].view) == list(nodes)
            # In this life of the node the member stays closed, whatever becomes of its data here:
            # the others would put it out as often as it joined.
            await cluster.nodes[failing].group.close_ring("r")
            assert cluster.nodes[failing].group.has_failed("r")
            with pytest.raises(ValueError, match="has failed in this life"):
                cluster.open("r", failing, ListApplication())

    run(main())


@pytest.mark.logs("ring 'r' at b#1 has failed")
def test_an_exception_in_the_application_ends_its_member_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            # From the start: a member that is closed and opened anew in one view and session gets
            # no second Hello, and no op before the next one.
            apps = cluster.apps["r"] = {"b": FailingApplication()}
            rings = await cluster.create_ring("r", "abc")
            rings["a"].multicast(b"x")
            await until(lambda: apps["a"].confirmed[1] == 1)
            assert synced(rings["a"].view) == ["a", "c"]
            failure = apps["b"].failure
            assert failure is not None
            assert isinstance(failure.__cause__, RuntimeError)

    run(main())


@pytest.mark.logs("ring 'r' at [ab]#1 has failed")
def test_a_member_that_joins_after_a_failure_is_told_of_it(tmp_path: Path) -> None:
    """c wasn't there when b failed, and a fails next: c asks b, and takes the ring over."""

    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", "ab", min_insync=1)
            rings["b"].fail(RuntimeError("a bug"))
            await until(lambda: synced(rings["a"].view) == ["a"])
            joiner = cluster.open("r", "c")
            joiner.want(True)
            await until(lambda: synced(rings["a"].view) == ["a", "c"])
            rings["a"].fail(RuntimeError("a bug"))
            await until(lambda: joiner.role is Role.MASTER)
            assert synced(joiner.view) == ["c"]

    run(main())


@pytest.mark.logs("node '(ghost|b)': its record in the registry can't be read")
def test_a_record_of_a_node_that_cannot_be_read_ends_no_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", "abc")
            registry = cluster.nodes["a"].registry
            groups = [node.group for node in cluster.nodes.values()]
            await registry.commit([], [Put(NODES + "ghost", b"garbage")])
            await until(lambda: all("ghost" in group.unreadable_nodes() for group in groups))
            # A node that lives writes its own record again.
            await registry.commit([], [Put(NODES + "b", b"garbage")])

            async def is_written_again() -> bool:
                entry = await registry.get(NODES + "b")
                return entry is not None and b"incarnation" in entry.value

            await until(is_written_again)
            await until(
                lambda: all(list(group.unreadable_nodes()) == ["ghost"] for group in groups)
            )
            await until(lambda: all("b" in group.nodes() for group in groups))
            await registry.commit([], [Delete(NODES + "ghost")])
            await until(lambda: not any(group.unreadable_nodes() for group in groups))
            rings["a"].multicast(b"x")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 1)
            assert synced(rings["a"].view) == ["a", "b", "c"]
            assert not any(node.task.done() for node in cluster.nodes.values())

    run(main())


def test_a_master_whose_record_alone_is_gone_goes_on_and_writes_it_again(tmp_path: Path) -> None:
    """It took its lease for good, and stayed unregistered for the rest of its life."""

    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            groups = [node.group for node in cluster.nodes.values()]
            registry = cluster.nodes["b"].registry
            await registry.commit([], [Delete(NODES + "a")])
            rings["a"].multicast(b"x")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 1)

            async def is_written_again() -> bool:
                return await registry.get(NODES + "a") is not None

            await until(is_written_again)
            await until(lambda: all("a" in group.nodes() for group in groups))
            view = rings["a"].view
            assert view is not None
            assert view.epoch == 1

    run(main())


def test_a_master_without_a_lease_is_found_by_the_nodes_that_are_linked_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry is away for it alone; the others said that it was down."""

    async def unavailable(*_: object, **__: object) -> NoReturn:
        raise RegistryUnavailableError("away for a")

    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            a, b = (cluster.nodes[name].group for name in "ab")
            at = b.nodes()["a"].address
            await until(lambda: "a" in b.linked_nodes(), "b is linked with a")
            for call in ("get", "commit", "session"):
                monkeypatch.setattr(cluster.nodes["a"].registry, call, unavailable)
            await cluster.nodes["b"].registry.commit([], [Delete(NODES + "a")])
            await until(lambda: "a" not in b.nodes())
            assert b.address_of(a.me) == at
            assert b.address_of(replace(a.me, incarnation=7)) is None
            rings["a"].multicast(b"x")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 1)

    run(main())


def test_an_overruled_master_that_is_cut_off_is_told_as_soon_as_a_link_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares no view with the new master, and the link between them would have been idle."""
    (tmp_path / "shared").mkdir()
    ways = {node: tmp_path / node for node in "ab"}
    for way in ways.values():
        way.symlink_to(tmp_path / "shared")
    paths = iter(ways.values())
    monkeypatch.setattr(
        "group_harness.SqliteRegistry", lambda _: SqliteRegistry(next(paths) / "registry.db")
    )

    async def main() -> None:
        timing = replace(FAST.timing, restart_grace_s=0.3)
        options = GroupOptions(link_idle_s=0.3, lease_ttl_s=0.5, ring_timeout_s=0.5, timing=timing)
        async with proxied(tmp_path, "ab", options) as (cluster, proxies):
            rings = await cluster.create_ring("r", "ab", min_insync=1)
            apps = cluster.apps["r"]
            rings["a"].multicast(b"both")
            await until(lambda: apps["a"].confirmed[1] == 1)
            await until(lambda: rings["b"].last_number == 1)
            for proxy in proxies.values():
                await proxy.refuse()
            # Either may put the other out.
            await until(lambda: all(len(synced(ring.view)) == 1 for ring in rings.values()))
            (old,) = synced(rings["a"].view)
            new = "b" if old == "a" else "a"
            ways[old].unlink()
            await until(lambda: old not in cluster.nodes[new].group.nodes())
            await until(lambda: rings[new].role is Role.OUTSIDE)
            await rings[new].accept_loss(LossAccepted(1, 1, 1, "operator", 0))
            # No registry and no link says so, and a ring works while the registry is away.
            rings[old].multicast(b"alone")
            await until(lambda: apps[old].confirmed[1] == 2)
            await asyncio.sleep(4 * options.link_idle_s)
            for proxy in proxies.values():
                await proxy.start()
            await until(lambda: rings[old].role is Role.OUTSIDE)
            with pytest.raises(NotMasterError):
                rings[old].multicast(b"late")

    run(main())


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["forgotten", "a later life"])
def test_no_link_is_kept_to_an_overruled_life_that_is_over(
    tmp_path: Path, is_forgotten: bool
) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "b") as cluster:
            ring = (await cluster.create_ring("r", "b", min_insync=1))["b"]
            group, registry = cluster.nodes["b"].group, cluster.nodes["b"].registry
            loss = AcceptedLoss(2, group.me, 0, 0, 0, (MemberId("a", 1),), "operator", 0)
            assert ring.view is not None
            view = ring.view.begun_with_loss(loss)
            await registry.commit([], [Put(ring_key("r"), view.encode())])
            await until(lambda: ring.view == view)
            assert group._links._shared["a"] == 1
            if is_forgotten:
                group.know_nodes(frozenset({"b"}))
            else:
                group._links.saw(MemberId("a", 2))
            following = replace(view, epoch=3)
            await registry.commit([], [Put(ring_key("r"), following.encode())])
            await until(lambda: ring.view == following)
            assert group._links._shared["a"] == 0

    run(main())


@pytest.mark.parametrize("waits_at", ["c", "b"], ids=["hosts no member", "hosts the next master"])
def test_who_waits_for_a_view_is_woken_by_the_next_one(tmp_path: Path, waits_at: str) -> None:
    """A node that relays streams to a master hosts no member: nothing woke it."""

    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            await cluster.create_ring("r", "ab", min_insync=1)
            group = cluster.nodes[waits_at].group
            await until(lambda: group.view("r") is not None)
            waiter = asyncio.create_task(group.wait_view("r"))
            await cluster.nodes["a"].stop()
            async with asyncio.timeout(DEADLINE_S):
                await waiter
            view = group.view("r")
            assert view is not None
            assert view.master.node == "b"
            waiter = asyncio.create_task(group.wait_view("r"))
            await cluster.nodes["b"].registry.commit([], [Delete(ring_key("r"))])
            async with asyncio.timeout(DEADLINE_S):
                await waiter
            await until(lambda: group.view("r") is None)

    run(main())


class CutRegistry(SqliteRegistry):
    """Out of reach once `is_cut`."""

    is_cut = False

    def _ensure_reached(self) -> None:
        if self.is_cut:
            raise RegistryUnavailableError("cut")

    async def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> int | None:
        self._ensure_reached()
        return await super().commit(guards, operations, session=session)

    async def list(self, prefix: str) -> Snapshot:
        self._ensure_reached()
        return await super().list(prefix)

    async def watch(self, prefix: str) -> AsyncIterator[Sequence[Change]]:
        async for changes in super().watch(prefix):
            if self.is_cut:
                await asyncio.Event().wait()
            yield changes


@pytest.mark.parametrize("cut", ["a", "c"])
def test_two_go_on_though_one_of_them_is_cut_from_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """b dies. a and c see each other, and one of them reaches the registry."""

    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = await cluster.create_ring("r", "abc")
            rings["a"].multicast(b"1")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 1)
            registry = cluster.nodes[cut].registry
            assert isinstance(registry, CutRegistry)
            registry.is_cut = True
            await cluster.nodes["b"].stop()
            await until(lambda: synced(rings["a"].view) == ["a", "c"])
            assert rings["a"].refusal() is None
            rings["a"].multicast(b"2")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 2)
            seen = cluster.nodes[cut].group.view("r")
            assert seen == rings["a"].view

    monkeypatch.setattr("group_harness.SqliteRegistry", CutRegistry)
    run(main())


def test_two_go_on_though_the_third_is_a_new_life_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b is back before the others have the registry again, and hosts no ring. They read nothing of
    its new life there: the handshakes of their links alone name it."""

    async def main() -> None:
        async with proxied(tmp_path, "abc", FAST) as (cluster, proxies):
            rings = await cluster.create_ring("r", "abc")
            others = [cluster.nodes[name] for name in "ac"]
            registries = [node.registry for node in others]

            def cut(is_cut: bool) -> None:
                for registry in registries:
                    assert isinstance(registry, CutRegistry)
                    registry.is_cut = is_cut

            def linked() -> int:
                return sum("b" in node.group.linked_nodes() for node in others)

            await until(lambda: linked() == 2)
            cut(True)
            await cluster.nodes["b"].stop()
            await until(lambda: linked() == 0)
            again = await cluster.start("b", advertised=f"127.0.0.1:{proxies['b'].port}")
            proxies["b"].target = again.port
            await until(lambda: linked() == 2)
            cut(False)
            await until(lambda: synced(rings["a"].view) == ["a", "c"])
            rings["a"].multicast(b"1")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 1)

    monkeypatch.setattr("group_harness.SqliteRegistry", CutRegistry)
    run(main())


def test_a_node_that_was_started_twice_stops_its_earlier_life(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "a") as cluster:
            first = cluster.nodes["a"]
            await cluster.start("a")
            with pytest.raises(SupersededError, match="incarnation 2 has registered"):
                await asyncio.wait_for(first.task, 30)
            await first.server.stop(0)
            await first.registry.close()
            later = cluster.nodes["a"].group
            # Its own watch may show the registry's change a moment after the earlier life's.
            await until(lambda: later.nodes()["a"].incarnation == 2)

    run(main())


class CountingRegistry(SqliteRegistry):
    commits = 0

    async def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> int | None:
        CountingRegistry.commits += 1
        return await super().commit(guards, operations, session=session)


def test_a_death_costs_a_few_commits_for_all_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc", FAST) as cluster:
            rings = [await cluster.create_ring(f"r{index}", "abc") for index in range(40)]
            for ring in rings:
                ring["a"].multicast(b"x")
            confirmed = [cluster.apps[f"r{index}"]["a"] for index in range(40)]
            await until(lambda: all(app.confirmed[1] == 1 for app in confirmed))
            CountingRegistry.commits = 0
            await cluster.nodes["a"].stop()
            await until(lambda: all(ring["b"].role is Role.MASTER for ring in rings))
            # Both b and c propose for each ring: 80 proposals.
            assert CountingRegistry.commits <= 12

    monkeypatch.setattr("group_harness.SqliteRegistry", CountingRegistry)
    run(main())


def test_links_that_nobody_needs_are_closed(tmp_path: Path) -> None:
    async def main() -> None:
        options = GroupOptions(link_idle_s=0.3, ring_timeout_s=0.4)
        async with local_cluster(tmp_path, "ab", options) as cluster:
            rings = await cluster.create_ring("r", "ab")
            rings["a"].multicast(b"x")
            await until(lambda: cluster.apps["r"]["a"].confirmed[1] == 1)
            assert cluster.nodes["a"].group.linked_nodes() == ["b"]
            await cluster.nodes["a"].group.close_ring("r")
            await until(lambda: cluster.nodes["a"].group.linked_nodes() == [])

    run(main())


def test_a_ring_works_while_the_registry_is_away_and_changes_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        # Nobody may be taken for dead on a busy machine: without a registry nobody comes back.
        options = GroupOptions(lease_ttl_s=0.5, ring_timeout_s=5.0, timing=FAST.timing)
        async with local_cluster(tmp_path, "abc", options) as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            groups = [node.group for node in cluster.nodes.values()]
            assert all(group.registry_available for group in groups)
            registry = tmp_path / "registry.db"
            registry.rename(tmp_path / "away.db")
            await until(lambda: not any(group.registry_available for group in groups))
            for index in range(100):
                rings["a"].multicast(b"%d" % index)
            await until(lambda: apps["a"].confirmed[1] == 100)
            await cluster.nodes["a"].stop()
            await until(lambda: cluster.nodes["b"].group.linked_nodes() == ["c"])
            assert rings["b"].role is Role.MIRROR
            (tmp_path / "away.db").rename(registry)
            await until(lambda: apps["b"].roles[-1] is Role.MASTER)
            await until(lambda: all(group.registry_available for group in groups[1:]))
            rings["b"].multicast(b"after")
            await until(lambda: apps["b"].confirmed[1] == 101)
            assert apps["c"].ops == apps["b"].ops

    run(main())
