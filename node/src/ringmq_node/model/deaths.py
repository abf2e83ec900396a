"""Why a message has left a queue as a dead letter, and the history that it takes along (`x-death`).

A message that is dead-lettered again and again has one entry for each queue and reason, the newest
first, with a count: its history stays short however often it comes round. What a message looked
like at its first death is kept apart, as the oldest entries are dropped when there are too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum


class DeathReason(Enum):
    """The value is what users see; the code is what ops and checkpoints have."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"

    @property
    def code(self) -> int:
        return _CODES[self]

    @classmethod
    def of_code(cls, code: int) -> DeathReason:
        """Raises `ValueError`."""
        try:
            return _BY_CODE[code]
        except KeyError:
            raise ValueError(f"reason of death {code}, known are 1 to {len(_CODES)}") from None


_CODES = {reason: code for code, reason in enumerate(DeathReason, 1)}
_BY_CODE = {code: reason for reason, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class Death:
    """How often a message has left `queue` for `reason`; the other fields are of the first time."""

    reason: str
    queue: str
    count: int
    # Milliseconds since 1970, by the clock of the queue's master.
    at_ms: int
    # As the message was published to the queue.
    exchange: str
    routing_keys: tuple[str, ...]
    # The expiration that it was published with, in milliseconds, if it had one.
    original_expiration_ms: int | None = None


def with_death(deaths: Sequence[Death], death: Death) -> tuple[Death, ...]:
    """The history after one more death, which is in front. `death` says what a first one has."""
    for at, before in enumerate(deaths):
        if (before.queue, before.reason) == (death.queue, death.reason):
            again = replace(before, count=before.count + 1)
            return (again, *deaths[:at], *deaths[at + 1 :])
    return (death, *deaths)


def queues_in_a_cycle(deaths: Iterable[Death]) -> frozenset[str]:
    """The queues that must not get a letter with this history, its newest death first.

    To come back to one of them would close a cycle in which nobody has rejected the message: it
    would go round for ever, by itself. A `rejected` shows that a consumer has had it in between.
    """
    found: set[str] = set()
    for death in deaths:
        if death.reason == DeathReason.REJECTED.value:
            break
        found.add(death.queue)
    return frozenset(found)
