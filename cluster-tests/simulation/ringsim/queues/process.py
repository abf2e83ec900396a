"""One life of a node: the shipped `Ring` and `Replica`, with the node around them played.

Whatever the process does goes through `run`: it is put off while the process stands still, done
with this life's loop as the running one, and dropped once the process is dead. A crash in the
middle of a call unwinds it by `ProcessDiedError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ringmq_gm import MemberId, Ring, RingFailedError, Role, View
from ringmq_gm.core.events import Event, PromotionAsked, Propose, Tick, Watermarks
from ringmq_gm.core.frames import Frame
from ringmq_gm.core.member import RingMember
from ringmq_gm.errors import LossRefusedError, PromotionError, RingClosedError
from ringmq_node.model.reasons import Reason
from ringmq_node.model.records import QueueRecord
from ringmq_node.replica.fetching import Sources
from ringmq_node.replica.letter_desk import LetterDesk, LetterPublisher
from ringmq_node.replica.replica import Replica
from ringmq_node.replica.set_asides import SetAsides
from ringmq_node.replica.tails import Tail
from ringmq_node.replica.turns import CatchUpTurns, TakeOverTurns
from ringmq_node.storage import QueueStore, StoreError
from ringsim.queues.loop import VirtualLoop
from ringsim.queues.sources import VirtualSources
from ringsim.queues.store import QueueDisk, VirtualStore

if TYPE_CHECKING:
    from ringsim.queues.world import QueueMachine, QueueWorld

# How exactly replicas know when a producer has published last.
TIME_STEP_MS = 300


class ProcessDiedError(BaseException):
    """The process has died in the middle of this call."""


class Process:
    """Made when a machine starts; `end` when it dies."""

    def __init__(self, world: QueueWorld, machine: QueueMachine, member: RingMember) -> None:
        self.world = world
        self.machine = machine
        self.me: MemberId = machine.me
        self.loop = VirtualLoop(world.clock, self.run)
        self.failure: BaseException | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._put_off: list[Callable[[], object]] = []
        self._is_writing = False
        self._syncs: list[tuple[int, asyncio.Future[None]]] = []
        self._written = self._appended = 0
        # Set when the present step is the last one: see `QueueWorld._watch`.
        self.dies = False
        disk = machine.disk
        assert isinstance(disk, QueueDisk)
        self.store = VirtualStore(disk, self._dirty, world.coverage.counts)
        self.member = member
        self.host = PlayedNode(self)
        nodes = world.scenario.nodes
        record = QueueRecord("q", "q", nodes, world.scenario.min_insync)
        self.replica = Replica(record, cast(QueueStore, self.store), self.host)
        self.ring = Ring(
            member,
            WatchedReplica(self),
            RingShell(self),
            payload_bytes_max=1 << 20,
            submit_bytes_max=1 << 20,
        )
        self._plain_take = self.ring.take
        self.ring.take = self._take  # type: ignore[method-assign]
        self.replica.attach(self.ring)

    def _take(self, event: Event) -> None:
        """A step of the ring, which may be the last one."""
        self._plain_take(event)
        if self.dies and not self.is_dead:
            self.world.crash(self.machine, self.machine.down_s)
            raise ProcessDiedError

    # --- calls ---

    @property
    def is_dead(self) -> bool:
        return self.loop.is_dead

    def run(self, call: Callable[[], object]) -> None:
        if self.is_dead:
            return
        if self.machine.paused:
            self._put_off.append(call)
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop.loop)
        try:
            call()
        except ProcessDiedError:
            pass
        finally:
            asyncio._set_running_loop(before)
        self._raise_failure()

    def resumed(self) -> None:
        """It stands still no more."""
        put_off, self._put_off = self._put_off, []
        for call in put_off:
            self.run(call)

    def _raise_failure(self) -> None:
        if self.loop.errors:
            self.failure = self.loop.errors[0]
        if self.failure is not None:
            raise self.failure

    def spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = self.loop.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self.tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ProcessDiedError):
            self.failure = self.failure or error

    def end(self) -> None:
        self.loop.is_dead = True

    def dispose(self) -> None:
        """Once, when the run is over."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop.loop)
        try:
            self.ring.close()
            self.replica.close(Reason.NOT_MASTER)
            self.loop.wind_up(self.tasks)
        finally:
            asyncio._set_running_loop(before)

    # --- the disk ---

    def _dirty(self) -> None:
        self._appended += 1
        if not self._is_writing:
            self._is_writing = True
            # What the present call appends besides goes with it.
            self.loop.call_soon(self._begin_write)

    def _begin_write(self) -> None:
        """One sync at a time, of all records that are there when it begins."""
        store, world = self.store, self.world
        delay = world.scenario.latencies.sync_s * world.rng.random() + self.machine.sync_delay_s
        self.loop.call_later(delay, self._end_write, len(store.pending), store.installs)

    def _end_write(self, count: int, installs: int) -> None:
        self.store.written(count, installs)
        self._written += count
        self._is_writing = False
        if self.store.pending:
            self._is_writing = True
            self._begin_write()
        for appended, future in self._syncs:
            if appended <= self._written and not future.done():
                future.set_result(None)
        self._syncs = [each for each in self._syncs if not each[1].done()]
        self.replica.durable()

    async def sync(self) -> None:
        if self._written < self._appended:
            future = self.loop.create_future()
            self._syncs.append((self._appended, future))
            await future

    # --- an operator's wishes ---

    def promote(self, asked: PromotionAsked) -> None:
        async def work() -> None:
            with suppress(PromotionError, RingClosedError):
                await self.ring.promote(asked.target)

        self.spawn(work())

    def accept_loss(self) -> None:
        async def work() -> None:
            try:
                await self.replica.losses.accept("operator", at_ms=0)
            except LossRefusedError as error:
                self.world.losses_ended.append(error.outcome)
            except RingClosedError:
                pass

        self.spawn(work())


