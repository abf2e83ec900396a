"""The routed sessions of one node: what they share, and their end.

One budget of bytes for all of them, streams to queues within a bound, a sweep that ends ways with
nothing to do, and the way from a queue to the node of its master. Connections to other nodes are
those that the node has anyway, one for each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_base.notifier import Notifier
from ringmq_base.ranges import Range, RangeSet
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.locating import Locator
from ringmq_node.broker.publishing import Publishing, check_not_letters
from ringmq_node.broker.routing.batch import RoutedBatch
from ringmq_node.broker.routing.core import Answer, AnswerConfirmed, AnswerRefused, AnswerReturned
from ringmq_node.broker.routing.finding import Routes, UnknownNames
from ringmq_node.broker.routing.session import RoutedSession, SessionClient
from ringmq_node.broker.routing.unknown import UnknownRecords
from ringmq_node.broker.routing.ways import DOWN_AFTER_S, RemoteStreams, Way
from ringmq_node.model.fields import Headers
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.foreign import PropertiesCodec
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.queue.block import Block
from ringmq_node.replica.sessions import PublisherSession
from ringmq_node.resources.budget import PublishBudget

# Streams of one node to masters, here and elsewhere. More ways wait for one.
STREAMS_MAX = 10_000
# A way that had nothing to do for so long ends its stream; an internal session, too.
IDLE_S = 20.0
SWEEP_S = 5.0
# How long a way may take to tell its queue that its producer has ended: a failover takes less.
LAST_WORD_S = DOWN_AFTER_S
OWN_ID_BYTES = 16
# A session may have at most so many times as many bytes as the node has left for all: what one of
# them holds for a queue that takes nothing leaves room for the others (compare `resources.budget`).
SHARE = 4

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class OpenHere(Protocol):
    """The broker's `open_publisher`."""

    def __call__(
        self, queue: str, session: PublisherSession, *, producer_id: bytes
    ) -> Awaitable[Publishing]: ...


class ExchangeRecords(Protocol):
    """The broker's `topology`."""

    async def look_up_exchanges(self, names: Sequence[str]) -> None: ...


