"""Damaged bodies of a replica, fetched again from the other members of its ring.

A damaged body concerns one message. The replica knows every op, so it stays in its ring
(docs/decisions/0014-damage-is-repaired-in-place.md). The store reports that live positions have
gone missing. One task then asks the other synchronised members, one after the other, until no
body is missing, or every member has said that it lacks the rest or hasn't answered in its time.
The rest is *given up*: the queue goes on without waiting for it.

The member that is asked may know a later view, in which this replica isn't the master that it
takes itself for. It may then have another message at a position that was never confirmed. Such a
body is never delivered, and is dropped with the diverged tail when this replica joins again.

Bounds: a member that gives nothing has `MEMBER_DEADLINE_S`. Given-up bodies are asked for again
only when the view changes (a member with them may have come back), when more bodies are lost, or
after `AGAIN_S`.

Invariant: while the replica is a master or a mirror, each missing position has been given up, or
the task is about to ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ringmq_base.ranges import Range, RangeSet
from ringmq_gm import MemberId
from ringmq_node.model.reasons import BrokerError
from ringmq_node.replica.fetching import Fetched, SourceError, ask, common, minus, positions_text
from ringmq_node.storage import QueueStore, StoreError

logger = logging.getLogger(__name__)

# How long one member may give nothing.
MEMBER_DEADLINE_S = 10.0
# Between two calls to a member that can't answer just now.
RETRY_S = 0.2
# Time until given-up bodies are asked for again though nothing has changed.
AGAIN_S = 60.0


class RepairedReplica(Protocol):
    """The replica, as its repair uses it."""

    @property
    def queue_name(self) -> str: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def synchronised_others(self) -> Sequence[MemberId]:
        """The other members of the newest view that hold every confirmed op, in ring order."""
        ...

    def fetch_from(self, source: MemberId, ranges: Sequence[Range]) -> AsyncIterator[Fetched]: ...
    def bodies_lost(self) -> None:
        """Bodies have gone missing; called once for all that were lost in a turn of the loop."""
        ...

    def bodies_filled(self, first: int, last: int) -> None:
        """The missing bodies of these positions have come."""
        ...

    def bodies_given_up(self, ranges: Sequence[Range]) -> None:
        """These bodies are missing, and no synchronised member gives them."""
        ...


class Repair:
    """The repair of one replica; used on the event loop's thread."""

    def __init__(self, store: QueueStore, owner: RepairedReplica) -> None:
        # Missing positions whose bodies no member had when they were last asked, in this view.
        self.given_up = RangeSet()
        self._store = store
        # It has this object: no cycle, which would stay in memory when the queue is gone.
        self._owner: RepairedReplica = weakref.proxy(owner)
        self._active = False
        self._task: asyncio.Task[None] | None = None
        # Set when more bodies are lost; the view's flag says that the members to ask have changed.
        self._wanted = asyncio.Event()
        self._view_changed = False
        # The deadline of the call that is under way.
        self._limit: asyncio.Timeout | None = None
        # Messages that the member being asked has given so far.
        self._filled = 0
        # A call of `bodies_lost` is scheduled.
        self._telling = False
        # Given-up positions that have been logged.
        self._told = RangeSet()
        store.on_lost = self._lost

    def view_changed(self, *, active: bool) -> None:
        """`active`: this replica is the master, or a mirror that has all ops."""
        self._active = active
        self.given_up.clear()
        if not active:
            self.stop()
        elif self._store.missing:
            self._view_changed = True
            if self._limit is not None and not self._limit.expired():
                # The silent member may not be in the new view: don't wait for it any longer.
                self._limit.reschedule(asyncio.get_running_loop().time())
            self._begin()

    def stop(self) -> None:
        """Ends the task, if one is running."""
        self._active = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _lost(self) -> None:
        # Later, because the reader that found the damage is in the middle of its work. And once
        # for everything that is lost in this turn of the loop: the owner recounts its whole queue,
        # which for thousands of damaged bodies, one by one, would hold the loop for minutes.
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)
        if self._active:
            self._begin()

    def _tell(self) -> None:
        self._telling = False
        self._owner.bodies_lost()

    def _begin(self) -> None:
        self._wanted.set()
        if self._task is None or self._task.done():
            name = f"repair {self._owner.queue_name}"
            self._task = self._owner.spawn(self._run(), name)

    async def _run(self) -> None:
        try:
            while self._store.missing:
                self._wanted.clear()
                self._view_changed = False
                await self._go_around()
                if self._store.missing:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(AGAIN_S):
                            await self._wanted.wait()
        except (StoreError, BrokerError) as error:
            # The store has told the node, which leaves its rings.
            logger.info("queue %s: repair ended: %s", self._owner.queue_name, error)

    async def _go_around(self) -> None:
        """Asks every other member once; bodies lost meanwhile wait for the next round."""
        tried = self._store.missing.copy()
        silent: list[MemberId] = []
        for source in self._owner.synchronised_others():
            if not common(self._store.missing, tried) or self._view_changed:
                break
            self._filled = 0
            if not await self._ask(source):
                silent.append(source)
            if self._filled:
                name = self._owner.queue_name
                logger.info("queue %s: %d messages repaired from %s", name, self._filled, source)
        if not self._view_changed:
            self._give_up(common(tried, self._store.missing), silent)

    async def _ask(self, source: MemberId) -> bool:
        """Asks one member for all missing bodies; returns False if it didn't answer in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MEMBER_DEADLINE_S) as limit:
                self._limit = limit

                def filled(first: int, last: int) -> None:
                    limit.reschedule(loop.time() + MEMBER_DEADLINE_S)
                    self._filled += last - first + 1
                    self._told.remove(first, last)
                    self.given_up.remove(first, last)
                    self._owner.bodies_filled(first, last)

                while not self._view_changed:
                    try:
                        await ask(
                            self._store,
                            lambda ranges: self._owner.fetch_from(source, ranges),
                            is_cancelled=lambda: self._view_changed,
                            on_filled=filled,
                        )
                        return True
                    except (SourceError, BrokerError) as error:
                        logger.debug("queue %s: repair: %s", self._owner.queue_name, error)
                        await asyncio.sleep(RETRY_S * (0.5 + random.random()))
        except TimeoutError:
            return False
        finally:
            self._limit = None
        return False

    def _give_up(self, ranges: RangeSet, silent: Sequence[MemberId]) -> None:
        self.given_up = ranges
        self._told = common(self._told, self._store.missing)
        news = minus(ranges, self._told)
        if news:
            self._told.update(news)
            logger.error(
                "queue %s: %d messages are damaged here and no synchronised replica gives them: "
                "positions %s%s",
                self._owner.queue_name,
                len(news),
                positions_text(news),
                "; no answer from " + ", ".join(map(str, silent)) if silent else "",
            )
        if ranges:
            self._owner.bodies_given_up(ranges.ranges())