class RingShell:
    """The group, as far as the ring needs it (`rings.Shell`)."""

    broadcast_count = 0

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._machine = process.machine

    def catch_up(self, ring: Ring) -> None:
        raise AssertionError("there are no events for all rings here")

    def now(self) -> float:
        return self._world.clock.now

    def send(self, node: str, frame: Frame) -> None:
        self._world.coverage.sent(frame)
        self._world.network.send(self._machine.name, self._process.me, node, frame)

    def waiting_bytes(self, node: str, ring: str) -> int:
        return 0

    def propose(self, ring: str, proposal: Propose) -> None:
        self._world.registry.propose(self._machine, proposal.current_epoch, proposal.view)

    def refresh(self, ring: str) -> None:
        self._world.registry.tell_view(self._machine.name, quickly=True)

    def cached(self, change_bytes: int) -> None:
        """Nobody counts."""

    def arm(self, ring: Ring, deadline: float) -> None:
        ring.armed_at = deadline
        self._world.clock.at(deadline, self._due, ring, deadline)

    def _due(self, ring: Ring, when: float) -> None:
        if self._process.is_dead or ring.armed_at != when:
            return
        ring.armed_at = None
        deadline = ring.next_deadline()
        if deadline is not None and deadline <= self._world.clock.now:
            self._world.give(self._machine.name, Tick())
        elif deadline is not None:
            self.arm(ring, deadline)

    def view_entered(self, ring: Ring) -> None:
        """There is one ring."""

    def ended(self, ring: Ring, failure: RingFailedError | None) -> None:
        if failure is not None:
            self._process.failure = failure.__cause__


class WatchedReplica:
    """The replica as the ring's application; the oracle is told of all that it is told."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._machine = process.machine
        self._world = process.world

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        self._process.replica.deliver(number, epoch, payload)
        self._world.oracle.delivered(self._machine, number, epoch, payload)

    def watermarks(self, received: int, persisted: int) -> None:
        self._world.oracle.confirmed(self._machine, Watermarks(received, persisted))
        self._process.replica.watermarks(received, persisted)

    def contact_changed(self, has_contact: bool) -> None:
        self._process.replica.contact_changed(has_contact)

    def role_changed(self, role: Role, view: View) -> None:
        if role in (Role.OUTSIDE, Role.MASTER):
            # Its catching up has ended, and an operator may have decided for what it has.
            self._process.store.catching_up = False
        self._world.role_changed(self._machine, role, view)
        self._process.replica.role_changed(role, view)

    def start_catch_up(self, number: int, source: MemberId) -> None:
        self._world.oracle.catch_up_started(self._machine)
        self._process.store.catching_up = True
        self._process.replica.start_catch_up(number, source)

    def loss_ended(self) -> None:
        self._process.replica.loss_ended()

    def ring_deleted(self) -> None:
        raise AssertionError("nobody deletes the ring")

    def ring_failed(self, failure: RingFailedError) -> None:
        """`RingShell.ended` has been told."""


class PlayedNode:
    """The node's side of the replica (`replica.ReplicaHost`)."""

    time_step_ms = TIME_STEP_MS

    def __init__(self, process: Process) -> None:
        self._process = process
        self.sources: Sources = VirtualSources(process)
        self.catch_up_turns = CatchUpTurns()
        self.take_over_turns = TakeOverTurns()
        self.set_asides = cast(SetAsides, KeptTails(process.world))
        # No queue here has a dead-letter exchange.
        nobody = cast(LetterPublisher, None)
        self.letter_desk = LetterDesk(nobody, 0, now_ms=self.now_ms)
        # Clocks differ, some by more than a step of the time.
        self._ahead_ms = process.world.rng.randrange(1000)

    def now_ms(self) -> int:
        return 1_000_000 + self._ahead_ms + int(self._process.world.clock.now * 1000)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._process.spawn(work, name)

    def store_failed(self, error: StoreError) -> None:
        raise error

    def replica_failed(self, replica: Replica, reason: str) -> None:
        raise AssertionError(reason)

    def mark_whole(self, store: QueueStore) -> None:
        self._process.store.disk.whole = True

    async def sync_store(self) -> None:
        await self._process.sync()

    def view_changed(self, replica: Replica) -> None:
        """Nobody waits for it."""

    def queue_unused(self, replica: Replica) -> None:
        raise AssertionError("the queue has no such rule")


class KeptTails:
    """The ends of logs that were set aside: they are only counted."""

    def __init__(self, world: QueueWorld) -> None:
        self._world = world

    async def keep(self, store: QueueStore, queue: str, tail: Tail) -> bool:
        self._world.coverage.counts["queue: the end of a log is set aside"] += 1
        return False
