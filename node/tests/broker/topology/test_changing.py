"""Declares and deletes through a real registry (SQLite), with two nodes that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run
from waiting import leeway

from ringmq_gm import MemberId
from ringmq_gm.registry.base import Change, CommitUnknownError, Delete, Put, Registry
from ringmq_gm.registry.url import open_registry
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.catalogue import QueueCatalogue, Touched
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.deleting import Deleting
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.topology import changing
from ringmq_node.broker.topology.arguments import ExchangeArguments
from ringmq_node.broker.topology.changing import TopologyChanges
from ringmq_node.broker.topology.service import BindingAsked, TopologyService
from ringmq_node.broker.topology.sweeping import TopologyKeeper
from ringmq_node.broker.topology.topology import Topology
from ringmq_node.model.fields import fields_of
from ringmq_node.model.names import join_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueRecord, new_queue_id, queue_key
from ringmq_node.model.topology import BINDINGS, EXCHANGES, ExchangeKind, exchange_key

DEADLINE_S = 20.0
FANOUT = ExchangeArguments(ExchangeKind.FANOUT)


class LateRegistry:
    """A registry whose watches can be held."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def watch(self, prefix: str) -> AsyncIterator[Sequence[Change]]:
        async for changes in self._registry.watch(prefix):
            await self.goes_on.wait()
            yield changes


class TopologyNode:
    """What a node has of topology, and nothing else."""

    def __init__(self, name: str, shared: Registry, lives: dict[str, int]) -> None:
        self.late = LateRegistry(shared)
        registry = self.registry = cast(Registry, self.late)
        self.catalogue = QueueCatalogue(registry)
        self.topology = Topology(registry, self.catalogue)
        self.changes = changes = TopologyChanges(registry, self.topology, self.catalogue)
        deleting = Deleting(registry, self.catalogue, cast(Any, None))
        self.service = TopologyService(
            registry,
            self.topology,
            changes,
            self.catalogue,
            deleting,
            NodeGate(name),
            ClusterSettings(registry),
        )
        group = SimpleNamespace(
            me=MemberId(name, lives[name]),
            nodes=lambda: {node: SimpleNamespace(incarnation=n) for node, n in lives.items()},
            known_incarnation=lambda node: lives.get(node, 0),
        )
        self.keeper = TopologyKeeper(
            registry, self.topology, self.catalogue, changes, cast(Any, group), lambda: lives
        )

    async def follow(self) -> None:
        async def reconcile(touched: Touched) -> None:
            self.topology.queues_touched(touched)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.catalogue.follow(reconcile))
            tasks.create_task(self.topology.follow())

    async def declare(
        self, name: str, arguments: ExchangeArguments = FANOUT, vhost: str = ""
    ) -> bool:
        return await self.service.declare_exchange(vhost, name, arguments, DEADLINE_S)

    async def delete(self, name: str, *, if_unused: bool = False, vhost: str = "") -> None:
        await self.service.delete_exchange(vhost, name, DEADLINE_S, if_unused=if_unused)

    async def bind(self, source: str, to: str, key: str = "", **more: Any) -> bool:
        vhost = more.pop("vhost", "")
        return await self.service.bind(
            BindingAsked(vhost, source, to, routing_key=key, **more), Caller(DEADLINE_S)
        )

    async def unbind(self, source: str, to: str, key: str = "", **more: Any) -> bool:
        return await self.service.unbind(
            BindingAsked("", source, to, routing_key=key, **more), Caller(DEADLINE_S)
        )

    async def queue(self, name: str, vhost: str = "") -> None:
        """As `broker.declaring` would: a record, here without a ring."""
        record = QueueRecord(join_name(vhost, name), new_queue_id(), ("a",), 1)
        await self.registry.commit([], [Put(record.key, record.encode())])
        await self.catalogue.wait_present(record.name)

    async def delete_queue(self, name: str) -> None:
        record = self.catalogue.record_of(name)
        await self.registry.commit([], [Delete(queue_key(name))])
        await self.catalogue.wait_gone(record)

    def route(self, exchange: str, key: str = "") -> tuple[str, ...]:
        return self.topology.router.route(exchange, (key,))

    async def sees(self, is_so: Callable[[], object]) -> None:
        while not is_so():  # noqa: ASYNC110, of two watches
            await asyncio.sleep(0.005)

    async def keys(self, prefix: str) -> list[str]:
        return [entry.key for entry in (await self.registry.list(prefix)).entries]


