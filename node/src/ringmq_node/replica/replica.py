"""One replica of a queue on this node: the ring's member, the store and the queue, joined.

A shell, and the ring's application (`ringmq_gm.Application`). It passes events from the ring to
the store and back. A change of role starts taking over (`mastership`), catching up (`joining`), or
repairing damaged bodies (`repair`). The decisions are made elsewhere: `ringmq_gm.core.member`
decides which member is master and which ops are safe, `queue.state` is the sum of the ops, and
`queue.master` decides which consumer gets which message.

A replica serves clients while it has a `mastership`. It gets one when, as the ring's master, it
has sent its first op: the `Requeue` of every live message. The predecessor's deliveries may have
been processed, and every replica has to know that, or the next master would deliver them again
without the redelivered flag (RabbitMQ's promotion lacked this op for twelve years, issue 7579).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from itertools import count
from typing import Any, cast

from ringmq_base.notifier import Notifier
from ringmq_base.ranges import Range, RangeSet
from ringmq_gm import MemberId, Ring, RingClosedError, RingFailedError, Role, View
from ringmq_node.model.info import QueueCondition
from ringmq_node.model.policies import Wanted, wanted_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode, QueueRecord
from ringmq_node.queue import ops
from ringmq_node.queue.inheritance import Inheritance
from ringmq_node.queue.ops import Op, Publish, Requeue
from ringmq_node.replica.comparing import Digests
from ringmq_node.replica.deletion_holds import DeletionHolds
from ringmq_node.replica.digests import digests_at
from ringmq_node.replica.fetching import Fetched
from ringmq_node.replica.host import ReplicaHost
from ringmq_node.replica.joining import Joining
from ringmq_node.replica.letter_desk import LetterDesk
from ringmq_node.replica.losses import AcceptedLosses
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.refusals import not_serving
from ringmq_node.replica.remembering import Remembering
from ringmq_node.replica.repair import Repair
from ringmq_node.replica.syncing import Syncing
from ringmq_node.replica.tails import tail_of
from ringmq_node.storage import QueueStore, StoreError
from ringmq_node.storage.errors import is_of_one_queue

logger = logging.getLogger(__name__)

# How often a master that hands over looks whether the hand-over came to nothing.
HAND_OVER_POLL_S = 0.05
# Of a queue that was just declared (`ringmq_gm.first_view`).
FIRST_EPOCH = 1


class Replica:
    """Created with the queue's store opened; `attach` gives it its ring."""

    ring: Ring

    def __init__(self, record: QueueRecord, store: QueueStore, host: ReplicaHost[Replica]) -> None:
        self.record = record
        self.store = store
        # As declaration and policies have it now; by the declaration alone until those are known.
        self.wanted = wanted_of(record, None, None, record.nodes)
        self.syncing = Syncing(self.wanted.sync)
        # None while this replica serves nobody: another member is master, or this one is still
        # taking over.
        self.mastership: Mastership | None = None
        self._host = host
        # Decoded by `multicast` for the delivery that comes within the same call.
        self._own_op: Op | None = None
        self._watermarks = (0, 0)
        self.remembering = Remembering(self, host)
        self._inheritance = Inheritance(store.state.last_number, store.state.next_position)
        self._was_master = False
        self._joining: Joining | None = None
        self.losses = AcceptedLosses(self)
        self.deletion_holds = DeletionHolds()
        self._repair = Repair(store, self)
        # Notified when the mastership or the role changes.
        self._changed = Notifier()
        self._ids = count(1)
        # A heap of (number, tie-breaker, future): waits for an op to be applied here.
        self._number_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        # Where its bodies are kept, by declaration or policy.
        self.mode = QueueMode.DEFAULT
        self._follow_mode()

    def attach(self, ring: Ring) -> None:
        self.ring = ring

    def update(self, record: QueueRecord) -> None:
        """Takes over the registry's record of this queue, changed or not."""
        self.record = record
        self._follow_mode()
        # A replica that is to leave stays in the ring until it is put out, and doesn't come back.
        node = self.ring.me.node
        self.ring.want(node in record.nodes and node not in record.leaving)

    def configure(self, wanted: Wanted) -> None:
        """Takes over what the queue should have now by its policies, changed or not."""
        self.wanted = wanted
        self.syncing.configure(wanted.sync)
        self._follow_mode()
        if self.mastership is not None:
            self.mastership.configure(wanted.rules)

    def _follow_mode(self) -> None:
        mode = self.record.mode or self.wanted.mode
        if mode is not self.mode:
            self.mode = mode
            self.store.pager.set_lazy(mode is QueueMode.LAZY)
            # Once for all replicas, and not for each lazy queue of a node that starts.
            if self.mastership is not None:
                logger.info("queue %s: mode %s", self.record.name, mode.value)

    @property
    def log_is_whole(self) -> bool:
        """Whether the ring may be begun again from this replica's log."""
        return self.ring.log_is_whole

    @property
    def letter_desk(self) -> LetterDesk:
        return self._host.letter_desk

    @property
    def view(self) -> View:
        """The newest view; not to be asked for before the ring has entered one."""
        view = self.ring.view
        assert view is not None, self.record
        return view

    # --- events of the ring (`ringmq_gm.Application`) ---

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        if self._joining is None:
            self.apply(number, epoch, payload)
        elif not self._joining.holds_back(number, epoch, payload):
            self.apply(number, epoch, payload)
            self._joining.applied()

    def apply(self, number: int, epoch: int, payload: bytes) -> None:
        """Applies the op to the state and begins to write it."""
        op, self._own_op = self._own_op, None
        try:
            if epoch > self.store.state.epoch:
                self.store.begin_epoch(epoch)
            self.store.append(number, ops.decode(payload) if op is None else op, payload)
        except StoreError as error:
            if is_of_one_queue(error):
                raise  # Nothing was applied. The ring, or the joining, ends this replica.
            self._host.store_failed(error)
        self._inheritance.applied(number, self.store.state.next_position)
        self._inheritance.safe(self.ring.safe_number)
        while self._number_waiters and self._number_waiters[0][0] <= number:
            waiter = heapq.heappop(self._number_waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    def durable(self) -> None:
        """The store has more of this queue on disk."""
        self.ring.persisted(self.store.durable_number)

    def watermarks(self, received: int, persisted: int) -> None:
        # Kept for a mastership that is still being taken over: these marks don't come again.
        self._watermarks = (received, persisted)
        if self.mastership is not None:
            self.mastership.watermarks(received, persisted)

    def contact_changed(self, has_contact: bool) -> None:
        """Its clients look for the master elsewhere while it can't know whether it still is."""
        self._was_master = False
        if has_contact:
            logger.info("queue %s: in contact with the ring again", self.record.name)
            self._become_master(self.view.epoch)
        else:
            logger.warning(
                "queue %s: too few of its replicas are heard; another one may be master by now",
                self.record.name,
            )
            self._end_mastership(Reason.NOT_MASTER)
        self._changed.notify()

    def role_changed(self, role: Role, view: View) -> None:
        if role is Role.MASTER:
            self._become_master(view.epoch)
        else:
            self._was_master = False
            self.deletion_holds.clear()
            self._end_mastership(Reason.NOT_MASTER)
        if role in (Role.OUTSIDE, Role.MASTER):
            self._stop_joining()
        if role is Role.MASTER and view.own_loss is not None and self.store.damaged:
            # The state as it is counts as the agreed one from now on, and is written as such.
            self.store.install(self.store.state, keep_below=self.store.state.next_position)
        if self.ring.me in view.synced:
            # From now on it may begin the ring again from its disk.
            self._host.mark_whole(self.store)
            self.syncing.ended(synchronised=True)
        self._repair.view_changed(active=role in (Role.MASTER, Role.MIRROR))
        self._host.view_changed(self)
        self._changed.notify()
        self.losses.ended()

    def start_catch_up(self, number: int, source: MemberId) -> None:
        self._stop_joining()
        self._watermarks = (0, 0)
        self._joining = Joining(
            self.store,
            number,
            apply=self.apply,
            installed=self._state_installed,
            sync=self._host.sync_store,
            syncing=self.syncing,
            turns=self._host.catch_up_turns,
            set_aside=self._set_aside,
            wait_installable=self.losses.wait_none_open,
        )
        self.spawn(self._catch_up(self._joining), f"catch up {self.record.name}")

    async def _set_aside(self, keep_below: int) -> bool:
        """Keeps the end of the log that is about to be cut, if it may be missed."""
        state = self.store.state
        tail = tail_of(
            state,
            keep_below,
            overruled=self.view.overrules(state.epoch, state.last_number),
            confirmed_below=self._inheritance.safe_below,
        )
        # A transient queue promises nothing once its master has gone.
        if tail is None or not self.store.durable:
            return False
        return await self._host.set_asides.keep(self.store, self.record.name, tail)

    def _state_installed(self) -> None:
        state = self.store.state
        self._inheritance.begin(state.last_number, state.next_position)

    def loss_ended(self) -> None:
        self.losses.ended()

    def ring_deleted(self) -> None:
        self.close(Reason.QUEUE_NOT_FOUND)

    def ring_failed(self, failure: RingFailedError) -> None:
        # First: whatever is wrong with this replica may keep it from closing in good order.
        self._host.replica_failed(self, str(failure))
        self.close(Reason.NOT_MASTER)

    # --- being master ---

    def _become_master(self, epoch: int) -> None:
        # Entering a view as its master again doesn't end the mastership: the log goes on, and
        # sessions keep their unconfirmed publishes.
        if not self._was_master:
            self._was_master = True
            self.spawn(self._take_over(epoch), f"take over {self.record.name}")

    async def _take_over(self, epoch: int) -> None:
        await self._host.take_over_turns.turn()
        if not await self.wait_taking() or self.mastership is not None:
            return
        live = self.store.state.live
        if live:
            self.multicast(Requeue(((live.first, live.last),)))
        received, persisted = self._watermarks
        self._inheritance.safe(self.ring.safe_number)
        self.mastership = Mastership(
            self,
            rules=self.wanted.rules,
            inheritance=self._inheritance,
            given_up=self._repair.given_up.ranges(),
            received=received,
            persisted=persisted,
        )
        self.remembering.taken_over(self.mastership)
        self._changed.notify()
        # That a queue which was just declared has a master is no news.
        level = logging.INFO if epoch > FIRST_EPOCH else logging.DEBUG
        logger.log(level, "queue %s: master since epoch %d", self.record.name, epoch)

    async def wait_taking(self) -> bool:
        """Returns True when the ring takes ops; False if this isn't its master any more."""
        try:
            while self.ring.role is Role.MASTER:
                await self.ring.wait_writable()
                if self.ring.refusal() is None:
                    return True
                await asyncio.sleep(HAND_OVER_POLL_S)
        except RingClosedError:
            logger.info("queue %s: its ring has ended", self.record.name)
        return False

    def multicast(self, op: Op) -> int:
        """Sends the op around the ring, and applies it here; returns its number."""
        if isinstance(op, Publish) and op.producer_id:
            self.remembering.note_time()
        self._own_op = op
        # In a transient queue "persisted" is never later than "received": asking the mirrors for
        # a mark at "received" would be one frame more for nothing.
        urgent = isinstance(op, Publish) and op.transient and self.record.durable
        try:
            return self.ring.multicast(ops.encode(op), urgent=urgent)
        finally:
            # If the ring refused the op, the next delivery is of another one.
            self._own_op = None

    def _end_mastership(self, reason: Reason) -> None:
        mastership, self.mastership = self.mastership, None
        if mastership is not None:
            mastership.end(reason)

    def now_ms(self) -> int:
        return self._host.now_ms()

    def unused(self) -> None:
        self._host.queue_unused(self)

    def serving(self) -> Mastership:
        """The mastership through which clients are served; raises if there is none now."""
        if self.mastership is None or self.ring.role is not Role.MASTER:
            raise not_serving(self.record.name, self.ring.role)
        return self.mastership

    async def wait_serving(self) -> None:
        """Returns when this replica serves as master; the caller has the deadline."""
        while self.mastership is None:
            await self._changed.wait()

    async def wait_number(self, number: int) -> None:
        """Returns when the op has been applied here; the caller has the deadline."""
        if self.store.state.last_number < number:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._number_waiters, (number, next(self._ids), waiter))
            await waiter

    @property
    def safe_end(self) -> int:
        """The position below which all messages are confirmed, as far as this replica knows."""
        if self.mastership is not None:
            return self.mastership.queue.visible_below
        self._inheritance.safe(self.ring.safe_number)
        return self._inheritance.safe_below

    @property
    def is_synchronised(self) -> bool:
        """Whether this replica has all that it knows to be confirmed."""
        return self.ring.role in (Role.MASTER, Role.MIRROR) and self._joining is None

    @property
    def given_up(self) -> RangeSet:
        """Positions whose bodies no member of the ring has. Not to be changed."""
        return self._repair.given_up

    @property
    def condition(self) -> QueueCondition:
        return QueueCondition.DOWN if self.mastership is None else self.mastership.room.condition

    async def settle(self) -> None:
        """Returns when no op that was delivered waits to be applied, and all is on disk."""
        if self._joining is not None:
            await self._joining.wait_applied()
        await self._host.sync_store()

    def close(self, reason: Reason) -> None:
        """Nothing more is served, fetched or repaired by this replica."""
        self._stop_joining()
        self._repair.stop()
        self.deletion_holds.clear()
        self._end_mastership(reason)
        self._changed.notify()
        self.losses.ended()

    # --- catching up ---

    def _stop_joining(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        self.syncing.ended(synchronised=False)

    async def _catch_up(self, joining: Joining) -> None:
        await joining.run(
            fetch_state=lambda number: self._host.sources.fetch_state(
                self.record.id, self.view.master, number
            ),
            fetch_messages=lambda ranges: self._fetch_paced(self.view.master, ranges),
            others=lambda: [
                partial(self._fetch_paced, source)
                for source in self.synchronised_others()
                if source != self.view.master
            ],
        )
        if not joining.cancelled:
            self._joining = None
            # Before the view counts it: a crash in between would leave a candidate of the ring
            # whose disk isn't trusted. Until it counts, whatever its disk says harms nobody.
            self._host.mark_whole(self.store)
            self.ring.caught_up(self.store.durable_number)
            # A line for each of thousands of idle queues would say nothing.
            level = logging.INFO if joining.was_behind else logging.DEBUG
            logger.log(level, "queue %s: caught up", self.record.name)

    def _fetch_paced(self, source: MemberId, ranges: Sequence[Range]) -> AsyncIterator[Fetched]:
        return self.syncing.paced(self._fetch_in_turn(source, ranges))

    async def _fetch_in_turn(
        self, source: MemberId, ranges: Sequence[Range]
    ) -> AsyncIterator[Fetched]:
        bytes_max = self.syncing.call_bytes_max
        async with self._host.catch_up_turns.bodies():
            answers = self._host.sources.fetch_messages(
                self.record.id, source, ranges, bytes_max=bytes_max
            )
            # Whoever stops reading here ends the call at the source as well.
            async with aclosing(cast(AsyncGenerator[Fetched, None], answers)):
                async for answer in answers:
                    yield answer

    async def digests(self, first: int, last: int) -> Digests:
        """What is at these positions now; ends earlier if that is much. Raises `BrokerError`."""
        node, epoch = self.ring.me.node, self.view.epoch
        try:
            return await digests_at(self.store, first, last, node=node, epoch=epoch)
        except StoreError as error:
            raise BrokerError(Reason.STORE_FAILED, str(error)) from error

    # --- damaged bodies (`repair.RepairedReplica`) ---

    @property
    def queue_name(self) -> str:
        return self.record.name

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._host.spawn(self._guarded(work), name)
        # A task that is cancelled before its first turn never gets to await `work`.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """A failure of `work` ends this replica. Unguarded it would end the node."""
        try:
            await work
        except StoreError as error:
            self.store_failed(error)
        except Exception as error:
            self.ring.fail(error)

    def store_failed(self, error: StoreError) -> None:
        """The store can't go on, or this replica can't: a file of its queue can't be read."""
        if is_of_one_queue(error):
            self.ring.fail(error)
        else:
            self._host.store_failed(error)

    def synchronised_others(self) -> list[MemberId]:
        return [member for member in self.view.synced if member != self.ring.me]

    def fetch_from(self, source: MemberId, ranges: Sequence[Range]) -> AsyncIterator[Fetched]:
        return self._host.sources.fetch_messages(self.record.id, source, ranges)

    def bodies_lost(self) -> None:
        if self.mastership is not None:
            self.mastership.bodies_lost()

    def bodies_filled(self, first: int, last: int) -> None:
        if self.mastership is not None:
            self.mastership.bodies_filled(first, last)

    def bodies_given_up(self, ranges: Sequence[Range]) -> None:
        if self.mastership is not None:
            self.mastership.bodies_given_up(ranges)
