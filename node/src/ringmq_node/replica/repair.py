"""Bodies that a replica of a ring has found damaged, fetched again from the other members.

Damage to a body is a matter of one message: the replica knows every op, so it stays in its
ring (docs/decisions/0014-damage-is-repaired-in-place.md). The store says `lost`: some live
positions are missing. One task then goes around the other synchronised members, one after the
other, until nothing is missing or each has said that it doesn't have it, or has not
answered in its time. What is left is *given up*: nobody waits for it any more.

Whoever is asked may know a later view, in which this replica isn't the master that it takes itself
for, and have another message at a position that nobody has confirmed. Such a body is never
delivered, and is dropped with the rest of the diverged tail when this replica joins again.

Bounded: a member that gives nothing has `MEMBER_DEADLINE_S`. What was given up is asked for
again only when the view changes (somebody may have come back), when more is lost, or after
`AGAIN_S`.

Invariant: while the replica is a master or a mirror, each missing position is given up, or the
task is about to ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
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
# When what was given up is asked for again though nothing has changed.
AGAIN_S = 60.0


class Owner(Protocol):
    """The replica."""

    @property
    def queue_name(self) -> str: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def synchronised_others(self) -> Sequence[MemberId]:
        """The other members of the newest view that hold every confirmed op, in ring order."""
        ...

    def fetch_from(self, source: MemberId, ranges: Sequence[Range]) -> AsyncIterator[Fetched]: ...
    def bodies_lost(self) -> None:
        """Some bodies have gone missing."""
        ...

    def bodies_filled(self, first: int, last: int) -> None:
        """These were missing, and are here."""
        ...

    def bodies_given_up(self, ranges: Sequence[Range]) -> None:
        """These are missing, and nobody has them."""
        ...


class Repair:
    """Of one replica. On the event loop's thread."""

    def __init__(self, store: QueueStore, owner: Owner) -> None:
        # Missing, and nobody had it the last time, in this view.
        self.given_up = RangeSet()
        self._store = store
        self._owner = owner
        self._active = False
        self._task: asyncio.Task[None] | None = None
        # Something is to be asked for; and by whom that is answered has changed.
        self._wanted = asyncio.Event()
        self._view_changed = False
        # Of the call to a member that is under way.
        self._limit: asyncio.Timeout | None = None
        # Messages that the member that is being asked has given.
        self._filled = 0
        # The owner is about to be told that some are lost.
        self._telling = False
        # What the log has been told of.
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
                # Whoever is silent may not be one of those to be asked any more.
                self._limit.reschedule(asyncio.get_running_loop().time())
            self._begin()

    def stop(self) -> None:
        """Nothing is asked for any more."""
        self._active = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _lost(self) -> None:
        # Not at once: whoever was reading is in the middle of something. And once for all that
        # is lost in this turn of the loop, as the owner looks at all that it has.
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
            # The node has been told of it, and leaves its rings.
            logger.info("queue %s: repair ended: %s", self._owner.queue_name, error)

    async def _go_around(self) -> None:
        """Asks each of the others once. What is lost meanwhile is for the next time."""
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
        """Whether the member has answered."""
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
