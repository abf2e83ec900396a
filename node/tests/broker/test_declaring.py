"""The answer to a declaration is the master's, whichever node becomes that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of

import ringmq
from ringmq_gm import MemberId, first_view, ring_key
from ringmq_gm.registry.base import COMMIT_BYTES_MAX, CommitUnknownError, Put
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker, Declared
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.declaring import BATCH_MAX
from ringmq_node.broker.locating import Locator
from ringmq_node.broker.peers import QueuesAt
from ringmq_node.doors.grpc.peers import GrpcPeers
from ringmq_node.model.info import QueueCondition, QueueInfo
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode, QueueRecord
from ringmq_node.model.topology import ARGUMENT_BYTES_MAX, BINDING_ARGUMENTS_MAX
from ringmq_node.node import Node


def test_deleted_while_its_master_is_waited_for(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        replica_of(node).mastership = None
        asking = asyncio.create_task(node.broker._wait_info("q"))
        await asyncio.sleep(0)
        await node.broker.delete_by_force("q", Caller())
        with pytest.raises(BrokerError) as caught:
            async with asyncio.timeout(30):
                await asking
        assert caught.value.reason is Reason.QUEUE_NOT_FOUND

    with_node(tmp_path, work)


def test_declared_again_if_it_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transient queue that nobody held, for example."""
    waiting = Broker._wait_info

    async def deleted_first(self: Broker, queue: str) -> QueueInfo:
        monkeypatch.undo()
        await self.delete_by_force(queue, Caller())
        return await waiting(self, queue)

    async def work(node: Node, client: ringmq.Client) -> None:
        first = node.catalogue.record_of("q").id
        monkeypatch.setattr(Broker, "_wait_info", deleted_first)
        declared = await node.broker.declare("q", QueueArguments(), Caller())
        assert declared.created
        assert declared.info.id != first

    with_node(tmp_path, work)


def test_moved_while_its_master_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(self: GrpcPeers, address: str, queues: Sequence[str], **_: Any) -> QueuesAt:
        assert address == "there"
        info = QueueInfo(
            queue=queues[0],
            id="id",
            replicas_wanted=1,
            min_insync=1,
            mode=QueueMode.DEFAULT,
            durable=True,
            condition=QueueCondition.RUNNING,
            epoch=9,
        )
        return QueuesAt([info], {})

    async def work(node: Node, client: ringmq.Client) -> None:
        replica_of(node).mastership = None
        asking = asyncio.create_task(node.broker._wait_info("q"))
        await asyncio.sleep(0)
        monkeypatch.setattr(Locator, "master_of", lambda self, name: MemberId("b", 1))
        monkeypatch.setattr(node.cluster, "address_of", lambda member: "there")
        monkeypatch.setattr(GrpcPeers, "own_queues", answer)
        async with asyncio.timeout(30):
            assert (await asking).epoch == 9

    with_node(tmp_path, work)


class CountedCommits:
    """Counts the commits of a registry; `lost` of them are carried out and not answered."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch, lost: int = 0) -> None:
        self.count = 0
        self.lost = lost
        self._commit = node.registry.commit
        monkeypatch.setattr(node.registry, "commit", self.commit)

    async def commit(self, *arguments: Any, **more: Any) -> int | None:
        self.count += 1
        revision = await self._commit(*arguments, **more)
        if self.lost:
            self.lost -= 1
            raise CommitUnknownError("the answer was lost")
        return revision


def declare_all(node: Node, names: Sequence[str]) -> list[asyncio.Task[Declared]]:
    arguments = QueueArguments()
    return [asyncio.create_task(node.broker.declare(name, arguments, Caller())) for name in names]


def test_declares_that_come_together_share_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        commits = CountedCommits(node, monkeypatch)
        names = [f"many{number}" for number in range(300)]
        declared = await asyncio.gather(*declare_all(node, names))
        assert [each.info.queue for each in declared] == names
        assert all(each.created for each in declared)
        assert commits.count <= 300 // BATCH_MAX + 3
        again = await asyncio.gather(*declare_all(node, [*names, *names]))
        assert not any(each.created for each in again)

    with_node(tmp_path, work)


def test_queues_that_are_too_much_for_one_commit_go_in_several(tmp_path: Path) -> None:
    """An import declares them together, with whatever arguments another broker's queues had."""
    arguments = {f"x-{number}": "v" * ARGUMENT_BYTES_MAX for number in range(BINDING_ARGUMENTS_MAX)}
    queues = [{"name": f"q{number}", "arguments": arguments} for number in range(BATCH_MAX)]
    assert len(json.dumps(queues)) > 2 * COMMIT_BYTES_MAX

    async def work(node: Node, client: ringmq.Client) -> None:
        document = json.dumps({"queues": queues}).encode()
        imported = await client.topology.import_definitions(document)
        assert (imported.created, imported.failed) == (BATCH_MAX, ())

    with_node(tmp_path, work)