class Routing:
    """See the module; an `InternalPublisher`. Used on the event loop's thread."""

    def __init__(
        self,
        routes: Routes,
        remotes: RemoteStreams,
        spawn: Spawn,
    ) -> None:
        self.routes = routes
        self.remotes = remotes
        # Of properties that aren't ours, by format: a door adds its own when it is built. For the
        # letters of queues that are mastered here.
        self.codecs: dict[str, PropertiesCodec] = {}
        self.streams = asyncio.Semaphore(STREAMS_MAX)
        self._spawn = spawn
        self._held_bytes = 0
        # For queues that are down; not among those above, so that they don't stop the others.
        self._stuck_bytes = 0
        self._freed = Notifier()
        self._sessions: dict[RoutedSession, set[asyncio.Task[None]]] = {}
        self._way_tasks: dict[Way, asyncio.Task[None]] = {}
        self._internal: dict[bytes, _InternalClient] = {}
        self._id_prefix = os.urandom(8)
        # With room between two: a part of a large batch has the id of its first message, and its
        # place in the batch (`storage.queue.log`).
        self._ids = count(0, 1 << 24)
        self._is_stopped = False

    def begin(
        self,
        locator: Locator,
        cluster: Cluster,
        gate: NodeGate,
        budget: PublishBudget,
        exchanges: ExchangeRecords,
        settings: BrokerSettings,
        *,
        open_here: OpenHere,
    ) -> None:
        """By the broker, whose part it is, before anything else."""
        self._locator = locator
        self._cluster = cluster
        self._gate = gate
        self._budget = budget
        self.settings = settings
        budget.on_alarms = self._freed.notify
        self._open_here = open_here
        self._unknown_queues = UnknownRecords(locator.look_up)
        self._unknown_exchanges = UnknownRecords(exchanges.look_up_exchanges)

    # --- sessions ---

    def open(
        self,
        vhost: str,
        client: SessionClient,
        *,
        producer_id: bytes,
        is_internal: bool = False,
    ) -> RoutedSession:
        """`vhost` has to be there. Raises `BrokerError` if the producer id can't be used; an empty
        one: the session takes one that lives as long as itself, so its client can't repeat anything
        in another session. `is_internal`: it is the node's own, and waits for queues that are
        down."""
        self._gate.check()
        if len(producer_id) > PRODUCER_ID_BYTES_MAX:
            raise bad_request(
                f"a producer id has at most {PRODUCER_ID_BYTES_MAX} bytes", field="producer_id"
            )
        if not is_internal:
            check_not_letters(producer_id)
        session = RoutedSession(
            self,
            client,
            vhost=vhost,
            producer_id=producer_id or os.urandom(OWN_ID_BYTES),
            is_own_id=not producer_id,
            is_internal=is_internal,
        )
        self._sessions[session] = set()
        return session

    def closed(self, session: RoutedSession, ending: Collection[Way]) -> None:
        last = {self._way_tasks[way] for way in ending if way in self._way_tasks}
        for task in self._sessions.pop(session, set()) - last:
            task.cancel()
        for task in last:
            asyncio.get_running_loop().call_later(LAST_WORD_S, task.cancel)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def stop(self, reason: Reason) -> None:
        """Every session hears that it has moved; no other is opened."""
        self._is_stopped = True
        for session in [*self._sessions]:
            session.end(reason)

    async def run(self) -> None:
        """Until cancelled, or the node's store fails."""
        loop = asyncio.get_running_loop()
        failed = asyncio.create_task(self._gate.wait_failure(), name="routing's end")
        try:
            while not (await asyncio.wait([failed], timeout=SWEEP_S))[0]:
                self._sweep(loop.time() - IDLE_S)
        finally:
            failed.cancel()
        # This node takes no calls any more, and its clients go on elsewhere.
        self.stop(self._gate.failure_reason)

    def _sweep(self, before: float) -> None:
        # Consumers may have taken what kept letters from passing an alarm: nothing else tells.
        self._budget.freed()
        for session in [*self._sessions]:
            session.drop_idle_ways(before)
        for producer_id, client in [*self._internal.items()]:
            if client.is_idle and client.used_at < before:
                self.close(producer_id)

    # --- what sessions share (`SessionHost`) ---

    def begin_way(self, queue: str, session: RoutedSession) -> Way:
        way = Way(queue, session.producer_id, self, session)
        way.used_at = asyncio.get_running_loop().time()
        task = self._way_tasks[way] = self._begin(session, way.run(), f"way to {queue}")
        task.add_done_callback(lambda _: self._way_tasks.pop(way))
        return way

    def begin_task(
        self, session: RoutedSession, work: Coroutine[Any, Any, None], name: str
    ) -> None:
        self._begin(session, work, name)

    def _begin(
        self, session: RoutedSession, work: Coroutine[Any, Any, None], name: str
    ) -> asyncio.Task[None]:
        task = self._spawn(work, name)
        tasks = self._sessions[session]
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def may_be_exchange(self, exchange: str) -> bool:
        return self._unknown_exchanges.may_be_new(exchange)

    def may_be_queue(self, queue: str) -> bool:
        return self._unknown_queues.may_be_new(queue)

    async def look_up(self, names: Collection[UnknownNames]) -> None:
        exchanges = {exchange for each in names for exchange in each.exchanges}
        queues = {queue for each in names for queue in each.queues}
        if exchanges:
            await self._unknown_exchanges.look_up(exchanges)
        if queues:
            await self._unknown_queues.look_up(queues)

    def admits(self, session_bytes: int, *, stuck: bool = False) -> bool:
        left = self._budget.limit_bytes - (self._stuck_bytes if stuck else self._held_bytes)
        return left > 0 and session_bytes <= SHARE * left

    def held(self, more_bytes: int, more_stuck: int) -> None:
        self._held_bytes += more_bytes
        self._stuck_bytes += more_stuck
        if more_bytes < 0:
            self._freed.notify()

    @property
    def alarms(self) -> frozenset[BlockReason]:
        return self._budget.alarms

    async def wait_freed(self) -> None:
        await self._freed.wait()

    def new_message_id(self) -> bytes:
        return next(self._ids).to_bytes(8, "little") + self._id_prefix

    # --- masters (`WayHost`) ---

    async def address_of(self, queue: str, failed: frozenset[str]) -> str:
        address = await self._locator.route(queue, forwarded=False)
        if address not in failed:
            return address
        # It may be reached from elsewhere. If no other node is left, once more directly.
        others = (info.address for info in self._cluster.nodes({}))
        mine = self._cluster.address
        relays = (each for each in others if each and each != mine and each not in failed)
        return next(relays, address)

    def master_of(self, queue: str) -> tuple[str, int] | None:
        try:
            location = self._locator.locate(queue)
        except BrokerError:
            return None
        return location.node, location.epoch

    def newer_master(self, queue: str, node: str, epoch: int) -> str:
        try:
            location = self._locator.locate(queue)
        except BrokerError:
            return ""
        return location.address if location.epoch > epoch and location.node != node else ""

    async def open_here(
        self, queue: str, session: PublisherSession, producer_id: bytes
    ) -> Publishing:
        return await self._open_here(queue, session, producer_id=producer_id)

    # --- for the node itself (`InternalPublisher`) ---

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_keys: Sequence[str],
        block: Block,
        producer_id: bytes,
        first_sequence: int,
        *,
        transient: bool = False,
        priority: int = 0,
        headers: Headers | None = None,
        except_queues: frozenset[str] = frozenset(),
    ) -> bool:
        """As `InternalPublisher` says."""
        client = self._internal.get(producer_id)
        if client is None:
            if self._is_stopped:
                raise BrokerError(Reason.DRAINING, "this node stops")
            client = _InternalClient(partial(self._forget, producer_id))
            # What it publishes has to arrive, however long that takes.
            client.session = self.open(vhost, client, producer_id=producer_id, is_internal=True)
            self._internal[producer_id] = client
        await client.wait_room()
        client.used_at = asyncio.get_running_loop().time()
        answer = client.expect(first_sequence, first_sequence + block.count - 1)
        batch = RoutedBatch(
            first_sequence=first_sequence,
            bodies=block.bodies(),
            properties=block.properties(),
            headers=lambda: [headers] if headers else [],
            exchange=exchange,
            routing_keys=tuple(routing_keys),
            mandatory=True,
            transient=transient,
            priority=priority,
            except_queues=except_queues,
        )
        try:
            client.session.publish(batch)
            return await answer
        finally:
            client.drop(first_sequence)

    def close(self, producer_id: bytes) -> None:
        client = self._internal.pop(producer_id, None)
        if client is not None:
            client.session.end(Reason.NOT_MASTER)

    def _forget(self, producer_id: bytes) -> None:
        self._internal.pop(producer_id, None)


