"""The broker's API without any door: every rule holds for a caller that is in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import lone_node, replica_of

from ringmq_base.ranges import Range
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.locating import NOWHERE
from ringmq_node.broker.peers import Acceptance, DeleteConditions
from ringmq_node.model.info import NodeCondition, QueueCondition
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode
from ringmq_node.model.settings import BATCH_MESSAGES_MAX, PREFETCH_MESSAGES_MAX
from ringmq_node.node import Node
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run

CALLER = Caller(deadline_s=5.0)


class Session:
    """A door's end of a stream, publishing or consuming."""

    def __init__(self) -> None:
        self.sequences: list[Range] = []
        self.bodies: list[bytes] = []
        self.safe: list[Range] = []
        self.reasons: list[Reason] = []
        self._changed = asyncio.Event()

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self.sequences += sequences
        self._changed.set()

    def delivered(self, runs: Sequence[Run]) -> None:
        self.bodies += [body for run in runs for body in run.block.bodies()]
        self._changed.set()

    def settled(self, positions: Sequence[Range]) -> None:
        self.safe += positions
        self._changed.set()

    def moved(self, reason: Reason) -> None:
        self.reasons.append(reason)
        self._changed.set()

    def active_changed(self, *, active: bool) -> None:
        pass

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        pass

    def ended(self, reason: Reason) -> None:
        self.moved(reason)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def with_broker(folder: Path, work: Callable[[Broker, Node], Awaitable[None]]) -> None:
    """The broker of a node with an empty queue q; nothing connects to the node."""

    async def main() -> None:
        node = await lone_node(folder)
        async with asyncio.timeout(20):
            await node.start()
            try:
                declared = await node.broker.declare("q", QueueArguments(), CALLER)
                assert declared.created
                assert declared.info.condition is QueueCondition.RUNNING
                await work(node.broker, node)
            finally:
                await node.stop()

    run(main())


