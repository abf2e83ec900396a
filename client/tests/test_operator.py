"""What operators change through the client, against a real gRPC server (`fake_broker`)."""

from __future__ import annotations

import os

import pytest
from fake_broker import FakeNode
from on_loops import Run

import ringmq
from ringmq import ForcedPromotion, MasterLocator, Mirrors, Policy, SyncMode
from ringmq.v1 import common_pb2 as common

WHOLE = Policy(
    "p",
    "^orders",
    3,
    mirrors=Mirrors(2, ("a", "b")),
    min_insync=2,
    sync_mode=SyncMode.MANUAL,
    sync_rate_bytes_max=4096,
    master_locator=MasterLocator.RANDOM,
    forced_promotion=ForcedPromotion.REFUSED,
    is_operator=True,
)


@pytest.mark.parametrize(
    "policy", [WHOLE, Policy("q", ".*", mirrors=Mirrors()), Policy("r", "x", min_insync=1)]
)
def test_a_policy_is_listed_as_it_was_set(run: Run, policy: Policy) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            assert await client.operator.set_policy(policy) == 2
            assert await client.operator.policies() == [policy]
            await client.operator.delete_policy(policy.name, is_operator=policy.is_operator)
            with pytest.raises(ringmq.PolicyNotFoundError):
                await client.operator.delete_policy(policy.name)

    run(test)


def test_a_deletion_whose_answer_was_lost_is_done(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            node.faults.fail = [common.REASON_DRAINING]
            await client.operator.delete_policy("gone")

    run(test)


def test_what_the_wire_cannot_hold_is_a_bad_request(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            strange = os.fsdecode(b"\xff\xfe")
            for policy in (Policy("p", strange), Policy("p", "x", 2**40)):
                with pytest.raises(ringmq.BadRequestError):
                    await client.operator.set_policy(policy)

    run(test)


def test_nodes_are_drained_revived_and_forgotten(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.operator.drain("a")
            assert node.standings == {"a": (True, False)}
            await client.operator.drain("a", evacuate=True)
            assert node.standings == {"a": (True, True)}
            await client.operator.revive("a")
            assert node.standings == {"a": (False, False)}
            await client.operator.forget("a")
            for call in (client.operator.forget, client.operator.revive, client.operator.drain):
                with pytest.raises(ringmq.NodeNotFoundError):
                    await call("a")
            node.faults.fail = [common.REASON_DRAINING]
            await client.operator.forget("a")

    run(test)


def test_connections_of_all_pages_are_listed(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            found = await client.operator.connections()
            assert found.silent_nodes == ("b",)
            states = [each.state for each in found.connections]
            assert [each.peer for each in found.connections] == ["p0", "p1", "p2"]
            assert states == [
                ringmq.ConnectionState.RUNNING,
                ringmq.ConnectionState.FLOW,
                ringmq.ConnectionState.UNKNOWN,
            ]
            assert found.connections[1].flow_reasons == (ringmq.BlockReason.RING_FULL,)

    run(test)


def test_consumers_of_all_pages_are_of_one_master(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            found = await client.operator.consumers("q")
            # The second page was another master's: it begins anew.
            assert node.pages == 5
            assert [(each.number, each.consumer_tag) for each in found] == [
                (1, "q0"),
                (2, "q1"),
                (3, "q2"),
            ]
            assert [each.state for each in found] == [
                ringmq.ConsumerState.SINGLE_ACTIVE,
                ringmq.ConsumerState.WAITING,
                ringmq.ConsumerState.UNKNOWN,
            ]
            assert [each.active for each in found] == [True, False, False]
            assert [(each.share_messages, each.share_bytes) for each in found[:2]] == [
                (None, None),
                (3, 4),
            ]

    run(test)


def test_rebalancing_tells_each_move_and_why_it_failed(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            for name in ("p", "q"):
                await client.declare_queue(name)
            planned = await client.operator.rebalance("q", dry_run=True)
            assert planned == [ringmq.MasterMove("q", "a", "b")]
            done = await client.operator.rebalance()
            assert [(move.queue, move.error) for move in done] == [
                ("p", "in the way"),
                ("q", "in the way"),
            ]

    run(test)
