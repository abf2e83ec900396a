"""One run of catching up; `catchup` says how it goes and why.

Holds back the ops that come before the state has been installed; after that ops go
straight to the queue, and their removals shorten what is missing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ringmq_node.catchup import FETCH_RANGES_MAX, keep_below
from ringmq_node.errors import BrokerError
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.ranges import Range
from ringmq_node.queue.state import QueueState
from ringmq_node.storage import QueueStore

logger = logging.getLogger(__name__)

RETRY_S = 0.2

FetchState = Callable[[int], Awaitable[QueueState]]
FetchMessages = Callable[[Sequence[Range]], AsyncIterator[tuple[int, Block, bool]]]


class SourceError(Exception):
    """The source can't give what was asked for; another one may."""


class Joining:
    """`apply` is what is done with an op once the state is there."""

    def __init__(
        self,
        store: QueueStore,
        number: int,
        *,
        apply: Callable[[int, int, bytes], None],
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        self.cancelled = False
        self._store = store
        self._sync = sync
        self._number = number
        self._apply = apply
        self._held_back: deque[tuple[int, int, bytes]] = deque()
        self._installed = False

    def holds_back(self, number: int, epoch: int, payload: bytes) -> bool:
        """Whether the op waits for the state; if not, it is to be applied now."""
        if self._installed:
            return False
        self._held_back.append((number, epoch, payload))
        return True

    async def run(self, fetch_state: FetchState, fetch_messages: FetchMessages) -> None:
        """Returns when nothing is missing and all is on disk, or it has been cancelled."""
        while not self.cancelled:
            try:
                if not self._installed:
                    self._install(await fetch_state(self._number))
                while self._store.missing and not self.cancelled:
                    await self._fetch_some(fetch_messages)
                if not self.cancelled:
                    await self._sync()
                return
            except (SourceError, BrokerError) as error:
                logger.info("catching up: %s; trying again", error)
                await asyncio.sleep(RETRY_S * (0.5 + random.random()))

    def _install(self, state: QueueState) -> None:
        if self.cancelled:
            return
        mine = self._store.state
        keep = keep_below(mine.epochs, mine.next_position, state.epochs, state.next_position)
        self._store.install(state, keep_below=0 if self._store.damaged else keep)
        self._installed = True
        at = state.last_number
        for number, epoch, payload in self._held_back:
            if number > at:
                self._apply(number, epoch, payload)
            else:
                op = ops.decode(payload)
                if isinstance(op, Publish):
                    self._store.fill(op.first_position, op.block, op.transient)
        self._held_back.clear()

    async def _fetch_some(self, fetch_messages: FetchMessages) -> None:
        wanted = [
            pair for pair, _ in zip(self._store.missing, range(FETCH_RANGES_MAX), strict=False)
        ]
        before = len(self._store.missing)
        async for first_position, block, transient in fetch_messages(wanted):
            if self.cancelled:
                return
            self._store.fill(first_position, block, transient)
        if len(self._store.missing) == before:
            # They have been acknowledged there, and the acks are on their way here.
            await asyncio.sleep(RETRY_S)
