"""Runs of live messages, cut out of the blocks of a queue's entries."""

from __future__ import annotations

from collections.abc import Iterator

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
    for entry, low, high, is_redelivered, count in _parts(bodies, state, first, last):
        if runs and entry.bytes_of(low, low) > bytes_max:
            break
        if runs and bytes_max <= enough and entry.bytes_of(low, high) > bytes_max:
            # Cutting a block costs a copy of it. Left out here, it comes whole the next time.
            break
        block = bodies.block_of(entry, keep=keep)
        start = low - entry.first + entry.start
        stop = min(start + high - low + 1, start + messages_max, block.fit(start, bytes_max))
        part = block.slice(start, stop)
        runs.append(Run(low, part, entry.transient, is_redelivered, count))
        bytes_max -= part.body_bytes()
        messages_max -= part.count
        if low + part.count <= high or messages_max <= 0:
            break
    return runs


def _parts(
    bodies: Bodies, state: ReplicatedState, first: int, last: int
) -> Iterator[tuple[IndexEntry, int, int, bool, int]]:
    """Live positions of `first..last`, cut where the entry or the count changes, or redelivered
    ones begin."""
    counts = state.counts
    for entry, low, high in bodies.parts(first, last):
        for a, b in state.redelivered.intersection(low, high):
            if low < a:
                yield entry, low, a - 1, False, 0
            for start, stop, count in counts.parts(a, b):
                yield entry, start, stop, True, count
            low = b + 1
        if low <= high:
            yield entry, low, high, False, 0
