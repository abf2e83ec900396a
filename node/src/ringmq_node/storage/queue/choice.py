"""Choosing bodies: which of the records found on disk stand for a queue's live positions.

The same position may be found several times: in a segment and in the journal that it was copied
from, or in a record of bodies that were lost and filled in again. The caller gives the records in
the order in which they count, and the first that has a position is taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import between
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile, alike

# A chosen range, its positions `first..last` that are taken, and how many of these are live.
# A plain tuple: recovery makes one for each record of a queue.
Choice = tuple[BodyRange, int, int, int]


def choose(
    bodies: Iterable[BodyRange],
    live: RangeSet,
    missing: RangeSet,
    covered: RangeSet,
    cuts: tuple[Cut, ...],
) -> list[Choice]:
    """The parts of `bodies` that stand for live positions, not missing and not `covered` yet.

    The positions of the parts are added to `covered`. Bodies that a cut has made void don't count.
    """
    chosen: list[Choice] = []
    # Covered positions that aren't in the set yet: one range, which grows while records follow
    # one another, as adding each of them to the set would take most of recovery's time. No
    # covered position is above `run_last`.
    run_first = run_last = covered.last + 1 if covered else 0
    run_last -= 1
    for body in bodies:
        first, last = body.first, body.last
        if cuts:
            limit = checkpoint.keep_below(cuts, body.generation)
            if limit is not None and last >= limit:
                last = limit - 1
                if last < first:
                    continue
        if (
            first > run_last
            and live.contains_all(first, last)
            and not (missing and missing.intersection(first, last))
        ):
            # All of it is wanted: so it is with nearly every record.
            chosen.append((body, first, last, last - first + 1))
            if first != run_last + 1:
                if run_first <= run_last:
                    covered.add(run_first, run_last)
                run_first = first
            run_last = last
            continue
        if run_first <= run_last:
            covered.add(run_first, run_last)
        chosen += _parts(body, first, last, live, missing, covered)
        run_first = max(run_last, covered.last if covered else -1) + 1
        run_last = run_first - 1
    if run_first <= run_last:
        covered.add(run_first, run_last)
    return chosen


def _parts(
    body: BodyRange, first: int, last: int, live: RangeSet, missing: RangeSet, covered: RangeSet
) -> list[Choice]:
    fresh = live.part(first, last)
    fresh.subtract(missing.intersection(first, last))
    fresh.subtract(covered.intersection(first, last))
    if not fresh:
        return []
    # Dead positions within are carried along, as cutting a block costs more than it saves.
    # Positions that another entry has are not: entries of the index must not overlap.
    low, high = fresh.first, fresh.last
    if covered.intersection(low, high) or missing.intersection(low, high):
        parts = fresh.intersection(low, high)
    else:
        parts = [(low, high)]
    covered.update(fresh)
    return [(body, a, b, fresh.count_in(a, b)) for a, b in parts]


def live_bytes(choice: Choice, live: RangeSet) -> int:
    """Body bytes of the live positions of a choice."""
    body, first, last, count = choice
    if count == last - first + 1:
        return body.bytes_of(first, last)
    if body.sizes is None:
        return body.body_bytes // (body.last - body.first + 1) * count
    firsts, lasts = live.bounds(first, last)
    return between([*accumulate(body.sizes, initial=0)], firsts, lasts, -body.first)


def entries_of(choices: Iterable[Choice], file: QueueFile) -> list[IndexEntry]:
    """The chosen parts as entries of the index, in order. `file` is the one they were found in."""
    entries = [_entry(body, file, first, last, live) for body, first, last, live in choices]
    entries.sort(key=lambda entry: entry.first)
    return entries


def _entry(body: BodyRange, file: QueueFile, first: int, last: int, live: int) -> IndexEntry:
    whole = IndexEntry(
        first=body.first,
        last=body.last,
        start=body.start,
        live=live,
        transient=body.transient,
        generation=body.generation,
        file=file,
        offset=body.offset,
        length=body.length,
        body_bytes=body.body_bytes,
        block=None,
        sizes=None if body.sizes is None else alike(body.sizes),
        durable=True,
        location=body.location,
    )
    if first == body.first and last == body.last:
        return whole
    return whole.part(first, last, live)


def lasting(bodies: list[BodyRange], end: int) -> list[BodyRange]:
    """The bodies that still count, ordered so that the one logged last comes first for a position.

    Transient bodies in the message store that this start has found (before offset `end`) don't
    count: the transient store was emptied since, and their positions may have been given out again.
    """
    found = [
        body
        for body in bodies
        if not (body.transient and body.location is not None and body.offset < end)
    ]
    return found if _disjoint(found) else _newest_first(found)


def _disjoint(bodies: list[BodyRange]) -> bool:
    """Whether the ranges are in ascending order and no position is in two of them."""
    behind = 0
    for body in bodies:
        if body.first < behind:
            return False
        behind = body.last + 1
    return True


def _newest_first(bodies: list[BodyRange]) -> list[BodyRange]:
    """For bodies that were lost, or removed and put back, and then filled in again."""
    ascending = sorted(bodies, key=lambda body: body.first)
    if _disjoint(ascending):
        return ascending
    return sorted(bodies, key=lambda body: (body.generation, body.offset), reverse=True)
