"""A call of the user on its way: the ticket that is awaited, and slices of it that travel.

A *ticket* is one call: its bodies, their attributes and one outcome for all of them. A *slice* is
a consecutive part of a ticket. A call of any size is cut into slices that fit into requests, and
slices of small calls share a request. Cutting copies no body: a slice is a ticket and two indexes.
A node refuses a request whole. So a slice that may be the reason is marked `alone` then: it shares
no request any more, or messages of other callers would be refused with it again.

The properties of messages pass through unread. Their sizes come with them, because the window
and the requests are bounded in bytes; so any encoding will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from ringmq.errors import OutcomeUnknownError, RingMQError
from ringmq_base.values import value

#: The cost of a body in a request beside its own bytes: tag, length, and some to spare.
MESSAGE_OVERHEAD_BYTES = 16

H = TypeVar("H")
P = TypeVar("P")


@value
class Attributes:
    """The options that a request has once for all its messages (`asked.MessageOptions`)."""

    transient: bool = False
    routing_key: str = ""
    mandatory: bool = False
    ttl_ms: int | None = None
    priority: int = 0
    exchange: str | None = None
    cc: Sequence[str] = ()
    bcc: Sequence[str] = ()


PERSISTENT = Attributes()


class Ticket(Generic[H, P]):
    """One call of the user. `handle` is given back with the outcome.

    `properties` and `property_sizes`: none, one for all bodies, or one per body.
    """

    __slots__ = (
        "attributes",
        "bodies",
        "deadline",
        "error",
        "failed",
        "handle",
        "properties",
        "property_sizes",
        "remaining",
    )

    def __init__(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[P],
        property_sizes: Sequence[int],
        attributes: Attributes,
        deadline: float,
        handle: H,
    ) -> None:
        self.bodies = bodies
        self.properties = properties
        self.property_sizes = property_sizes
        self.attributes = attributes
        self.deadline = deadline
        self.handle = handle
        #: Bodies that are neither confirmed nor failed. The ticket has ended when it is 0.
        self.remaining = len(bodies)
        #: Why bodies failed; None as long as none did.
        self.error: RingMQError | None = None
        #: Index ranges of the bodies that failed, both ends included.
        self.failed: list[tuple[int, int]] = []

    def confirm(self, count: int) -> bool:
        """Another `count` bodies are confirmed; returns whether this ended the ticket."""
        if self.remaining <= 0:
            return False
        self.remaining -= count
        return self.remaining == 0

    def returned(self, first: int, last: int, error: RingMQError) -> None:
        """No queue has the bodies `first..last`. They are confirmed as well, a moment later."""
        if self.remaining > 0:
            if self.error is None:
                self.error = error
            self.failed.append((first, last))

    def fail(self, first: int, last: int, error: RingMQError) -> bool:
        """The bodies `first..last` have failed; returns whether this ended the ticket."""
        if self.remaining <= 0:
            return False
        # "Unknown" replaces any other error: a caller that repeats a call because one part of it
        # surely failed would publish the part with the unknown outcome twice.
        if self.error is None or isinstance(error, OutcomeUnknownError):
            self.error = error
        self.failed.append((first, last))
        self.remaining -= last - first + 1
        return self.remaining == 0


class Slice(Generic[H, P]):
    """Bodies `start..stop - 1` of a ticket."""

    __slots__ = ("alone", "start", "stop", "ticket")

    def __init__(self, ticket: Ticket[H, P], start: int, stop: int, *, alone: bool = False) -> None:
        self.ticket = ticket
        self.start = start
        self.stop = stop
        #: It shares no request.
        self.alone = alone

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def bodies(self) -> Sequence[bytes]:
        return self.ticket.bodies[self.start : self.stop]

    @property
    def properties(self) -> Sequence[P]:
        """None, one for all bodies of this slice, or one per body."""
        of_ticket = self.ticket.properties
        return of_ticket[self.start : self.stop] if len(of_ticket) > 1 else of_ticket

    def split(self, count: int) -> tuple[Slice[H, P], Slice[H, P]]:
        """The first `count` messages, and the others."""
        middle = self.start + count
        return (
            Slice(self.ticket, self.start, middle, alone=self.alone),
            Slice(self.ticket, middle, self.stop, alone=self.alone),
        )

    @property
    def size_bytes(self) -> int:
        """The cost of all its bodies in requests and in the window: the sum of `sizes`."""
        start, stop = self.start, self.stop
        ticket, count = self.ticket, stop - start
        size = sum(map(len, ticket.bodies[start:stop])) + count * MESSAGE_OVERHEAD_BYTES
        extra = ticket.property_sizes
        if not extra:
            return size
        return size + (sum(extra[start:stop]) if len(extra) > 1 else count * extra[0])

    def sizes(self, stop: int) -> list[int]:
        """The cost of each of the bodies `start..stop - 1`."""
        bodies = self.ticket.bodies[self.start : stop]
        extra = self.ticket.property_sizes
        if len(extra) > 1:
            return [
                len(body) + MESSAGE_OVERHEAD_BYTES + more
                for body, more in zip(bodies, extra[self.start : stop], strict=True)
            ]
        each = MESSAGE_OVERHEAD_BYTES + extra[0] if extra else MESSAGE_OVERHEAD_BYTES
        return [len(body) + each for body in bodies]
