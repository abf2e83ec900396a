"""The publish sessions of one mastership: at most one for each producer id.

A producer's sequences tell new messages from repeated ones (guarantee G4). That works only if the
last sequence that a producer is told is true, and stays true until it publishes:

* no earlier batch comes in after the answer. So a newer session of a producer ends the earlier
  one, and batches that wait on the earlier stream are refused;
* nothing that the answer counts is lost later, and no other master has more. So the answer waits
  for a trip around the ring that begins after the question (`queue.barriers`). Until then an
  `OpeningSession` has the session's place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence

from ringmq_base.ranges import Range
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.ops import FORGOTTEN_MAX
from ringmq_node.replica.sessions import PublisherSession

# Producers that have left and may come back. Of more, the first that left count as gone.
LEFT_MAX = 10_000
# Producers that have ended, and that the queue still remembers: they are forgotten together, by one
# op. Of more than that, the first to end stay until they expire.
ENDED_TOGETHER = 100
ENDED_MAX = FORGOTTEN_MAX


class OpeningSession:
    """A session that waits for its answer. It has published nothing, so nothing is confirmed."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        # Done when the trip is; fails with a `BrokerError` if the session is ended before.
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirmed(self, sequences: Sequence[Range]) -> None:
        pass

    def moved(self, reason: Reason) -> None:
        if not self.reached.done():
            self.reached.set_exception(
                BrokerError(
                    reason,
                    f"queue {self._queue!r}: ended before it was known how far this producer is",
                    queue=self._queue,
                )
            )


class Publishers:
    """Sessions by the number that the mastership gave them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._sessions: dict[int, PublisherSession] = {}
        # By producer id, the only session that may publish for it.
        self._current: dict[bytes, int] = {}
        # When the last session of a producer ended, on the loop's clock; in order of these times.
        self._left: dict[bytes, float] = {}
        # Producers that have said that they won't publish again, in order.
        self._ended: dict[bytes, None] = {}
        # Called when many have.
        self.on_many_ended: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, number: int, session: PublisherSession, producer_id: bytes) -> None:
        """Registers the session; an earlier one of the same producer hears that it has moved."""
        self._sessions[number] = session
        if not producer_id:
            return
        self._ended.pop(producer_id, None)
        earlier = self._current.get(producer_id)
        self._current[producer_id] = number
        fenced = None if earlier is None else self._sessions.pop(earlier, None)
        if fenced is not None:
            fenced.moved(Reason.PRODUCER_FENCED)

    def opened(self, number: int, session: PublisherSession) -> None:
        """The trip that the opening has waited for is over: `session` takes its place."""
        assert isinstance(self._sessions[number], OpeningSession), number
        self._sessions[number] = session

    def close(self, number: int, producer_id: bytes, *, has_ended: bool = False) -> None:
        """`has_ended`: the producer publishes nothing more, and repeats nothing."""
        self._sessions.pop(number, None)
        # The end of a fenced session's stream must not end its successor's right to publish.
        if self._current.get(producer_id) == number:
            del self._current[producer_id]
            self._left.pop(producer_id, None)
            if has_ended:
                self._end_producer(producer_id)
                return
            self._left[producer_id] = asyncio.get_running_loop().time()
            if len(self._left) > LEFT_MAX:
                del self._left[next(iter(self._left))]

    def _end_producer(self, producer_id: bytes) -> None:
        self._ended[producer_id] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        if len(self._ended) >= ENDED_TOGETHER:
            self.on_many_ended()

    def take_ended(self, known: Container[bytes]) -> list[bytes]:
        """Those among `known`. From now on it is the caller's to have them forgotten."""
        ended = [producer_id for producer_id in self._ended if producer_id in known]
        self._ended.clear()
        return ended

    def get(self, number: int) -> PublisherSession | None:
        return self._sessions.get(number)

    def may_go_on(self, producer_id: bytes) -> bool:
        """Whether a publisher with this producer id is connected, is being opened, or has left not
        long ago: its stream may have broken."""
        return producer_id in self._current or producer_id in self._left

    def forget_left(self, before: float) -> None:
        """Whoever has left before this time, on the loop's clock, will not come back to go on."""
        while self._left and next(iter(self._left.values())) <= before:
            del self._left[next(iter(self._left))]

    def check_current(self, number: int) -> None:
        """Raises `BrokerError` if a newer session of its producer has ended this one."""
        if number not in self._sessions:
            raise BrokerError(
                Reason.PRODUCER_FENCED,
                f"queue {self._queue!r}: a newer stream has this producer id",
                queue=self._queue,
            )

    def end(self, reason: Reason) -> None:
        """Every session hears that the queue has moved."""
        # A session that is told may close itself at once: it must not find itself registered.
        sessions, self._sessions = self._sessions, {}
        self._current.clear()
        for session in sessions.values():
            session.moved(reason)
