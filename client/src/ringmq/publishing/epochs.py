"""The newest epoch of a queue that a client has been told."""

from __future__ import annotations


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
