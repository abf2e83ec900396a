"""A replica on a stage: its store is real; its ring, its sessions and other nodes are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import pytest
from node.tests.storage.workload import run_store
from waiting import until

from ringmq_base.limits import MIB
from ringmq_base.ranges import Range
from ringmq_gm import (
    Mark,
    Member,
    MemberId,
    Refusal,
    Ring,
    RingClosedError,
    RingFailedError,
    Role,
    View,
)
from ringmq_node.model.foreign import NO_CODECS
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueRecord
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.ops import Op
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.fetching import Fetched
from ringmq_node.replica.letter_desk import LetterDesk
from ringmq_node.replica.replica import Replica
from ringmq_node.replica.set_asides import SetAsides
from ringmq_node.replica.turns import CatchUpTurns, TakeOverTurns
from ringmq_node.storage import QueueStore, Store, StoreError

T = TypeVar("T")
ME, NEXT, LAST = (MemberId(name, 1) for name in ("a", "b", "c"))


class PlayedRing:
    """Keeps the promises of `ringmq_gm.Ring` to its application, and plays the other members.

    Mirrors hold and persist an op as soon as this member has persisted it, unless `hold_marks`.
    """

    def __init__(self, replica: Replica, members: int) -> None:
        self.me = ME
        self.replica = replica
        self.members = tuple(Member(id_, True) for id_ in (ME, NEXT, LAST)[:members])
        self.view: View | None = None
        self.role = Role.OUTSIDE
        self.has_quorum = True
        self.loss_is_open = False
        self.refuses: Refusal | None = None
        self.closed = False
        self.hold_marks = False
        self.cached_bytes = 0
        self.log: list[tuple[int, int, bytes]] = []
        self.persisted_number = 0
        self.confirmed = (0, 0)
        self.told_safe = 0
        self.caught_up_at: int | None = None
        self.was_partial = False
        self.writable = asyncio.Event()
        self.writable.set()

    def enter(self, role: Role, epoch: int) -> None:
        members = self.members
        if role is not Role.MASTER:
            members = (*members[1:], members[0])
        self.view = View(epoch, members, min(2, len(members)))
        self.role = role
        self.replica.role_changed(role, self.view)
        self.advance()

    @property
    def last_number(self) -> int:
        return self.replica.store.state.last_number

    def refusal(self) -> Refusal | None:
        return Refusal.NOT_MASTER if self.role is not Role.MASTER else self.refuses

    @property
    def safe_number(self) -> int:
        """The master that this member has followed has told it so."""
        return max(self.told_safe, self.confirmed[1])

    def marks(self) -> dict[MemberId, Mark]:
        mark = Mark(self.last_number, self.persisted_number, True)
        return {member.id: mark for member in self.members}

    def multicast(self, payload: bytes, *, urgent: bool = False) -> int:
        assert self.refusal() is None
        assert self.view is not None
        number = self.last_number + 1
        self.log.append((number, self.view.epoch, payload))
        self.replica.deliver(number, self.view.epoch, payload)
        if len(self.members) == 1:
            self.advance()
        return number

    def persisted(self, number: int) -> None:
        self.persisted_number = number
        self.advance()

    def advance(self) -> None:
        if self.role is not Role.MASTER or not self.has_quorum or self.hold_marks:
            return
        marks = (self.last_number, self.persisted_number)
        if marks != self.confirmed:
            self.confirmed = marks
            self.replica.watermarks(*marks)

    def caught_up(self, persisted: int) -> None:
        self.caught_up_at = persisted
        self.was_partial = self.replica.store.partial

    async def wait_writable(self) -> None:
        if self.closed:
            raise RingClosedError("closed")
        await self.writable.wait()

    def fail(self, error: Exception) -> None:
        self.replica.ring_failed(RingFailedError(str(error)))

    def sent(self) -> list[Op]:
        return [ops.decode(payload) for _, _, payload in self.log]


class SilentTargets:
    """Dead letters are sent, and nobody confirms them. `test_outbox` has targets that answer."""

    codecs = NO_CODECS

    async def publish(self, *_: object, **__: object) -> bool:
        never: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await never

    def close(self, producer_id: bytes) -> None:
        """Nobody waits for its answers."""


class PlayedHost:
    """A node, as far as a replica needs one; it fetches from `source`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.catch_up_turns = CatchUpTurns()
        self.take_over_turns = TakeOverTurns()
        self.time_step_ms = 60_000
        # So early that no op says the time; a test that wants one makes it later.
        self.time_ms = 0
        self.set_asides = SetAsides(
            store.disk, store.errands, store.directory, node="a", keep_s=100.0, bytes_max=MIB
        )
        self.letter_desk = LetterDesk(SilentTargets(), 1000, now_ms=self.now_ms)
        self.source: ReplicatedState | None = None
        self.source_bodies: dict[int, bytes] = {}
        self.failures: list[StoreError] = []
        self.failed: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.fetched_from: list[MemberId] = []
        self.source_waits = asyncio.Event()
        self.source_waits.set()

    @property
    def sources(self) -> Self:
        """It plays the other nodes as well."""
        return self

    def now_ms(self) -> int:
        return self.time_ms

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    def store_failed(self, error: StoreError) -> None:
        self.failures.append(error)

    def replica_failed(self, replica: Replica, reason: str) -> None:
        self.failed.append(reason)

    def mark_whole(self, store: QueueStore) -> None:
        self.store.mark_whole(store)

    def view_changed(self, replica: Replica) -> None:
        return

    def queue_unused(self, replica: Replica) -> None:
        raise AssertionError("the queue has no such rule")

    async def sync_store(self) -> None:
        await self.store.sync()

    async def fetch_state(
        self, queue_id: str, source: MemberId, number_min: int
    ) -> ReplicatedState:
        self.fetched_from.append(source)
        await self.source_waits.wait()
        assert self.source is not None
        return self.source

    async def fetch_messages(
        self, queue_id: str, source: MemberId, ranges: Sequence[Range], *, bytes_max: int = 1 << 20
    ) -> AsyncIterator[Fetched]:
        for first, last in ranges:
            for position in range(first, last + 1):
                yield position, Block.of([self.source_bodies[position]]), False


