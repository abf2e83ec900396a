"""One run of catching up; `catchup` says how it goes and why.

Until the state has been installed, ops that the ring delivers are held back. Then they are applied
in pieces of work. When none is left, the ops that come go straight to the queue, and the removals
among them shorten the list of missing bodies.

The state comes beside the ring and may be ahead of it. It is installed only once the ring has
delivered the op that it ends with, in the same epoch. Otherwise:
1. The master numbers ops 8 and 9, and answers with its state after 9.
2. It dies before any mirror has got 8 from it.
3. The next master gives 8 and 9 to other messages, and this replica would skip them as ops that it
   already has (`test_state_of_a_master_that_died_with_it_is_not_installed`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ringmq_base.limits import MIB
from ringmq_base.pieces import Pieces
from ringmq_base.ranges import RangeSet
from ringmq_node.model.reasons import BrokerError
from ringmq_node.queue import ops
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.catchup import keep_below
from ringmq_node.replica.fetching import FetchMessages, SourceError, ask, positions_text
from ringmq_node.replica.set_asides import NotSetAsideError
from ringmq_node.replica.syncing import Syncing
from ringmq_node.replica.turns import CatchUpTurns
from ringmq_node.storage import PackedParts, QueueStore, StoreFailedError, packed_in_pieces

logger = logging.getLogger(__name__)

RETRY_S = 0.2
# Between attempts while the end of the log can't be set aside.
ROOM_RETRY_S = 5.0
# How long the ring may take to deliver the ops that a fetched state includes.
DELIVERY_DEADLINE_S = 5.0
# Ops held back for the state. Above it the oldest are dropped, and a newer state is needed.
HELD_BACK_BYTES_MAX = 64 * MIB
# Time between two log lines about messages that are damaged everywhere.
TELL_S = 30.0

FetchState = Callable[[int], Awaitable[ReplicatedState]]
Others = Sequence[FetchMessages]
# Keeps what would be cut at this position, if it has to be kept. Returns whether that took time.
KeepEnd = Callable[[int], Awaitable[bool]]


async def nothing_to_keep(keep_below: int) -> bool:
    """A `KeepEnd`, for a log of which nobody will miss anything."""
    return False


async def nobody_decides() -> None:
    """A `wait_installable`, where no operator accepts losses."""


class Joining:
    """`installed` is told when the state has been; then `apply` takes the ops after it. `number`:
    the last op before those that the ring delivers."""

    def __init__(
        self,
        store: QueueStore,
        number: int,
        *,
        apply: Callable[[int, int, bytes], None],
        installed: Callable[[], None],
        sync: Callable[[], Awaitable[None]],
        syncing: Syncing,
        turns: CatchUpTurns,
        set_aside: KeepEnd = nothing_to_keep,
        wait_installable: Callable[[], Awaitable[None]] = nobody_decides,
    ) -> None:
        self.cancelled = False
        # Whether the state was another one than this replica had.
        self.was_behind = False
        self._set_aside = set_aside
        self._wait_installable = wait_installable
        self._turns = turns
        self._syncing = syncing
        syncing.begun()
        self._store = store
        self._sync = sync
        # The last op before those that are held back, and its epoch. The epoch of the op that was
        # the last one at the joining isn't known, and needn't be: that op is stable.
        self._number = number
        self._epoch: int | None = None
        self._apply = apply
        self._tell_installed = installed
        self._held_back: deque[tuple[int, int, bytes]] = deque()
        #: Of the ops that wait for the state.
        self.held_back_bytes = 0
        # Whether it is this queue's turn to fetch the state.
        self._has_begun = False
        self._arrived = asyncio.Event()
        # Before its first op a queue has the same state everywhere. Of ten thousand queues many
        # are unused, and a call for each would keep those waiting that are used.
        self._installed = number == store.state.last_number == 0 and not store.damaged
        # Not set while ops that waited are applied.
        self._all_applied = asyncio.Event()
        self._all_applied.set()
        self._tell_at = 0.0

    def holds_back(self, number: int, epoch: int, payload: bytes) -> bool:
        """Returns True if the op waits for the state; else the caller applies it now."""
        if self._installed and not self._held_back:
            return False
        if not self._has_begun:
            # The state that is fetched later has this op. To hold back the ops of all queues that
            # wait for their turn would take `HELD_BACK_BYTES_MAX` for each.
            self._number, self._epoch = number, epoch
            return True
        self._held_back.append((number, epoch, payload))
        self.held_back_bytes += len(payload)
        while self.held_back_bytes > HELD_BACK_BYTES_MAX and len(self._held_back) > 1:
            if self._installed:
                # The state doesn't have it, so it can't be dropped.
                self._apply_next()
            else:
                self._number, self._epoch, dropped = self._held_back.popleft()
                self.held_back_bytes -= len(dropped)
        self._arrived.set()
        return True

    def cancel(self) -> None:
        """The replica has left the ring, is closed, or has become master."""
        self.cancelled = True
        self._syncing.ended(synchronised=False)

    def applied(self) -> None:
        """An op has been applied, which may have removed the last message that is missing."""
        if not self._store.missing:
            self._syncing.changed.notify()

    async def run(
        self,
        fetch_state: FetchState,
        fetch_messages: FetchMessages,
        others: Callable[[], Others] = lambda: (),
    ) -> None:
        """Returns when no body is missing and all is on disk, or the run was cancelled.

        State and bodies come from the master. Bodies that are damaged there are asked of `others`,
        the other synchronised members. A body that all of them lack stays missing: a replica
        without it is as good as they are.
        """
        if self._installed:
            self._syncing.state_installed()
        while not self.cancelled:
            try:
                if not self._installed:
                    async with self._turns.state():
                        await self._take_state(fetch_state)
                await self._fetch(fetch_messages, others)
                if not self.cancelled:
                    await self._sync()
                return
            except (SourceError, BrokerError) as error:
                logger.info("catching up: %s; trying again", error)
                await asyncio.sleep(RETRY_S * (0.5 + random.random()))
            except NotSetAsideError as error:
                self._tell_not_kept(error)
                await asyncio.sleep(ROOM_RETRY_S * (0.5 + random.random()))
            except StoreFailedError:
                # The store has told the node, which leaves its rings.
                self.cancel()

    async def _take_state(self, fetch_state: FetchState) -> None:
        if self.cancelled:
            return  # While it waited for its turn.
        self._has_begun = True
        try:
            state = await fetch_state(self._number)
            while not self.cancelled and await self._set_aside(self._keep_below(state)):
                # Ops that were held back meanwhile may have been dropped for want of room, and then
                # a newer state is needed. It may even ask for a cut at another place.
                state = await fetch_state(self._number)
            # Before the ops are waited for: some may be dropped, for want of room, meanwhile.
            packed = await packed_in_pieces(state)
            await self._wait_delivered(state)
            await self._install(state, packed)
        except NotSetAsideError:
            self._drop_held_back()
            raise
        finally:
            if not self._installed and self._turns.waiting:
                self._drop_held_back()

    def _keep_below(self, state: ReplicatedState) -> int:
        mine = self._store.state
        return keep_below(mine.epochs, mine.next_position, state.epochs, state.next_position)

    def _drop_held_back(self) -> None:
        """This turn came to nothing, and the next one may be long in coming."""
        self._has_begun = False
        if self._held_back:
            self._number, self._epoch, _ = self._held_back[-1]
            self._held_back.clear()
            self.held_back_bytes = 0

    async def _wait_delivered(self, state: ReplicatedState) -> None:
        """Returns when the ring has delivered the op that `state` ends with.

        Raises `SourceError` if that op doesn't come, or comes in another epoch.
        """
        number = state.last_number
        try:
            async with asyncio.timeout(DELIVERY_DEADLINE_S):
                while self._number + len(self._held_back) < number and not self.cancelled:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise SourceError(f"the ring doesn't deliver op {number} of the state") from None
        if self.cancelled:
            return
        if number < self._number:
            raise SourceError(f"the state ends with op {number}, before op {self._number}")
        epoch = self._epoch
        if number > self._number:
            epoch = self._held_back[number - self._number - 1][1]
        if epoch is not None and epoch != state.epoch:
            raise SourceError(f"op {number} has epoch {epoch} here, {state.epoch} in the state")

    async def _install(self, state: ReplicatedState, packed: PackedParts) -> None:
        if self.cancelled:
            return
        # The own state stays as it is, as all ops are held back.
        keep = 0 if self._store.damaged else self._keep_below(state)
        changes = await self._store.changes_to(state, keep_below=keep)
        await self._wait_installable()
        # Nothing is left to wait for; but some ops may have been dropped meanwhile.
        await self._wait_delivered(state)
        if self.cancelled:
            return
        self.was_behind = self._store.install(
            state, keep_below=keep, packed=packed, changes=changes
        )
        self._installed = True
        self._tell_installed()
        self._syncing.state_installed()
        # In pieces: 64 MiB of small ops take seconds. Ops that the ring delivers in between go
        # behind those that wait (`holds_back`).
        pieces = Pieces()
        self._all_applied.clear()
        try:
            for _ in changes.let_go():
                await pieces.step()
            while self._held_back and not self.cancelled:
                self._apply_next()
                await pieces.step()
        finally:
            self._all_applied.set()

    def _apply_next(self) -> None:
        """Applies the oldest op that waits, unless the state that was installed has it."""
        number, epoch, payload = self._held_back.popleft()
        self.held_back_bytes -= len(payload)
        if number > self._store.state.last_number:
            self._apply(number, epoch, payload)
        else:
            op = ops.decode(payload)
            if isinstance(op, Publish):
                self._store.fill(op.first_position, op.block, op.transient)

    async def wait_applied(self) -> None:
        """Returns when no op waits for its piece of work behind a state that was installed."""
        await self._all_applied.wait()

    async def _fetch(self, fetch: FetchMessages, others: Callable[[], Others]) -> None:
        """Returns when the only bodies missing are those that no synchronised member has."""
        while self._store.missing and not self.cancelled:
            if not self._syncing.may_fetch:
                # Until an operator asks, a policy changes, or all that is missing is consumed.
                await self._syncing.changed.wait()
                continue
            # A position that was neither given nor reported lost was acknowledged at the master;
            # the ack is on its way here.
            lost = await ask(self._store, fetch, is_cancelled=self._is_cancelled)
            silent: Exception | None = None
            for other in others() if lost else ():
                try:
                    lost = await ask(
                        self._store, other, among=lost, is_cancelled=self._is_cancelled
                    )
                except (SourceError, BrokerError) as error:
                    silent = error
            if self.cancelled or not self._store.missing:
                return
            if not self._syncing.may_fetch:
                continue
            if lost:
                self._tell(lost, silent)
            if silent is None and lost == self._store.missing:
                return
            await asyncio.sleep(RETRY_S)

    def _is_cancelled(self) -> bool:
        return self.cancelled or not self._syncing.may_fetch

    def _tell_not_kept(self, error: NotSetAsideError) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._tell_at:
            self._tell_at = now + TELL_S
            logger.error(
                "queue %s: this replica can't join its ring. The end of its log may hold confirmed "
                "messages that no other replica has, and can't be set aside: %s",
                self._store.queue,
                error,
            )

    def _tell(self, lost: RangeSet, silent: Exception | None) -> None:
        """Logs, once in a while, which bodies no answering member has."""
        now = asyncio.get_running_loop().time()
        if now < self._tell_at:
            return
        self._tell_at = now + TELL_S
        logger.warning(
            "queue %s: catching up: %d messages are damaged on every synchronised replica%s: %s",
            self._store.queue,
            len(lost),
            "" if silent is None else f" that answers ({silent})",
            positions_text(lost),
        )
