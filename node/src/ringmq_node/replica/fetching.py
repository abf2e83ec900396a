"""How a replica gets bodies that it misses from another member of its ring.

A joiner and the repair of damage ask alike. A position stands for the same message on every
synchronised replica, so any of them may be asked; each says what it gives, and what is live
there but damaged there as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import cast

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.replica.catchup import FETCH_RANGES_MAX
from ringmq_node.storage import QueueStore

# Ranges named in a line of the log.
_RANGES_SHOWN = 10


class SourceError(Exception):
    """The source can't give what was asked for; another one may."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """These positions are live at the source, and it has no bodies for them either."""

    ranges: tuple[Range, ...]


# Bodies from a position on, and whether they are transient; or what there is none of.
Fetched = tuple[int, Block, bool] | Lacking
FetchMessages = Callable[[Sequence[Range]], AsyncIterator[Fetched]]
_Answers = AsyncGenerator[Fetched, None]


def minus(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """What is in `ranges` and not in `others`."""
    rest = ranges.copy()
    if others:
        rest.subtract(others)
    return rest


def common(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """What is in both."""
    return RangeSet(part for pair in others for part in ranges.intersection(*pair))


async def ask(
    store: QueueStore,
    fetch: FetchMessages,
    *,
    among: RangeSet | None = None,
    is_cancelled: Callable[[], bool],
    on_filled: Callable[[int, int], None] = lambda first, last: None,
) -> RangeSet:
    """Asks one member for what is missing (of `among` only, if given), as long as it gives any.

    `on_filled(first, last)` for each range that isn't missing any more. Returns what that member
    lacks, too. What is missing then and not among that isn't live there: acknowledged, or not
    published yet. Raises what `fetch` raises, and `StoreFailedError`.
    """
    lacking = RangeSet()
    while not is_cancelled():
        wanted = store.missing if among is None else common(store.missing, among)
        ranges = [*islice(minus(wanted, lacking), FETCH_RANGES_MAX)]
        if not ranges:
            break
        got_any = False
        # Whoever stops half way ends the call, too.
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
                # Not faster than the disk: what isn't on it is in memory.
                await store.wait_room()
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
