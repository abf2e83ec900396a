"""Policies through one node: what is refused, and what queues get of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from loops import run
from node.tests.broker.test_declaring import CountedCommits
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import lone_node, replica_of, running_nodes
from waiting import until

import ringmq
from ringmq import ApplyTo, ForcedPromotion, MasterLocator, Mirrors, Policy, QueueRules, SyncMode
from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_gm import MemberId, first_view, ring_key
from ringmq_gm.registry.base import KEY_BYTES_MAX, Delete, Put, RegistryUnavailableError
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.cluster_settings import POLICIES, enrol, node_key, policy_key
from ringmq_node.broker.operating import OPERATIONS
from ringmq_node.broker.placement import NodeStanding
from ringmq_node.broker.rebalancing import MasterMove
from ringmq_node.model.names import VHOST_NAME_BYTES_MAX, join_name
from ringmq_node.model.policies import NAME_BYTES_MAX
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import queue_key
from ringmq_node.model.settings import SyncSettings
from ringmq_node.model.topology import exchange_key
from ringmq_node.node import Node


def test_policies_take_effect_on_queues_that_are_there(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        replica = replica_of(node)
        assert replica.syncing.settings == SyncSettings()
        slow = Policy("slow", "^q$", sync_rate_bytes_max=2048, sync_mode=SyncMode.MANUAL)
        assert await client.operator.set_policy(slow) == 1
        await until(lambda: replica.syncing.settings.rate_bytes_max == 2048)
        info = await client.queue("q")
        assert (info.policy, info.operator_policy) == ("slow", "")
        assert info.wanted["sync_mode"] == "manual"
        bound = Policy("bound", "q", sync_rate_bytes_max=1024, is_operator=True)
        assert await client.operator.set_policy(bound) == 1
        assert (await client.queue("q")).wanted["sync_rate_bytes_max"] == "1024"
        assert await client.operator.policies() == [slow, bound]
        assert await client.operator.set_policy(replace(slow, pattern="nothing")) == 0
        await client.operator.delete_policy("bound", is_operator=True)
        await until(lambda: replica.syncing.settings == SyncSettings())

    with_node(tmp_path, work)


def test_a_policy_for_exchanges_tells_to_how_many_it_applies(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        await client.topology.declare_exchange("q.x", alternate_exchange="mine")
        spare = Policy("spare", "^q", apply_to=ApplyTo.EXCHANGES, alternate_exchange="others")
        assert await client.operator.set_policy(spare) == 1
        assert (await client.queue("q")).policy == ""
        found = await client.topology.exchange("q.x")
        assert (found.alternate_exchange, found.effective_alternate_exchange) == ("mine", "mine")
        assert found.policy == "spare"
        # A queue and an exchange.
        both = replace(spare, name="both", apply_to=ApplyTo.ALL, min_insync=1, priority=1)
        assert await client.operator.set_policy(both) == 2
        assert (await client.queue("q")).policy == "both"
        assert (await client.topology.exchange("q.x")).policy == "both"
        assert await client.operator.policies() == [both, spare]
        assert await client.operator.set_policy(replace(both, pattern="nothing")) == 0
        with pytest.raises(ringmq.BadRequestError, match="alternate_exchange is a key of exchang"):
            await client.operator.set_policy(replace(spare, apply_to=ApplyTo.QUEUES))
        with pytest.raises(ringmq.BadRequestError, match="an operator policy is for queues"):
            await client.operator.set_policy(replace(spare, is_operator=True))

    with_node(tmp_path, work)


def test_policies_of_a_vhost_go_with_it(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        limit = Policy("limit", "^q$", rules=QueueRules(max_length=7))
        bound = replace(limit, is_operator=True)
        async with ringmq.connect(node.address, vhost="shop") as shop:
            for call in (
                shop.operator.set_policy(limit),
                shop.operator.delete_policy("limit"),
                shop.operator.policies(),
            ):
                with pytest.raises(ringmq.VhostNotFoundError):
                    await call
            await client.topology.create_vhost("shop")
            await shop.declare_queue("q")
            assert await shop.operator.set_policy(limit) == 1
            assert await shop.operator.set_policy(bound) == 1
            assert (await shop.queue("q")).policy == "limit"
            assert (await client.queue("q")).policy == ""
            assert await shop.operator.policies() == [limit, bound]
            assert await client.operator.policies() == []
            with pytest.raises(ringmq.PolicyNotFoundError):
                await client.operator.delete_policy("limit")
            # The same name in another vhost is another policy.
            other = replace(limit, pattern="nothing")
            assert await client.operator.set_policy(other) == 0
            await client.topology.delete_vhost("shop", force=True)
            await client.topology.create_vhost("shop")
            assert await shop.operator.policies() == []
            assert await client.operator.policies() == [other]

    with_node(tmp_path, work)


def test_the_longest_names_fit_into_the_registrys_keys() -> None:
    vhost, name = "ä" * (VHOST_NAME_BYTES_MAX // 2), "ä" * (NAME_BYTES_MAX // 2) + " "
    for is_operator in (False, True):
        assert len(policy_key(vhost, name, is_operator=is_operator)) <= KEY_BYTES_MAX
    longest = join_name("%" * VHOST_NAME_BYTES_MAX, "%" * QUEUE_NAME_BYTES_MAX)
    assert max(len(exchange_key(longest)), len(queue_key(longest))) <= KEY_BYTES_MAX


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Policy("p", "(", min_insync=1), "pattern"),
        (Policy("", "x", min_insync=1), "name"),
        (Policy("p", "x"), "definition"),
        (Policy("p", "x", mirrors=Mirrors(8)), "mirrors"),
        (Policy("p", "x", mirrors=Mirrors(nodes=("a", "nobody"))), "mirrors"),
    ],
)
def test_policies_that_are_refused(tmp_path: Path, policy: Policy, field: str) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        with pytest.raises(ringmq.BadRequestError) as caught:
            await client.operator.set_policy(policy)
        assert caught.value.field == field
        with pytest.raises(ringmq.PolicyNotFoundError):
            await client.operator.delete_policy("nothing")
        assert await client.operator.policies() == []

    with_node(tmp_path, work)


def test_the_locator_of_a_declaration_is_compared_when_it_is_declared_again(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        await client.declare_queue("r", master_locator=MasterLocator.RANDOM)
        await client.declare_queue("r")
        with pytest.raises(ringmq.QueueExistsError, match="random, not client-local"):
            await client.declare_queue("r", master_locator=MasterLocator.CLIENT_LOCAL)

    with_node(tmp_path, work)


@pytest.mark.logs("settings/policy/broken can't be read")
def test_a_policy_that_can_not_be_read_counts_for_nothing(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        # The second is too deep for the parser.
        for value in (b"{", b"[" * 100_000):
            await node.registry.commit([], [Put(POLICIES + "broken", value)])
        await client.operator.set_policy(Policy("p", "q", forced_promotion=ForcedPromotion.REFUSED))
        assert [policy.name for policy in await client.operator.policies()] == ["p"]
        assert (await client.queue("q")).wanted["forced_promotion"] == "refused"

    with_node(tmp_path, work)


def test_nodes_that_are_not_there_and_a_node_that_is_up(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        for call in (client.operator.drain, client.operator.revive, client.operator.forget):
            with pytest.raises(ringmq.NodeNotFoundError, match="the cluster has a"):
                await call("nobody")
        with pytest.raises(ringmq.NodeIsUpError):
            await client.operator.forget("a")
        await enrol(node.registry, "b")
        await until(lambda: "b" in node.settings.nodes)
        states = {each.node: each.state for each in (await client.cluster_status()).nodes}
        assert states == {"a": ringmq.NodeState.RUNNING, "b": ringmq.NodeState.DOWN}
        await client.operator.forget("b")
        assert [each.node for each in (await client.cluster_status()).nodes] == ["a"]

    with_node(tmp_path, work)


def test_a_forget_without_an_answer_has_forgotten_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        await enrol(node.registry, "b")
        await until(lambda: "b" in node.settings.nodes)
        CountedCommits(node, monkeypatch, lost=1)
        await client.operator.forget("b")
        assert "b" not in node.settings.nodes

    with_node(tmp_path, work)


def test_a_node_that_is_forgotten_meanwhile_does_not_come_back_by_a_revive(tmp_path: Path) -> None:
    """Rings that had been begun without its disk would have waited for it again."""

    async def work(node: Node, client: ringmq.Client) -> None:
        await enrol(node.registry, "b")
        await until(lambda: "b" in node.settings.nodes)
        await client.operator.forget("b")
        # As at a node whose watch is late.
        node.settings.nodes["b"] = NodeStanding()
        with pytest.raises(ringmq.NodeNotFoundError):
            await client.operator.revive("b")
        assert await node.registry.get(node_key("b")) is None

    with_node(tmp_path, work)


def test_a_drained_node_says_so_and_takes_no_queue_until_it_is_revived(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        await client.operator.drain("a")
        status = await client.cluster_status(with_queues_needing=True)
        assert status.nodes[0].state is ringmq.NodeState.DRAINING
        # The only replica of q is here.
        assert (status.nodes[0].queues_needing, status.nodes[0].masters) == (1, 1)
        with pytest.raises(ringmq.LimitExceededError, match=r"a \(drained\)"):
            await client.declare_queue("another")
        await client.operator.revive("a")
        await client.declare_queue("another")

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    ("members", "eligible", "needing"),
    [
        # c died last, and has what a has: b is gone, and a alone is up.
        ("c", "ab", {"a", "b", "c"}),
        ("bc", "", {"b", "c"}),
        # a is the only one of them that is up.
        ("abc", "", {"a", "b", "c"}),
    ],
)
def test_a_node_is_needed_whose_disk_may_have_the_last_copy(
    members: str, eligible: str, needing: set[str], tmp_path: Path
) -> None:
    """An evacuation said that it is done, and the manual said to forget the node then."""

    async def work(node: Node, client: ringmq.Client) -> None:
        lives = {"a": node.me, "b": MemberId("b", 1), "c": MemberId("c", 1)}
        view = replace(
            first_view([lives[name] for name in members], 2),
            eligible=tuple(lives[name] for name in eligible),
        )
        await node.registry.commit([], [Put(ring_key("x"), view.encode())])
        await until(lambda: node.group.view("x") == view)
        assert await node.cluster.count_needing(["x"]) == dict.fromkeys(needing, 1)

    with_node(tmp_path, work)


def test_a_rebalancing_whose_time_is_up_tells_what_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = [MasterMove(f"q{number}", "a", "b") for number in range(6)]
    begun: list[str] = []

    async def planned(*_: object) -> list[MasterMove]:
        return moves

    async def move(queue: str, node: str) -> None:
        begun.append(queue)
        if queue != "q1":
            await asyncio.get_running_loop().create_future()

    async def work(node: Node, client: ringmq.Client) -> None:
        operating = node.broker.operating
        monkeypatch.setattr(operating, "_plan", planned)
        # All of it passes, as most moves never end. On a busy machine one second was too short
        # for those that do.
        told = await operating.rebalance("", 3.0, move=move, every_vhost=True)
        assert [each.queue for each in told] == [each.queue for each in moves]
        assert [each.queue for each in told if not each.error] == ["q1"]
        assert begun == ["q0", "q1", "q2", "q3", "q4"]
        assert told[0].error == "no answer in time"
        assert told[5].error == "not begun: the time was up"
        # The place is free again.
        assert await operating.rebalance("", 1.0, move=None, every_vhost=True) == moves

    with_node(tmp_path, work)


def test_two_rebalancings_are_not_under_way_at_a_time(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        assert await client.operator.rebalance() == []
        session = await node.registry.session(5.0)
        put = Put(OPERATIONS + "rebalance", b"another", leased=True)
        await node.registry.commit([], [put], session=session)
        assert await client.operator.rebalance(dry_run=True) == []
        with pytest.raises(BrokerError) as caught:
            await node.broker.rebalance("", Caller(), dry_run=False)
        assert caught.value.reason is Reason.BUSY
        await session.close()
        assert await client.operator.rebalance() == []

    with_node(tmp_path, work)


@pytest.mark.logs("settings/nodes/b can't be read")
def test_a_node_whose_standing_can_not_be_read_is_not_forgotten(tmp_path: Path) -> None:
    """Its disk would count as lost, and rings would begin again without it."""

    async def work(node: Node, client: ringmq.Client) -> None:
        await node.registry.commit([], [Put(node_key("b"), b"{")])
        await until(lambda: "b" in node.settings.nodes)
        assert not node.settings.nodes["b"].is_drained
        assert (await client.queue("q")).replicas_wanted == 2

    with_node(tmp_path, work)


def test_a_node_that_was_forgotten_while_it_started_belongs_to_the_cluster(tmp_path: Path) -> None:
    """1. It finds that it is enrolled, 2. it is forgotten, as it has no lease yet, 3. it starts."""

    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.registry.commit([], [Delete(node_key("a"))])
        await node.start()
        try:
            await until(lambda: "a" in node.settings.nodes)
        finally:
            await node.stop()

    run(main())


def test_a_node_that_is_forgotten_while_it_is_cut_off_belongs_to_the_cluster_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise RegistryUnavailableError("cut off")

    async def main() -> None:
        async with (
            running_nodes(tmp_path, "ab", lease_s=0.5) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            a, b = nodes["a"], nodes["b"]
            with monkeypatch.context() as cut:
                cut.setattr(b.registry, "_write", away)
                await until(lambda: "b" not in a.group.nodes())
                await client.operator.forget("b")
            await until(lambda: "b" in a.group.nodes())
            await until(lambda: "b" in a.settings.nodes)
            await client.operator.drain("b")

    run(main())


def test_a_rebalancing_knows_vhosts(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running_nodes(tmp_path, "ab") as nodes,
            ringmq.connect(nodes["a"].address, vhost="v") as client,
            ringmq.connect(nodes["a"].address) as other,
        ):
            await client.topology.create_vhost("v")
            for name in ("q1", "q2"):
                await client.declare_queue(name, master_locator=MasterLocator.CLIENT_LOCAL)
            moves = [ringmq.MasterMove("q1", "a", "b", vhost="v")]
            assert await client.operator.rebalance(dry_run=True) == moves
            assert await client.operator.rebalance("q", dry_run=True) == moves
            assert await client.operator.rebalance("x", dry_run=True) == []
            assert await other.operator.rebalance(dry_run=True) == moves
            assert await other.operator.rebalance("q", dry_run=True) == []
            nowhere = ringmq.connect(nodes["a"].address, vhost="w")
            async with nowhere as stranger:
                with pytest.raises(ringmq.VhostNotFoundError):
                    await stranger.operator.rebalance("q", dry_run=True)

    run(main())
