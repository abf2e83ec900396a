"""The search for messages whose bodies the message store has lost.

Compaction reads every record that lives, and so finds damage that no reader has met yet. But it
knows records, not messages. This search goes through the entries of all queues for the messages
that refer to such a record; of a folded segment it reads the headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from ringmq_node.storage.errors import ReadError
from ringmq_node.storage.queue.parts import SharedParts
from ringmq_node.storage.queue.queue_store import QueueStore


class SearchedStore(SharedParts, Protocol):
    """The store whose queues are searched."""

    def has(self, queue: QueueStore) -> bool:
        """Whether the queue is open, and not deleted."""

    def queues(self) -> Sequence[QueueStore]:
        """The queues that are open."""


def look_for_lost(host: SearchedStore) -> Iterator[None]:
    """Makes messages `missing` whose bodies the message store has lost; one step at a time.

    Bodies that are still in memory are left alone. Their loss is noticed by the reader who wants
    them after they have left memory.
    """
    for queue in host.queues():
        for delta in [*queue.bodies.index.deltas.values()]:
            if not host.has(queue):
                break
            if delta.stored and queue.bodies.index.deltas.get(delta.segment.number) is delta:
                # A segment that can't be read just now is left to its next reader.
                with suppress(ReadError):
                    queue.bodies.unfold(delta)
                    _look_at(host, queue, delta.first, delta.last)
                queue.pager.fold()
                yield
        if host.has(queue):
            _look_at(host, queue, 0, queue.state.next_position)
        yield


def _look_at(host: SearchedStore, queue: QueueStore, first: int, last: int) -> None:
    for entry in [*queue.bodies.index.overlapping(first, last)]:
        if entry.location is None or entry.block is not None or not entry.live:
            continue
        report = host.messages(transient=entry.transient).lost(entry.location)
        if report is not None:
            queue.bodies.lose(entry, report)
