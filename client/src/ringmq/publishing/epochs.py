"""The newest epoch of a queue that a client has been told."""

from __future__ import annotations

from weakref import WeakValueDictionary

# Queues without a publisher whose epochs a client remembers.
KEPT_MAX = 1000


class SeenEpoch:
    """Of one queue name; all publishers of a client that publish to it share one.

    A master that has been replaced without knowing it may have an answer on its way, or be reached
    through a relay that doesn't know either. Nodes wait for a trip around the ring before they
    answer, so this is the second lock on that door: the client can tell the age of an answer
    without asking anybody.
    """

    def __init__(self) -> None:
        self._queue_id = ""
        self._epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def take(self, queue_id: str, epoch: int) -> bool:
        """Notes an answer's epoch; False if a later one of the same queue has been seen.

        `queue_id`: a queue that is deleted and declared anew has another one, and its epochs
        begin anew.
        """
        if queue_id == self._queue_id and epoch < self._epoch:
            return False
        self._queue_id, self._epoch = queue_id, epoch
        return True


class SeenEpochs:
    """By the name of the queue: those of open publishers, and of the `KEPT_MAX` that were asked
    for last. A program that publishes to ever new queues mustn't keep something of each."""

    def __init__(self) -> None:
        self._all: WeakValueDictionary[str, SeenEpoch] = WeakValueDictionary()
        # The last one asked for comes last.
        self._kept: dict[str, SeenEpoch] = {}

    def __len__(self) -> int:
        return len(self._all)

    def of(self, queue: str) -> SeenEpoch:
        """The same object as before, if a publisher has it or it was asked for not long ago."""
        seen = self._all.get(queue)
        if seen is None:
            seen = self._all[queue] = SeenEpoch()
        self._kept.pop(queue, None)
        self._kept[queue] = seen
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return seen