class Publisher:
    def __init__(self) -> None:
        self.sequences: list[Range] = []
        self.reasons: list[Reason] = []

    def confirmed(self, sequences: Sequence[Range]) -> None:
        self.sequences += sequences

    def moved(self, reason: Reason) -> None:
        self.reasons.append(reason)


class Consumer:
    def __init__(self) -> None:
        self.got: list[tuple[int, bytes, bool]] = []
        self.active: list[bool] = []
        self.safe: list[Range] = []
        self.reasons: list[Reason] = []

    def delivered(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.got += [
                (position, body, run.redelivered)
                for position, body in enumerate(run.block.bodies(), run.first_position)
            ]

    def settled(self, positions: Sequence[Range]) -> None:
        self.safe += positions

    def moved(self, reason: Reason) -> None:
        self.reasons.append(reason)

    def active_changed(self, *, active: bool) -> None:
        self.active.append(active)

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        pass

    def ended(self, reason: Reason) -> None:
        self.reasons.append(reason)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.got]


class Scene:
    def __init__(self, store: Store, members: int) -> None:
        self.store = store
        self.host = self.make_host()
        queue = store.open_queue("q")
        store.on_durable = lambda _: self.replica.durable()
        self.replica = Replica(QueueRecord("q", "id", ("a", "b", "c"), 2), queue, self.host)
        self.ring = PlayedRing(self.replica, members)
        self.replica.attach(cast(Ring, self.ring))
        self.publisher = Publisher()
        self.consumer = Consumer()

    def make_host(self) -> PlayedHost:
        return PlayedHost(self.store)

    async def become_master(self, epoch: int = 1) -> None:
        self.ring.enter(Role.MASTER, epoch)
        async with asyncio.timeout(30):
            await self.replica.wait_serving()

    def publish(
        self,
        first: int,
        *names: bytes,
        producer: bytes = b"p",
        properties: Sequence[bytes] = (),
        transient: bool = False,
        to: int | None = None,
    ) -> int:
        """On the session `to`; without it on a new one, which no answer is waited for."""
        number = to or at_once(self.replica.serving().open_publisher(self.publisher, b""))[0]
        self.replica.serving().publish(
            number, producer, first, names, properties, transient=transient
        )
        return number

    def consume(self, session: Consumer | None = None, messages: int = 1000) -> int:
        number, begin = self.replica.serving().open_consumer(
            session or self.consumer, ConsumerTerms(messages, 1 << 20)
        )
        begin()
        return number

    def ack(self, number: int, *ranges: Range) -> None:
        self.replica.serving().subscribers.settle(number, acked=ranges)

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, within_s=5, poll_s=0.001)

    async def confirmed(self, *sequences: Range) -> None:
        await self.until(lambda: self.publisher.sequences == [*sequences])

    async def quiet(self) -> None:
        await self.store.sync()
        for _ in range(5):
            await asyncio.sleep(0)


def scenario(tmp_path: Path, play: Callable[[Scene], Awaitable[None]], members: int = 3) -> None:
    store = Store.open(tmp_path / "data", cluster_id="c", node="a")

    async def work() -> None:
        scene = Scene(store, members)
        await play(scene)
        for task in scene.host.tasks:
            task.cancel()
        for result in await asyncio.gather(*scene.host.tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        if scene.replica.mastership is not None and store.failure is None:
            scene.replica.mastership.queue.check()

    run_store(store, work, timeout_s=20)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("it waits")


def refused(act: Callable[[], object], reason: Reason) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        act()
    assert caught.value.reason == reason, caught.value
    return caught.value