def with_nodes(
    folder: Path, work: Callable[..., Awaitable[None]], names: Iterable[str] = "ab"
) -> None:
    async def main() -> None:
        registry = open_registry(f"sqlite:///{folder / 'registry.db'}")
        lives = dict.fromkeys(names, 1)
        nodes = [TopologyNode(name, registry, lives) for name in names]
        following = [asyncio.create_task(node.follow()) for node in nodes]
        try:
            async with asyncio.timeout(30):
                for node in nodes:
                    await node.catalogue.loaded.wait()
                    await node.topology.loaded.wait()
                await work(*nodes)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await registry.close()

    run(main())


async def refused(call: Awaitable[object]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await call
    return caught.value


def test_a_declare_is_idempotent_and_a_differing_one_is_refused(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        assert await a.declare("x")
        assert not await a.declare("x")
        # Also through a node whose watch may be behind.
        assert not await b.declare("x")
        error = await refused(b.declare("x", ExchangeArguments(ExchangeKind.TOPIC)))
        assert error.reason is Reason.EXCHANGE_EXISTS
        told = ("field", "existing", "asked")
        assert [error.metadata[each] for each in told] == ["type", "fanout", "topic"]
        different = ExchangeArguments(ExchangeKind.FANOUT, alternate="y")
        error = await refused(a.declare("x", different))
        assert [error.metadata[each] for each in told] == ["alternate_exchange", "none", "y"]
        assert [each.name for each in a.topology.exchanges("")][-1] == "x"

    with_nodes(tmp_path, story)


def test_declares_at_the_same_time_make_one_exchange(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        new = await asyncio.gather(*(node.declare("x") for node in (a, b) * 5))
        assert sum(new) == 1

    with_nodes(tmp_path, story)


def test_a_binding_routes_on_every_node(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        await a.declare("x", ExchangeArguments(ExchangeKind.TOPIC))
        # Both are looked for in the registry if b hasn't heard of them yet.
        assert await b.bind("x", "q", "a.*")
        assert not await a.bind("x", "q", "a.*")
        assert a.route("x", "a.b") == b.route("x", "a.b") == ("q",)
        assert [each.destination for each in a.topology.bindings("", source="x")] == ["q"]
        assert await a.unbind("x", "q", "a.*")
        assert not await a.unbind("x", "q", "a.*")
        assert a.route("x", "a.b") == ()
        await b.sees(lambda: b.route("x", "a.b") == ())

    with_nodes(tmp_path, story)


def test_bindings_go_with_either_end_and_do_not_come_back(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        for queue in ("p", "q"):
            await a.queue(queue)
        for exchange in ("x", "y"):
            await a.declare(exchange)
            await a.bind(exchange, "q")
        await a.bind("x", "p")
        await a.bind("x", "y", to_exchange=True)
        # The node that deletes the queue dies before it can clean up: only the record is gone.
        await a.delete_queue("q")
        assert a.route("x") == ("p",)
        await a.queue("q")
        await a.delete("y")
        await a.declare("y")
        assert a.route("x") == ("p",), "bindings of a namesake came to life"
        assert [each.destination for each in a.topology.bindings("")] == ["p"]
        # Another node sweeps what is left of them.
        while len(await b.keys(BINDINGS)) > 1:
            await b.keeper.sweep()
        assert a.route("x") == ("p",)
        # The sweep asks the registry: nothing goes that only this node believes to be gone.
        b.topology.suspect_ends.add(a.catalogue.record_of("p").id)
        b.topology.suspect_ends.add(a.topology.exchange("x").id)
        await b.keeper.sweep()
        assert len(await b.keys(BINDINGS)) == 1
        await b.delete("x")
        assert await b.keys(BINDINGS) == []

    with_nodes(tmp_path, story)


@pytest.mark.parametrize("end", ["queue", "source"])
def test_a_node_that_is_behind_binds_the_ends_that_there_are(tmp_path: Path, end: str) -> None:
    """1. An end of a binding is deleted and declared anew, through one node. 2. The same binding is
    made through another one, which hasn't heard of that. The old binding's record is still there:
    it stands for nothing, and the client would be told that the new queue is bound."""

    async def work(one: TopologyNode, late: TopologyNode) -> None:
        await one.declare("x")
        await one.queue("q")
        await late.bind("x", "q")
        await one.sees(lambda: one.route("x") == ("q",))
        [left] = (await one.registry.list(BINDINGS)).entries
        late.late.goes_on.clear()
        if end == "queue":
            await one.delete_queue("q")
            await one.queue("q")
        else:
            await one.delete("x")
            await one.declare("x")
            # As with one of very many, which go later.
            await one.registry.commit([], [Put(left.key, left.value)])
        binding = asyncio.create_task(late.bind("x", "q"))
        await asyncio.wait([binding], timeout=0.05)
        late.late.goes_on.set()
        assert await binding
        assert await one.unbind("x", "q")
        # And it unbinds what there is.
        await one.bind("x", "q")
        await late.sees(lambda: late.route("x") == ("q",))
        late.late.goes_on.clear()
        await one.delete_queue("q")
        await one.queue("q")
        await one.bind("x", "q")
        unbinding = asyncio.create_task(late.unbind("x", "q"))
        await asyncio.wait([unbinding], timeout=0.05)
        late.late.goes_on.set()
        assert await unbinding
        await one.sees(lambda: one.route("x") == ())

    with_nodes(tmp_path, work)


def test_a_sweep_that_comes_second_ends(tmp_path: Path) -> None:
    """Its commit changes nothing, and has the revision of whatever was written last."""

    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.declare("x")
        await a.queue("q")
        await a.bind("x", "q")
        await a.delete_queue("q")
        await a.sees(lambda: a.topology.suspect_ends)
        await b.sees(lambda: b.topology.suspect_ends)
        a.late.goes_on.clear()
        await b.keeper.sweep()
        await b.queue("another")
        second = asyncio.create_task(a.keeper.sweep())
        await asyncio.wait([second], timeout=0.1)
        a.late.goes_on.set()
        async with asyncio.timeout(leeway(2)):
            await second
        assert a.route("x") == ()

    with_nodes(tmp_path, story)


def test_a_delete_without_an_answer_has_deleted_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.declare("x")
        commit = a.registry.commit

        async def unanswered(*arguments: Any, **more: Any) -> int | None:
            monkeypatch.undo()
            await commit(*arguments, **more)
            raise CommitUnknownError("the answer was lost")

        monkeypatch.setattr(a.late, "commit", unanswered, raising=False)
        await a.delete("x")
        assert (await refused(a.service.exchange("", "x"))).reason is Reason.EXCHANGE_NOT_FOUND
        assert (await refused(a.delete("x"))).reason is Reason.EXCHANGE_NOT_FOUND

    with_nodes(tmp_path, story)


def test_an_auto_delete_exchange_goes_with_its_last_binding(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("p")
        await a.queue("q")
        for exchange in ("x", "y"):
            await a.declare(exchange, ExchangeArguments(ExchangeKind.FANOUT, auto_delete=True))
            assert a.topology.exchange(exchange), "it had no binding yet"
            await a.bind(exchange, "p")
            await a.bind(exchange, "q")
        await a.unbind("x", "p")
        assert a.route("x") == ("q",)
        await a.unbind("x", "q")
        assert (await refused(a.service.exchange("", "x"))).reason is Reason.EXCHANGE_NOT_FOUND
        await a.delete_queue("p")
        await a.delete_queue("q")
        while await b.keys(EXCHANGES) + await b.keys(BINDINGS):
            await b.keeper.sweep()

    with_nodes(tmp_path, story)


def test_a_bind_wins_or_loses_against_the_end_of_an_auto_delete_exchange(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        for queue in ("p", "q"):
            await a.queue(queue)
        for _ in range(20):
            await a.declare("x", ExchangeArguments(ExchangeKind.FANOUT, auto_delete=True))
            await a.bind("x", "p")
            unbound, bound = await asyncio.gather(
                a.unbind("x", "p"), b.bind("x", "q"), return_exceptions=True
            )
            if bound is True:
                assert (await a.service.exchange("", "x")).name == "x", "it went with a binding"
                assert b.route("x") == ("q",)
                await b.unbind("x", "q")
            else:
                assert isinstance(bound, BrokerError), bound
                assert bound.reason is Reason.EXCHANGE_NOT_FOUND
            assert unbound is True

    with_nodes(tmp_path, story)


def test_delete_if_unused_asks_for_bindings_from_the_exchange(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        await a.declare("x")
        await a.declare("y")
        await a.bind("x", "y", to_exchange=True)
        error = await refused(a.delete("x", if_unused=True))
        assert error.reason is Reason.EXCHANGE_IN_USE
        await a.delete("y", if_unused=True)
        await a.delete("x", if_unused=True)
        assert (await refused(a.delete("x"))).reason is Reason.EXCHANGE_NOT_FOUND

    with_nodes(tmp_path, story)


def test_delete_if_unused_counts_a_binding_that_only_another_node_has_heard_of(
    tmp_path: Path,
) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        await a.declare("x")
        await b.sees(lambda: b.topology.counts()[1])
        b.late.goes_on.clear()
        assert await a.bind("x", "q")
        deleting = asyncio.create_task(refused(b.delete("x", if_unused=True)))
        await asyncio.wait([deleting], timeout=0.2)
        b.late.goes_on.set()
        assert (await deleting).reason is Reason.EXCHANGE_IN_USE

    with_nodes(tmp_path, story)


def test_what_is_predeclared_can_not_be_changed(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        assert not await a.declare("amq.topic", ExchangeArguments(ExchangeKind.TOPIC))
        assert await a.bind("amq.topic", "q", "#")
        assert a.route("amq.topic", "a") == ("q",)
        for call in (
            a.declare("amq.mine"),
            a.delete("amq.topic"),
            a.delete(""),
            a.bind("", "q", "q"),
            a.bind("amq.topic", "", to_exchange=True),
        ):
            assert (await refused(call)).reason is Reason.ACCESS_REFUSED
        error = await refused(a.declare("amq.topic"))
        assert error.reason is Reason.EXCHANGE_EXISTS

    with_nodes(tmp_path, story)


def test_vhosts_keep_names_apart(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        assert await a.service.create_vhost("shop", DEADLINE_S)
        assert not await b.service.create_vhost("shop", DEADLINE_S)
        await a.queue("q", vhost="shop")
        await a.queue("q")
        await a.declare("x", vhost="shop")
        assert await b.bind("x", "q", vhost="shop")
        assert b.route("shop\x1fx") == b.route("shop\x1f", "q") == ("shop\x1fq",)
        assert (await refused(a.service.exchange("", "x"))).reason is Reason.EXCHANGE_NOT_FOUND
        for call in (
            a.service.exchanges("none"),
            a.service.bindings("none"),
            a.declare("x", vhost="none"),
            a.bind("x", "q", vhost="none"),
            a.service.internal_name("none", "q"),
            a.service.delete_vhost("none", DEADLINE_S, force=True),
        ):
            error = await refused(call)
            assert (error.reason, error.metadata["vhost"]) == (Reason.VHOST_NOT_FOUND, "none")

    with_nodes(tmp_path, story)


def test_a_vhost_with_queues_is_deleted_by_force_alone(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.service.create_vhost("shop", DEADLINE_S)
        await a.queue("q", vhost="shop")
        await a.queue("q")
        await a.declare("x", vhost="shop")
        await a.bind("x", "q", vhost="shop")
        error = await refused(a.service.delete_vhost("shop", DEADLINE_S, force=False))
        assert (error.reason, error.metadata["queues"]) == (Reason.VHOST_IN_USE, "1")
        assert await b.service.delete_vhost("shop", DEADLINE_S, force=True) == 1
        assert [each.name for each in b.service.vhosts()] == ["/"]
        assert await b.keys(EXCHANGES) == []
        assert await b.keys("queues/") == ["queues/q"]
        # A new one of this name has nothing of the old one.
        await a.service.create_vhost("shop", DEADLINE_S)
        assert len(await a.service.exchanges("shop")) == 7
        while await a.keys(BINDINGS):
            await a.keeper.sweep()
        error = await refused(a.service.delete_vhost("/", DEADLINE_S, force=True))
        assert error.reason is Reason.ACCESS_REFUSED

    with_nodes(tmp_path, story)


def test_nothing_is_declared_in_a_vhost_that_is_being_deleted(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.service.create_vhost("shop", DEADLINE_S)
        await b.service.check_vhost("shop")
        await a.changes.mark_vhost("shop", deleting=True)
        # b's watch may be behind: then the guard of its commit fails.
        for node in (b, a):
            error = await refused(node.declare("x", vhost="shop"))
            assert error.reason is Reason.VHOST_NOT_FOUND
            with pytest.raises(BrokerError, match="being deleted"):
                node.topology.vhost_guards("shop")
        error = await refused(b.service.create_vhost("shop", DEADLINE_S))
        assert error.reason is Reason.VHOST_IN_USE
        # The delete that did not end is repeated.
        await b.service.delete_vhost("shop", DEADLINE_S, force=False)
        assert await b.service.create_vhost("shop", DEADLINE_S)

    with_nodes(tmp_path, story)


@pytest.mark.logs("quarantined")
def test_a_record_that_can_not_be_read_harms_only_itself(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        await a.declare("x")
        await a.bind("x", "q")
        bad = [exchange_key("bad"), BINDINGS + "00", "topology/vhosts/bad"]
        await a.registry.commit([], [Put(key, b"{") for key in bad])
        await a.sees(lambda: set(bad) == a.topology.unreadable.keys())
        assert (await refused(a.service.exchange("", "bad"))).reason is Reason.QUARANTINED
        assert (await refused(a.declare("bad"))).reason is Reason.QUARANTINED
        assert a.route("x") == ("q",)
        # The last good record counts on.
        await a.registry.commit([], [Put(exchange_key("x"), b"{")])
        await a.sees(lambda: exchange_key("x") in a.topology.unreadable)
        assert a.route("x") == ("q",)
        await a.delete("bad")
        assert exchange_key("bad") not in a.topology.unreadable

    with_nodes(tmp_path, story)


@pytest.mark.logs("quarantined")
def test_messages_for_a_quarantined_queue_are_not_dropped(tmp_path: Path) -> None:
    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        await a.bind("amq.fanout", "q")
        await a.registry.commit([], [Put(queue_key("q"), b"{")])
        await a.sees(lambda: "q" in a.catalogue.unreadable)
        assert a.route("amq.fanout") == a.route("", "q") == ("q",)
        # A node that is started now has never known the queue.
        late = TopologyNode("a", a.registry, {"a": 1})
        following = asyncio.create_task(late.follow())
        await late.catalogue.loaded.wait()
        await late.topology.loaded.wait()
        assert late.route("amq.fanout") == late.route("", "q") == ("q",)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await a.keeper.sweep()
        assert len(await a.keys(BINDINGS)) == 1

    with_nodes(tmp_path, story)


def test_there_is_a_limit_of_exchanges_and_bindings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "EXCHANGES_MAX", 1)
    monkeypatch.setattr(changing, "BINDINGS_MAX", 1)
    monkeypatch.setattr(changing, "VHOSTS_MAX", 1)

    async def story(a: TopologyNode, b: TopologyNode) -> None:
        await a.queue("q")
        await a.declare("x")
        await a.bind("x", "q")
        for call in (
            a.declare("y"),
            a.bind("x", "q", "more"),
            a.service.create_vhost("v", DEADLINE_S),
        ):
            assert (await refused(call)).reason is Reason.LIMIT_EXCEEDED

    with_nodes(tmp_path, story)


@pytest.mark.parametrize(
    ("vhost", "source", "to", "more", "field"),
    [
        ("", "x" * 256, "q", {}, "source"),
        ("", "a\x1fb", "q", {}, "source"),
        ("", "x", "", {}, "destination"),
        ("", "x", "q\n", {}, "destination"),
        ("", "x", "q", {"key": "k" * 256}, "routing_key"),
        ("", "x", "q", {"key": "\x1f"}, "routing_key"),
        ("", "x", "q", {"arguments": {"": "v"}}, "arguments"),
        ("", "x", "q", {"arguments": {"h": "v" * 1025}}, "arguments"),
        ("", "x", "q", {"arguments": {str(n): "v" for n in range(65)}}, "arguments"),
        ("", "h", "q", {"arguments": {"x-match": "some"}}, "x-match"),
        ("", "h", "q", {"arguments": {"x-match": None}}, "x-match"),
        ("", "h", "q", {"arguments": {"x-match": 1}}, "x-match"),
        ("", "x", "q", {"arguments": {"h": [[[""] * 600] * 2]}}, "arguments"),
        ("v" * 81, "x", "q", {}, "vhost"),
        ("a\x1fb", "x", "q", {}, "vhost"),
    ],
)
def test_a_bad_binding_is_refused_by_field(
    tmp_path: Path, vhost: str, source: str, to: str, more: dict[str, Any], field: str
) -> None:
    async def story(a: TopologyNode) -> None:
        await a.queue("q")
        await a.declare("x")
        await a.declare("h", ExchangeArguments(ExchangeKind.HEADERS))
        arguments = fields_of(more.get("arguments", {}))
        bound = a.bind(source, to, more.get("key", ""), vhost=vhost, arguments=arguments)
        error = await refused(bound)
        assert (error.reason, error.metadata["field"]) == (Reason.BAD_REQUEST, field)

    with_nodes(tmp_path, story, "a")
