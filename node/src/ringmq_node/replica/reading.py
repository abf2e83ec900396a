"""Reading a queue's bodies for consumers and for other members of the ring.

A read stops before the first missing body. If it skipped that body, the reader would take a
damaged message for an acknowledged one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ringmq_base.ranges import RangeSet
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.run import Run
from ringmq_node.storage import CorruptError, QueueStore, StoreError


def read_whole(
    store: QueueStore, first: int, last: int, *, bytes_max: int, messages_max: int, ahead: bool
) -> list[Run]:
    """`store.fetch` (if `ahead`) or `store.read`, up to the first position that is missing.

    Returns at most `bytes_max` of bodies and properties together, except that the first message
    may have any size; nothing if the first live message is missing. A body that is found damaged
    counts as missing from then on. Raises `StoreError`.
    """
    read = store.fetch if ahead else store.read
    while True:
        gaps = store.missing.intersection(first, last) if store.missing else []
        stop = gaps[0][0] - 1 if gaps else last
        if stop < first:
            return []
        before = len(store.missing)
        try:
            runs = read(first, stop, bytes_max=bytes_max, messages_max=messages_max)
        except CorruptError:
            if len(store.missing) == before:
                raise
            continue
        # Loading a segment may have found damaged entries, which `read` then passed over: read
        # again, up to the first of them.
        if len(store.missing) == before:
            return _cut(runs, bytes_max)


def _cut(runs: list[Run], bytes_max: int) -> list[Run]:
    """Cuts `runs` at `bytes_max`, properties included.

    The store can't do this: it has no sizes of properties in memory, and counts bodies only.
    """
    left = bytes_max
    for index, run in enumerate(runs):
        size = run.block.sent_bytes()
        if size > left:
            stop = max(run.block.fit_sent(left), 0 if index else 1)
            last = [replace(run, block=run.block.slice(0, stop))] if stop else []
            return runs[:index] + last
        left -= size
    return runs


class MasterBodies:
    """The store, as the master's core reads it (`queue.master.Messages`).

    One damaged body is a missing message. An error that makes the store unreadable as a whole is
    reported to `failed`, and raised as `BrokerError`.
    """

    def __init__(self, store: QueueStore, failed: Callable[[StoreError], None]) -> None:
        self._store = store
        self._failed = failed

    @property
    def missing(self) -> RangeSet:
        return self._store.missing

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        return self._read(first, last, bytes_max, messages_max, ahead=True)

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        return self._read(first, last, bytes_max, messages_max, ahead=False)

    def _read(
        self, first: int, last: int, bytes_max: int, messages_max: int, *, ahead: bool
    ) -> list[Run]:
        with self._failing():
            return read_whole(
                self._store,
                first,
                last,
                bytes_max=bytes_max,
                messages_max=messages_max,
                ahead=ahead,
            )

    def bytes_in(self, first: int, last: int) -> int:
        return self._store.bytes_in(first, last)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._failed(error)
            raise BrokerError(Reason.STORE_FAILED, str(error)) from error
