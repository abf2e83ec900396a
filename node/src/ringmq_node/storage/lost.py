"""Finding the messages whose bodies the message store has lost.

Compaction reads everything that lives, and so finds damage that nobody has asked for yet. It
knows records, not messages. What is looked at here are the entries of all queues; of a
segment that is folded the headers are read for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from ringmq_node.storage.errors import ReadError
from ringmq_node.storage.queue import bodies
from ringmq_node.storage.queue.queue_store import QueueStore


class Host(bodies.Host, Protocol):
    """What is wanted of the store."""

    def has(self, queue: QueueStore) -> bool:
        """Whether the queue is still there."""

    def queues(self) -> Sequence[QueueStore]:
        """Those that are open."""


def look_for_lost(host: Host) -> Iterator[None]:
    """Step by step: what the message store can't give any more is missing from its queue.

    But for what is in memory: that is noticed when it has been let go of, and is wanted.
    """
    for queue in host.queues():
        for delta in [*queue.bodies.index.deltas.values()]:
            if not host.has(queue):
                break
            if delta.stored and queue.bodies.index.deltas.get(delta.segment.number) is delta:
                # What can't be read just now is noticed when it is wanted.
                with suppress(ReadError):
                    queue.bodies.unfold(delta)
                    _look_at(host, queue, delta.first, delta.last)
                queue.bodies.pager.fold()
                yield
        if host.has(queue):
            _look_at(host, queue, 0, queue.state.next_position)
        yield


def _look_at(host: Host, queue: QueueStore, first: int, last: int) -> None:
    for entry in [*queue.bodies.index.overlapping(first, last)]:
        if entry.location is None or entry.block is not None or not entry.live:
            continue
        report = host.messages(transient=entry.transient).lost(entry.location)
        if report is not None:
            queue.bodies.lose(entry, report)