def refusal(work: Callable[[], object]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        work()
    return caught.value


async def reason_of(work: Awaitable[object]) -> Reason:
    with pytest.raises(BrokerError) as caught:
        await work
    return caught.value.reason


def test_a_message_is_published_confirmed_delivered_and_settled(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        assert await broker.route("q", CALLER) == ""
        session = Session()
        publishing = await broker.open_publisher("q", session, producer_id=b"p")
        assert publishing.last_sequence == 0
        await publishing.wait_room(6)
        publishing.publish(1, [b"one", b"two"], [], transient=False)
        await session.until(lambda: session.sequences == [(1, 2)])

        consuming = await broker.consuming.open_here("q", session)
        assert session.bodies == []
        consuming.begin()
        await session.until(lambda: session.bodies == [b"one", b"two"])
        consuming.settle(acked=[(0, 0)], requeued=[(1, 1)])
        await session.until(lambda: session.safe == [(0, 0)] and len(session.bodies) == 3)
        assert session.bodies[2] == b"two"
        consuming.close()
        publishing.close()
        assert (await broker.queue_info("q", CALLER)).messages_ready == 1
        assert (await broker.open_publisher("q", session, producer_id=b"p")).last_sequence == 2

    with_broker(tmp_path, work)


def test_limits_hold_without_a_door(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        session = Session()
        publishing = await broker.open_publisher("q", session)
        settings = broker.settings
        large = bytes(settings.properties_bytes_max + 1)
        cases: list[tuple[int, list[bytes], list[bytes], Reason, str]] = [
            (1, [], [], Reason.BAD_REQUEST, "bodies"),
            (1, [b""] * (BATCH_MESSAGES_MAX + 1), [], Reason.BAD_REQUEST, "bodies"),
            (0, [b"x"], [], Reason.BAD_REQUEST, "first_sequence"),
            (1, [b"x"] * 3, [b"p"] * 2, Reason.BAD_REQUEST, "properties"),
            (1, [b"x"], [large], Reason.MESSAGE_TOO_LARGE, "properties"),
        ]
        for first, bodies, properties, reason, field in cases:
            refused = refusal(
                partial(publishing.publish, first, bodies, properties, transient=False)
            )
            assert (refused.reason, refused.metadata["field"]) == (reason, field)
        assert await reason_of(broker.open_publisher("q", session, producer_id=bytes(65))) is (
            Reason.BAD_REQUEST
        )
        assert await reason_of(
            broker.consuming.open_here("q", session, ConsumerTerms(PREFETCH_MESSAGES_MAX + 1))
        ) is (Reason.LIMIT_EXCEEDED)
        consuming = await broker.consuming.open_here("q", session)
        assert refusal(lambda: consuming.settle(acked=[(5, 4)], requeued=[])).reason is (
            Reason.BAD_REQUEST
        )
        assert refusal(lambda: consuming.settle(acked=[(0, 0)], requeued=[])).reason is (
            Reason.UNKNOWN_DELIVERY
        )
        too_much = PREFETCH_MESSAGES_MAX + 1
        assert refusal(lambda: consuming.change_prefetch(too_much, 0)).reason is (
            Reason.LIMIT_EXCEEDED
        )
        for terms, reason in (
            (ConsumerTerms(identity=bytes(65)), Reason.BAD_REQUEST),
            (ConsumerTerms(exclusive=True), Reason.EXCLUSIVE_CONSUMER),
        ):
            assert await reason_of(broker.consuming.open_here("q", session, terms)) is reason
        automatic = await broker.consuming.open_here("q", session, auto_ack=True)
        assert refusal(lambda: automatic.settle(acked=[(0, 0)])).reason is Reason.BAD_REQUEST
        assert (await broker.queue_info("q", CALLER)).next_position == 0

    with_broker(tmp_path, work)


def test_only_who_pulls_may_pull_and_not_once_it_is_cancelled(tmp_path: Path) -> None:
    async def work(broker: Broker, _: Node) -> None:
        consumer = await broker.consuming.open_here("q", Session())
        assert await reason_of(consumer.pull(1, 0)) is Reason.BAD_REQUEST
        puller = await broker.consuming.open_here("q", Session(), ConsumerTerms(pulls=True))
        puller.begin()
        assert (await puller.pull(0, 0)).messages_ready == 0
        puller.cancel()
        assert await reason_of(puller.pull(1, 0)) is Reason.BAD_REQUEST
        # Its stream was closed meanwhile: it gets nothing, and nothing is lost with it.
        late = await broker.consuming.open_here("q", Session(), ConsumerTerms(pulls=True))
        late.close()
        assert list((await late.pull(1, 0)).runs) == []

    with_broker(tmp_path, work)


def test_a_queue_that_is_being_deleted_takes_nothing_without_a_door(tmp_path: Path) -> None:
    """Decision 0016 binds callers of the broker, not only the gRPC door's clients."""

    async def work(broker: Broker, node: Node) -> None:
        session = Session()
        publishing = await broker.open_publisher("q", session)
        holds = replica_of(node).deletion_holds
        hold = holds.begin()
        refused = refusal(lambda: publishing.publish(1, [b"x"], [], transient=False))
        assert refused.reason is Reason.DRAINING
        assert refused.retryable
        assert await reason_of(broker.consuming.open_here("q", session)) is Reason.DRAINING
        holds.end(hold)
        publishing.publish(1, [b"x"], [], transient=False)
        await session.until(lambda: session.sequences == [(1, 1)])

    with_broker(tmp_path, work)


def test_sessions_hear_that_the_queue_was_deleted(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        session = Session()
        publishing = await broker.open_publisher("q", session)
        publishing.publish(1, [b"x"], [], transient=False)
        await session.until(lambda: session.sequences == [(1, 1)])
        assert (
            await reason_of(broker.delete("q", DeleteConditions(if_empty=True), CALLER))
            is Reason.QUEUE_NOT_EMPTY
        )
        assert await broker.delete("q", DeleteConditions(), CALLER) == 1
        await session.until(lambda: session.reasons == [Reason.QUEUE_NOT_FOUND])
        assert publishing.successor() == NOWHERE
        assert refusal(lambda: publishing.publish(2, [b"y"], [], transient=False)).reason in (
            Reason.NOT_MASTER,
            Reason.NO_MASTER,
        )
        publishing.close()

    with_broker(tmp_path, work)


def test_calls_without_a_stream(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        session = Session()
        publishing = await broker.open_publisher("q", session)
        publishing.publish(1, [b"1", b"2", b"3"], [], transient=False)
        await session.until(lambda: session.sequences == [(1, 3)])
        for remove in (False, True):
            got = await broker.get("q", CALLER, messages_max=2, bytes_max=0, remove=remove)
            assert [body for run in got.runs for body in run.block.bodies()] == [b"1", b"2"]
        assert got.messages_ready == 1
        assert await broker.purge("q", CALLER) == 1
        assert await broker.set_mode("q", QueueMode.LAZY, CALLER) is QueueMode.DEFAULT
        assert (await broker.locate("q")).node == "a"
        assert broker.replica_info("q").mode is QueueMode.LAZY
        assert [
            info.queue for info in (await broker.queues("", after="", queues_max=0)).queues
        ] == ["q"]
        status = await broker.status(with_resources=True)
        (only,) = status.nodes
        assert (only.node, only.condition, only.masters) == ("a", NodeCondition.RUNNING, 1)
        assert only.resources is not None
        assert await reason_of(broker.promote("q", "b", CALLER)) is Reason.NOT_A_MEMBER
        for operator in ("x" * 129, "a\nb"):
            acceptance = Acceptance(True, operator)
            with pytest.raises(BrokerError, match="an operator's name"):
                await broker.promote("q", "b", CALLER, acceptance)

    with_broker(tmp_path, work)


def test_a_node_that_drains_takes_no_calls(tmp_path: Path) -> None:
    async def work(broker: Broker, node: Node) -> None:
        node.gate.draining = True
        for call in (
            broker.route("q", CALLER),
            broker.locate("q"),
            broker.purge("q", CALLER),
            broker.queue_info("q", CALLER),
            broker.declare("q2", QueueArguments(), CALLER),
        ):
            assert await reason_of(call) is Reason.DRAINING

    with_broker(tmp_path, work)


@pytest.mark.parametrize("is_up_again", [False, True])
def test_a_master_that_is_gone_is_told_from_its_nodes_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_up_again: bool
) -> None:
    async def work(broker: Broker, node: Node) -> None:
        me = node.me
        gone = type(me)(me.node if is_up_again else "z", me.incarnation + 1)
        view = broker._locator.view_of("q")
        old = replace(view, members=(replace(view.members[0], id=gone),))
        monkeypatch.setattr(type(broker._locator), "view_of", lambda self, queue: old)
        with pytest.raises(BrokerError) as caught:
            broker._locator.master_of("q")
        assert caught.value.reason is Reason.NO_MASTER
        assert str(caught.value) == (
            f"queue 'q': its last master {gone} is gone, and no other has begun; "
            f"node {me.node} is up again, as {me}"
            if is_up_again
            else "queue 'q': its master z#" + f"{gone.incarnation} is down"
        )

    with_broker(tmp_path, work)


def test_a_forwarded_call_is_not_forwarded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, node: Node) -> None:
        other = type(node.me)("b", 1)
        monkeypatch.setattr(type(broker._locator), "master_of", lambda self, queue: other)
        monkeypatch.setattr(node.cluster, "address_of", lambda member: "there:1")
        assert await broker.route("q", CALLER) == "there:1"
        forwarded = Caller(deadline_s=5.0, forwarded=True)
        with pytest.raises(BrokerError) as caught:
            await broker.route("q", forwarded)
        assert caught.value.reason is Reason.NOT_MASTER
        assert caught.value.metadata["master"] == "there:1"

    with_broker(tmp_path, work)
