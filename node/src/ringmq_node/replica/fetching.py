"""How a replica gets missing bodies from another member of its ring.

A joiner and the repair of damage ask in the same way. A position stands for the same message on
every synchronised replica, so any of them may be asked. Each answers with the bodies that it has,
and names the live positions whose bodies are damaged on its side as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, cast

from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range, RangeSet
from ringmq_gm import MemberId
from ringmq_node.queue.block import Block
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.catchup import FETCH_BYTES_MAX, FETCH_RANGES_MAX
from ringmq_node.storage import QueueStore

# Ranges named in a line of the log.
_RANGES_SHOWN = 10


class SourceError(Exception):
    """This source can't answer the request; another member may."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """These positions are live at the source, but their bodies are missing there as well."""

    ranges: tuple[Range, ...]


# A block of bodies with its first position and whether it is transient; or positions without any.
Fetched = tuple[int, Block, bool] | Lacking
FetchMessages = Callable[[Sequence[Range]], AsyncIterator[Fetched]]


class Sources(Protocol):
    """The other nodes, as replicas fetch from them. Each method raises `SourceError`."""

    async def fetch_state(
        self, queue_id: str, source: MemberId, number_min: int
    ) -> ReplicatedState:
        """The source's state of the queue as of op `number_min` or later."""
        ...

    def fetch_messages(
        self,
        queue_id: str,
        source: MemberId,
        ranges: Sequence[Range],
        *,
        bytes_max: int = FETCH_BYTES_MAX,
    ) -> AsyncIterator[Fetched]:
        """Bodies of live messages in `ranges`, at most `bytes_max` of them; but one always."""
        ...


_Answers = AsyncGenerator[Fetched, None]


def minus(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """The numbers that are in `ranges` and not in `others`."""
    rest = ranges.copy()
    if others:
        rest.subtract(others)
    return rest


def common(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """The numbers that are in both sets."""
    return RangeSet(part for pair in others for part in ranges.intersection(*pair))


async def ask(
    store: QueueStore,
    fetch: FetchMessages,
    *,
    among: RangeSet | None = None,
    is_cancelled: Callable[[], bool],
    on_filled: Callable[[int, int], None] = lambda first, last: None,
) -> RangeSet:
    """Asks one member for missing bodies (only those in `among`, if given) while it gives any.

    Calls `on_filled(first, last)` for each range whose bodies have come. Returns the missing
    positions whose bodies that member lacks as well. Any other position that is still missing
    isn't live at that member: it is acknowledged there, or not published yet. Raises the errors of
    `fetch`, and `StoreFailedError`.
    """
    lacking = RangeSet()
    # Answers that have arrived already follow each other without a turn of the loop, and a block
    # that has its bodies for many ranges takes its time.
    pieces = Pieces()
    while not is_cancelled():
        wanted = store.missing if among is None else common(store.missing, among)
        ranges = [*islice(minus(wanted, lacking), FETCH_RANGES_MAX)]
        if not ranges:
            break
        got_any = False
        # Leaving this loop early must end the call at the source as well.
        async with aclosing(cast(_Answers, fetch(ranges))) as answers:
            async for answer in answers:
                if is_cancelled():
                    return lacking
                if isinstance(answer, Lacking):
                    before = len(lacking)
                    lacking.update(answer.ranges)
                    got_any |= len(lacking) > before
                    continue
                first, block, transient = answer
                parts = store.missing.intersection(first, first + block.count - 1)
                store.fill(first, block, transient)
                for part in parts:
                    got_any = True
                    on_filled(*part)
                # Fetched bodies stay in memory until they are on disk: don't fetch faster than
                # the disk takes them.
                await store.wait_room()
                await pieces.step()
        if not got_any:
            break
    return common(store.missing, lacking)


def positions_text(ranges: RangeSet) -> str:
    """The first of `ranges`, for a person: `3, 7-9`."""
    shown = [
        str(first) if first == last else f"{first}-{last}"
        for first, last in islice(ranges, _RANGES_SHOWN)
    ]
    more = ranges.range_count - len(shown)
    return ", ".join(shown) + (f" and {more} more ranges" if more else "")
