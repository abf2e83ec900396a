"""The publishers and consumers of a queue, as its master sees them: the same for every door.

A session is the door's end of a publish or consume stream. The replica calls it on the event loop;
no method may block, await or raise. A session hears `moved` (or `ended`) exactly once, unless it
was closed before, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_base.ranges import Range
from ringmq_node.model.reasons import Reason
from ringmq_node.queue.run import Run


class PublisherSession(Protocol):
    def confirmed(self, sequences: Sequence[Range]) -> None:
        """These sequences are safe: on disk at every synchronised member of the ring."""
        ...

    def moved(self, reason: Reason) -> None:
        """This replica takes nothing more from the session; unconfirmed publishes are unknown."""
        ...


class ConsumerSession(Protocol):
    def delivered(self, runs: Sequence[Run]) -> None:
        """These messages are the consumer's until it settles them or its session is closed."""
        ...

    def settled(self, positions: Sequence[Range]) -> None:
        """The removal of these positions is safe: they will never be delivered again."""
        ...

    def moved(self, reason: Reason) -> None:
        """This replica delivers nothing more; unsettled messages will be delivered again."""
        ...

    def active_changed(self, *, active: bool) -> None:
        """Only one consumer of this queue is given messages: whether it is this one."""
        ...

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        """Whether a message, of this size, waits because of the consumer's share of a window."""
        ...

    def ended(self, reason: Reason) -> None:
        """As `moved`, but for this consumer alone: the queue is where it was."""
        ...
