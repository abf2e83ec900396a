"""The features that are measured, as data that both sides can set up.

Every case publishes persistent messages of one size with one window from one publisher, and counts
a message once it is confirmed: so by all the queues that it went to. `plain` is the footing: the
default exchange, one queue, no feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TOPIC_BINDINGS = 10_000
# None is due before a run has ended: what is measured is that each message has a deadline.
TTL_MS = 3_600_000
PRIORITY_MAX = 10
KEY = "orders.eu.paid"


@dataclass(frozen=True, slots=True)
class Binding:
    """Of queue number `queue` of the case, to its exchange."""

    queue: int
    key: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """`exchange` is a type; empty: the default exchange, and the key is the queue's name.

    Every message is routed to the first `reached` of the queues.
    """

    name: str
    exchange: str = ""
    queues: int = 1
    reached: int = 1
    bindings: int = 0
    key: str = ""
    header: tuple[str, str] | None = None
    ttl_ms: int | None = None
    priority: int | None = None

    def each_binding(self) -> Iterator[Binding]:
        """Every binding of the case; `bindings` of them, or one for each queue."""
        if self.exchange == "fanout":
            yield from (Binding(queue) for queue in range(self.queues))
        elif self.exchange == "headers":
            assert self.header is not None
            yield Binding(0, headers=(self.header,))
            for number in range(1, self.queues):
                yield Binding(number, headers=((self.header[0], f"other-{number}"),))
        elif self.exchange == "topic":
            yield Binding(0, "orders.*.paid")
            for number in range(1, self.bindings):
                yield Binding(number % self.queues, f"orders.{number}.#")


CASES = (
    Case("plain"),
    *(Case(f"fan-out to {n}", "fanout", queues=n, reached=n) for n in (1, 3, 10)),
    Case("topic, 10 000 bindings", "topic", bindings=TOPIC_BINDINGS, queues=10, key=KEY),
    Case("headers", "headers", queues=10, header=("region", "eu")),
    Case("TTL per message", ttl_ms=TTL_MS),
    Case("priority", priority=5),
)
