"""Runs of live messages, cut out of the blocks of a queue's entries."""

from __future__ import annotations

from collections.abc import Iterator

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.entries import IndexEntry


def read_runs(
    bodies: Bodies,
    state: ReplicatedState,
    first: int,
    last: int,
    bytes_max: int,
    messages_max: int,
    *,
    keep: bool,
) -> list[Run]:
    """The live messages of `first..last` that are not missing; see `QueueStore.read`.

    With `keep`, blocks that are read from disk stay in memory. Raises `CorruptError`.
    """
    runs: list[Run] = []
    enough = bytes_max // 2
    for entry, low, high, is_transient, is_redelivered, count in _parts(bodies, state, first, last):
        if runs and entry.bytes_of(low, low) > bytes_max:
            break
        if runs and bytes_max <= enough and entry.bytes_of(low, high) > bytes_max:
            # Cutting a block costs a copy of it. Left out here, it comes whole the next time.
            break
        block = bodies.block_of(entry, keep=keep)
        start = low - entry.first + entry.start
        stop = min(start + high - low + 1, start + messages_max, block.fit(start, bytes_max))
        part = block.slice(start, stop)
        runs.append(Run(low, part, is_transient, is_redelivered, count))
        bytes_max -= part.body_bytes()
        messages_max -= part.count
        if low + part.count <= high or messages_max <= 0:
            break
    return runs


def _parts(
    bodies: Bodies, state: ReplicatedState, first: int, last: int
) -> Iterator[tuple[IndexEntry, int, int, bool, bool, int]]:
    """Live positions of `first..last`, cut where the entry or the count changes, and where
    transient or redelivered ones begin or end.

    The state knows which are transient. An entry doesn't: a queue that isn't durable keeps all
    messages as if they were.
    """
    differ = bool(state.transient or state.redelivered)
    for entry, low, high in bodies.parts(first, last):
        if not differ:
            # As in most reads; an entry may be one message.
            yield entry, low, high, False, False, 0
            continue
        for start, stop, is_transient in _cut_by(state.transient, low, high):
            for a, b, is_redelivered in _cut_by(state.redelivered, start, stop):
                if not is_redelivered:
                    yield entry, a, b, is_transient, False, 0
                    continue
                for begin, end, count in state.counts.parts(a, b):
                    yield entry, begin, end, is_transient, True, count


def _cut_by(positions: RangeSet, first: int, last: int) -> list[tuple[int, int, bool]]:
    """`first..last`, cut where `positions` begin or end: first, last, whether it is in them."""
    inside = positions.intersection(first, last) if positions else []
    if not inside:
        return [(first, last, False)]
    parts: list[tuple[int, int, bool]] = []
    for low, high in inside:
        if first < low:
            parts.append((first, low - 1, False))
        parts.append((low, high, True))
        first = high + 1
    if first <= last:
        parts.append((first, last, False))
    return parts