class _Expected:
    """Messages that somebody waits for."""

    def __init__(self, first: int, last: int) -> None:
        self.left = RangeSet([(first, last)])
        self.is_routed = True
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class _InternalClient:
    """A session's end inside the node."""

    session: RoutedSession

    def __init__(self, on_moved: Callable[[], None]) -> None:
        self.used_at = 0.0
        self._expected: dict[int, _Expected] = {}
        # Messages that the session has no room for yet.
        self._waiting = 0
        self._on_moved = on_moved

    @property
    def is_idle(self) -> bool:
        return not self._expected and not self._waiting

    async def wait_room(self) -> None:
        """Raises `BrokerError` if the session has ended meanwhile."""
        self._waiting += 1
        try:
            await self.session.wait_room()
        finally:
            self._waiting -= 1
        if self.session.is_closed:
            raise BrokerError(Reason.NOT_MASTER, "the publisher inside the node was ended")

    def expect(self, first: int, last: int) -> asyncio.Future[bool]:
        if first in self._expected:
            raise bad_request(f"sequence {first} is on its way already", field="first_sequence")
        expected = self._expected[first] = _Expected(first, last)
        return expected.answer

    def drop(self, first: int) -> None:
        self._expected.pop(first, None)

    def answered(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            match answer:
                case AnswerConfirmed(sequences):
                    for expected in [*self._expected.values()]:
                        expected.left.subtract(_overlap(expected.left, sequences))
                        if not expected.left and not expected.answer.done():
                            expected.answer.set_result(expected.is_routed)
                case AnswerReturned(sequences):
                    for expected in self._expected.values():
                        if _overlap(expected.left, sequences):
                            expected.is_routed = False
                case AnswerRefused((first, last), error):
                    for expected in self._expected.values():
                        if expected.left.count_in(first, last) and not expected.answer.done():
                            expected.answer.set_exception(error)

    def held(self, *, is_held: bool) -> None:
        """Who publishes inside waits for its answers, and is told no reasons."""

    def moved(self, reason: Reason) -> None:
        self._on_moved()
        error = BrokerError(reason, "the publisher inside the node was ended: what is unknown")
        for expected in self._expected.values():
            if not expected.answer.done():
                expected.answer.set_exception(error)


def _overlap(left: RangeSet, sequences: tuple[Range, ...]) -> list[Range]:
    return [part for first, last in sequences for part in left.intersection(first, last)]
