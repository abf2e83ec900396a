"""Publisher cores for tests, without a loop. Handles are numbers, properties are text."""

from __future__ import annotations

from ringmq.errors import RingMQError
from ringmq.publishing.answers import Limits, Origin
from ringmq.publishing.core import PublisherCore
from ringmq.publishing.flights import Flight
from ringmq.publishing.tickets import PERSISTENT

Core = PublisherCore[int, str]

LIMITS = Limits(message_bytes_max=1000, batch_bytes_max=1000, batch_messages_max=100)
FAR = 1e9
ORIGIN = Origin("queue-1", 1)


def core_of(window_messages: int = 8, producer_id: bytes | None = None) -> Core:
    return PublisherCore(
        producer_id=producer_id or b"random",
        is_own_id=producer_id is not None,
        window_messages=window_messages,
        window_bytes=10_000,
    )


def bodies_of(flight: Flight[int, str]) -> list[bytes]:
    return [body for part in flight.slices for body in part.bodies]


def submit(core: Core, *bodies: bytes, handle: int = 0, deadline: float = FAR) -> None:
    core.submit(bodies, (), (), PERSISTENT, deadline, handle)


def drain(core: Core) -> list[Flight[int, str]]:
    flights = []
    while (flight := core.next_flight()) is not None:
        flights.append(flight)
        core.check()
    return flights


def outcome(core: Core) -> dict[int, type[RingMQError] | None]:
    return {t.handle: type(t.error) if t.error else None for t in core.take_finished()}


def open_core(core: Core, last_sequence: int = 0) -> None:
    core.opened(last_sequence, LIMITS, ORIGIN)
