"""The clock of one mastership: deadlines of its messages, and of the queue itself.

`queue.expiry` knows which messages have expired; here is the timer that has it look. The queue's
own deadline is `expires_ms` after it was used last: after its last consumer left, after a get, a
look or another declare, and after this mastership began. So a failover gives it another whole term:
only the old master knew when it was used last. Publishing is no use, as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakMethod

from ringmq_base.ranges import Range
from ringmq_base.timer import Timer
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue import expiry
from ringmq_node.queue.master import QueueMaster

# A timer is on the loop's clock, and deadlines on the machine's, which may be set meanwhile.
LOOK_S_MAX = 60.0
# An unused queue that couldn't be deleted, as the registry is away for example, is tried again.
UNUSED_RETRY_S = 1.0


class FullQueueRefusal(BrokerError):
    """The messages with these sequences weren't enqueued: the queue has its length."""

    def __init__(self, queue: str, sequences: Sequence[Range]) -> None:
        super().__init__(
            Reason.QUEUE_FULL,
            f"queue {queue!r} is full, and refuses publishes until messages have left it",
            queue=queue,
        )
        self.sequences = sequences


class Upkeep:
    """Of one mastership. `expire` is called when messages may have expired, `unused` when the queue
    is to be deleted."""

    def __init__(
        self,
        queue: QueueMaster,
        rules: QueueRules,
        now_ms: Callable[[], int],
        expire: Callable[[], None],
        unused: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._now_ms = now_ms
        # The deadline that the timer is set for; None: it isn't.
        self.set_to_ms: int | None = None
        # Weak: no cycle, which would stay in memory when the queue is gone.
        self._expire = WeakMethod(expire)
        self._unused = unused
        self._timer = Timer(self._look)
        self._unused_timer = Timer(self._look_for_use)
        self._consumers = 0
        # On the loop's clock.
        self._used_s = 0.0
        self._expires_ms: int | None = None
        self.configure(rules)

    def configure(self, rules: QueueRules) -> None:
        """As often as anything of the cluster's settings changes: that is no use of the queue."""
        self._ttl_ms = rules.message_ttl_ms
        if rules.expires_ms != self._expires_ms:
            self._expires_ms = rules.expires_ms
            self.used()

    def end(self) -> None:
        self._timer.cancel()
        self._unused_timer.cancel()
        # A timer has a method of its owner: a cycle, which would outlive the queue.
        self._timer = self._unused_timer = Timer(lambda: None)
        self._expires_ms = None

    # --- messages ---

    def deadline(self, ttl_ms: int | None) -> int | None:
        """When a message with this time to live that is published now expires (`queue.expiry`)."""
        if self._ttl_ms is None and ttl_ms is None:
            return None
        return expiry.deadline(self._now_ms(), self._ttl_ms, ttl_ms)

    def set_timer(self) -> None:
        """The next deadline is another one."""
        next_ms = self.set_to_ms = self._queue.keeping.expiry.next_ms
        if next_ms is None:
            self._timer.cancel()
            return
        left_s = max(0.0, (next_ms - self._now_ms()) / 1000)
        now_s = asyncio.get_running_loop().time()
        self._timer.set_at(now_s + min(left_s, LOOK_S_MAX))

    def _look(self) -> None:
        self.set_to_ms = None
        expire = self._expire()
        if expire is not None:
            expire()

    # --- the queue ---

    @property
    def counts_use(self) -> bool:
        return self._expires_ms is not None

    def look_at_consumers(self) -> None:
        """Some may have come, or the last one gone."""
        consumers = len(self._queue.consumers)
        if consumers != self._consumers:
            self._consumers = consumers
            self.used()

    def used(self) -> None:
        """The queue is used now."""
        if self._expires_ms is None:
            self._unused_timer.cancel()
            return
        self._used_s = asyncio.get_running_loop().time()
        self._unused_timer.set_at(self._used_s + self._expires_ms / 1000)

    @property
    def is_unused(self) -> bool:
        """Whether nobody has used the queue for as long as it may be."""
        return (
            self._expires_ms is not None
            and not len(self._queue.consumers)
            and asyncio.get_running_loop().time() >= self._used_s + self._expires_ms / 1000
        )

    def _look_for_use(self) -> None:
        if len(self._queue.consumers) or self._expires_ms is None:
            return
        self._unused()
        # Until the mastership ends, which it does with the queue.
        now_s = asyncio.get_running_loop().time()
        self._unused_timer.set_at(now_s + UNUSED_RETRY_S)