def test_one_that_exists_does_not_spoil_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared through another node, whose watch is ahead of this one's."""

    async def work(node: Node, client: ringmq.Client) -> None:
        record = QueueRecord("there", "id", ("other",), 1, mode=QueueMode.LAZY)
        view = first_view([MemberId("other", 1)], 1)
        assert await node.registry.commit(
            [], [Put(record.key, record.encode()), Put(ring_key(record.id), view.encode())]
        )
        other = QueueArguments(mode=QueueMode.DEFAULT)
        refused = asyncio.create_task(node.broker.declare("there", other, Caller()))
        tasks = declare_all(node, ["one", "two"])
        twice = declare_all(node, ["one"])
        assert all([(await task).created for task in tasks])
        assert not (await twice[0]).created
        with pytest.raises(BrokerError) as caught:
            await refused
        assert caught.value.reason is Reason.QUEUE_EXISTS

    with_node(tmp_path, work)


def test_a_batch_whose_answer_was_lost_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        CountedCommits(node, monkeypatch, lost=1)
        declared = await asyncio.gather(*declare_all(node, [f"q{at}" for at in range(20)]))
        assert len({each.info.id for each in declared}) == 20
        assert all(each.created for each in declared)
        entries = await node.registry.list("queues/q")
        assert len(entries.entries) == 21

    with_node(tmp_path, work)


def test_a_declare_that_timed_out_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        tasks = declare_all(node, ["one", "two", "three"])
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert (await tasks[1]).created
        assert (await tasks[2]).created

    with_node(tmp_path, work)


def test_a_client_that_declares_exactly_is_told_what_differs(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        arguments: dict[str, Any] = {
            "replicas": 1,
            "min_insync": 1,
            "mode": ringmq.QueueMode.LAZY,
            "auto_delete": True,
        }
        rules = ringmq.QueueRules(max_length=3)
        await client.declare_queue("said", **arguments, rules=rules)
        await client.declare_queue("said", **arguments, rules=rules, exact=True)
        await client.declare_queue("said")
        for field in ("replicas", "min_insync", "auto_delete", "max_length"):
            asked = {name: value for name, value in arguments.items() if name != field}
            said = ringmq.QueueRules() if field == "max_length" else rules
            await client.declare_queue("said", **asked, rules=said)
            with pytest.raises(ringmq.QueueExistsError) as caught:
                await client.declare_queue("said", **asked, rules=said, exact=True)
            assert caught.value.metadata["field"] == field
            assert {"existing", "asked"} <= {*caught.value.metadata}
        # Left out, it may be any, and said, it is compared: operators switch it.
        del arguments["mode"]
        await client.declare_queue("said", **arguments, rules=rules, exact=True)
        arguments["mode"] = ringmq.QueueMode.DEFAULT
        with pytest.raises(ringmq.QueueExistsError) as caught:
            await client.declare_queue("said", **arguments, rules=rules, exact=True)
        assert caught.value.metadata == {
            "queue": "said",
            "field": "mode",
            "existing": "lazy",
            "asked": "default",
        }
        await client.declare_queue("bare")
        await client.declare_queue("bare", exact=True)

    with_node(tmp_path, work)
