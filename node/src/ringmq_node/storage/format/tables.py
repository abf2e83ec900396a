"""Which bodies a record has: what its tables say, without the bodies themselves.

A `Body` stands for consecutive messages of one record that are in one block, wherever that
block is: in the record, or in the message store. It is what recovery chooses among, and
becomes an `IndexEntry` of the index, whole or in part, when it is chosen.

Tables that don't add up to the record's length, or say what can't be, are a `ValueError`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import block
from ringmq_node.storage.format import checkpoint, references
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    Header,
)
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.queue.index import IndexEntry, QueueFile, alike

# Positions, op numbers and generations are below; so they can be counted on from anywhere.
NUMBER_MAX: Final = 1 << 62

_ONE_BODY = struct.Struct("<HBBII")
_MAGIC_AND_VERSION = (block.MAGIC, block.VERSION)


class Body(NamedTuple):
    """Messages at `first..last`, the first of which is number `start` of their block."""

    first: int
    last: int
    start: int
    body_bytes: int
    # From `first` on. None: all alike.
    sizes: array[int] | None
    location: RecordLocation | None
    transient: bool
    # Of the journal in which it was logged.
    generation: int
    # The index record, with its header.
    offset: int
    length: int

    def entry(self, file: QueueFile, first: int, last: int, live: int) -> IndexEntry:
        """An entry for `first..last`, of which `live` are live."""
        whole = IndexEntry(
            first=self.first,
            last=self.last,
            start=self.start,
            live=live,
            transient=self.transient,
            generation=self.generation,
            file=file,
            offset=self.offset,
            length=self.length,
            body_bytes=self.body_bytes,
            block=None,
            sizes=None if self.sizes is None else alike(self.sizes),
            durable=True,
            location=self.location,
        )
        if first == self.first and last == self.last:
            return whole
        return whole.part(first, last, live)

    def bytes_of(self, first: int, last: int) -> int:
        """Bytes of the bodies of `first..last`, which are all in it."""
        if first == self.first and last == self.last:
            return self.body_bytes
        if self.sizes is None:
            return self.body_bytes // (self.last - self.first + 1) * (last - first + 1)
        return sum(self.sizes[first - self.first : last - self.first + 1])


# A body that was chosen, for `first..last`, and how many of these are live.
Choice = tuple[Body, int, int, int]


def embedded(
    header: Header, payload: bytes, at: int, length: int, first: int, generation: int
) -> Body:
    """The messages of the block of `length` bytes whose tables are at `at` in `payload`."""
    if length < block.HEADER.size + 4 or len(payload) < at + block.HEADER.size + 4:
        raise ValueError(f"block of {length} bytes is shorter than its header")
    magic, version, kind, count, size = _ONE_BODY.unpack_from(payload, at)
    if (magic, version) != _MAGIC_AND_VERSION:
        raise ValueError(f"block begins with magic {magic:#x}, version {version}")
    sizes: array[int] | None = None
    if count == 1 and kind == block.PROPERTIES_NONE:
        end = _ONE_BODY.size + size
    else:
        sizes, size, end = _sizes(payload, at, kind, count)
    if end != length:
        raise ValueError(f"block has {length} bytes, its tables say {end}")
    if first + count > NUMBER_MAX:
        raise ValueError(f"message at position {first}")
    return Body(
        first,
        first + count - 1,
        0,
        size,
        sizes,
        None,
        bool(header.flags & FLAG_TRANSIENT),
        generation,
        header.offset,
        header.end - header.offset,
    )


def tables_bytes(payload: bytes, at: int) -> int:
    """How long the header and the tables are of the block at `at`, by its header."""
    if len(payload) < at + block.HEADER.size:
        return block.HEADER.size
    _, _, kind, count = block.HEADER.unpack_from(payload, at)
    return block.HEADER.size + 4 * _table_count(kind, count)


def _table_count(kind: int, count: int) -> int:
    if not 1 <= count <= block.COUNT_MAX or kind > block.PROPERTIES_EACH:
        raise ValueError(f"block with {count} messages, properties kind {kind}")
    return count + (0, 1, count)[kind]


def _sizes(payload: bytes, at: int, kind: int, count: int) -> tuple[array[int], int, int]:
    """The sizes of the bodies, their sum, and how long the tables say that the block is."""
    begin = at + block.HEADER.size
    tables = _table_count(kind, count)
    if len(payload) < begin + 4 * tables:
        raise ValueError(f"block of {len(payload) - at} bytes ends within its tables")
    sizes = _numbers(payload[begin : begin + 4 * count])
    total = sum(sizes)
    end = block.HEADER.size + 4 * tables + total
    if tables > count:
        end += sum(_numbers(payload[begin + 4 * count : begin + 4 * tables]))
    return sizes, total, end


def _numbers(data: bytes) -> array[int]:
    numbers = array("I", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def stored(header: Header, table: bytes, first: int, generation: int) -> list[Body]:
    """The messages of a table of references, which is all of `table`."""
    bodies: list[Body] = []
    for reference in references.decode(table):
        count = len(reference.sizes)
        if first + count > NUMBER_MAX or reference.start + count > block.COUNT_MAX:
            raise ValueError(f"reference to message {reference.start} for position {first}")
        place = reference.location
        before = FILE_HEADER.size + place.ordinal * RECORD_HEADER_BYTES
        if place.offset < before or place.length <= RECORD_HEADER_BYTES:
            # Whoever counts references makes room for as many records as there are before it.
            raise ValueError(f"reference to record {place.ordinal} at {place.offset}")
        bodies.append(
            Body(
                first,
                first + count - 1,
                reference.start,
                sum(reference.sizes),
                reference.sizes,
                reference.location,
                bool(header.flags & FLAG_TRANSIENT),
                generation,
                header.offset,
                header.end - header.offset,
            )
        )
        first += count
    return bodies


def choose(
    bodies: Iterable[Body],
    live: RangeSet,
    missing: RangeSet,
    covered: RangeSet,
    cuts: tuple[Cut, ...],
) -> list[Choice]:
    """What of `bodies` stands for positions that are live, not missing and not `covered` yet.

    Each position once: the first body that has it is taken. `covered` is added to. One that a
    cut has made void doesn't count.
    """
    chosen: list[Choice] = []
    # What is covered and isn't in the set yet; nothing that is covered is behind `run_last`.
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
            # All of it is wanted, as nearly always.
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
    body: Body, first: int, last: int, live: RangeSet, missing: RangeSet, covered: RangeSet
) -> list[Choice]:
    fresh = RangeSet(live.intersection(first, last))
    fresh.subtract(missing.intersection(first, last))
    fresh.subtract(covered.intersection(first, last))
    if not fresh:
        return []
    # Dead positions within are carried along, those that another entry has are not.
    low, high = fresh.first, fresh.last
    if covered.intersection(low, high) or missing.intersection(low, high):
        parts = fresh.intersection(low, high)
    else:
        parts = [(low, high)]
    covered.update(fresh)
    return [(body, a, b, sum(y - x + 1 for x, y in fresh.intersection(a, b))) for a, b in parts]


def live_bytes(choice: Choice, live: RangeSet) -> int:
    """Bytes of the live bodies of a choice."""
    body, first, last, count = choice
    if count == last - first + 1:
        return body.bytes_of(first, last)
    return sum(body.bytes_of(a, b) for a, b in live.intersection(first, last))
