"""Which producers a queue remembers: the master decides, and its ops tell all replicas.

What a replica forgets has to be the same on all of them, or after a failover a producer would be
told another last sequence. So nothing here depends on a mirror's clock or settings. The master says
the time in an op (`NoteTime`), from which each replica knows when a producer has published last,
and names the producers to forget in another one (`Forget`): those that are too old or too many, and
those that have ended.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, takewhile
from typing import Protocol

from ringmq_gm import Ring, RingFailedError
from ringmq_node.queue import ops
from ringmq_node.queue.ops import Forget, NoteTime, Op, Use
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.refusals import takes_nothing
from ringmq_node.storage import QueueStore

# How long a new master remembers all producers, and any master those that were connected: a client
# whose stream broke comes back, and sends its unconfirmed messages again. Longer than the time that
# it has for that by default (30 s).
FORGET_AFTER_S = 60.0


class RememberingReplica(Protocol):
    """The replica, as this module uses it."""

    @property
    def queue_name(self) -> str: ...
    @property
    def store(self) -> QueueStore: ...
    @property
    def ring(self) -> Ring: ...
    @property
    def mastership(self) -> Mastership | None: ...
    def multicast(self, op: Op) -> int: ...


class Clock(Protocol):
    """The node's."""

    @property
    def time_step_ms(self) -> int:
        """How exactly replicas know when a producer has published last, in milliseconds."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class Remembering:
    """Of one replica."""

    def __init__(self, replica: RememberingReplica, clock: Clock) -> None:
        # It has this object: no cycle, which would stay in memory when the queue is gone.
        self._replica: RememberingReplica = weakref.proxy(replica)
        self._clock = clock
        # On the loop's clock; of no meaning while there is no mastership.
        self._forgets_from = 0.0

    def taken_over(self, mastership: Mastership) -> None:
        self._forgets_from = asyncio.get_running_loop().time() + FORGET_AFTER_S
        mastership.publish_sessions.on_many_ended = self.forget_ended

    def note_time(self) -> None:
        """As the master, before a producer's publish: has all replicas know about when it is.

        Only now and then, and only for publishes: a quiet queue sends nothing for it. Raises
        `BrokerError` if the ring takes nothing after that.
        """
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._replica.store.state.time_ms) < self._clock.time_step_ms:
            return
        self._replica.multicast(NoteTime(now_ms))
        refusal = self._replica.ring.refusal()
        if refusal is not None:
            # This op has made the ring full.
            raise takes_nothing(self._replica.queue_name, refusal)

    def note_use(self) -> None:
        """As the master: has all replicas know that the queue has had a consumer. If the ring takes
        nothing now, the caller comes again."""
        if not self._replica.store.state.used and self._replica.ring.refusal() is None:
            self._send(Use())

    def forget(self, producers: int) -> int:
        """As the master: the queue forgets so many producers, those whose last publish is the
        longest ago, but none whose publisher may go on. Returns how many it has forgotten."""
        return self._forget(self._replica.store.state.producers, producers)

    def expire(self, expiry_ms: int) -> int:
        """As the master: the queue forgets the producers whose last publish is so long ago, but
        none whose publisher may go on. Returns how many it has forgotten."""
        before_ms = self._clock.now_ms() - expiry_ms
        times = self._replica.store.state.producer_times
        # In order of their times, so nearly always this looks at the first one only.
        expired = takewhile(lambda producer_id: times[producer_id] <= before_ms, times)
        return self._forget(expired, ops.FORGOTTEN_MAX)

    def forget_ended(self) -> int:
        """As the master: the queue forgets the producers that have said they won't come back. No
        time has to pass for that. Returns how many it has forgotten."""
        mastership = self._replica.mastership
        if mastership is None or self._replica.ring.refusal() is not None:
            return 0
        ended = mastership.publish_sessions.take_ended(self._replica.store.state.producers)
        if ended:
            self._send(Forget(tuple(ended)))
        return len(ended)

    def _forget(self, producer_ids: Iterable[bytes], producers: int) -> int:
        mastership = self._replica.mastership
        # Not kept for later if the ring refuses it: a producer might be told its last sequence
        # in between.
        if mastership is None or self._replica.ring.refusal() is not None:
            return 0
        # After a take-over clients take a while to come: all producers look disconnected.
        now = asyncio.get_running_loop().time()
        if now < self._forgets_from:
            return 0
        sessions = mastership.publish_sessions
        sessions.forget_left(now - FORGET_AFTER_S)
        gone = (each for each in producer_ids if not sessions.may_go_on(each))
        forgotten = tuple(islice(gone, min(producers, ops.FORGOTTEN_MAX)))
        if forgotten:
            self._send(Forget(forgotten))
        return len(forgotten)

    def _send(self, op: Op) -> None:
        """For those that look after all queues: a replica that raises at this op harms no other."""
        with suppress(RingFailedError):
            self._replica.multicast(op)
