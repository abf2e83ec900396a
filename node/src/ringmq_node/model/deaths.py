"""Why a message has left a queue as a dead letter, and the history that it takes along (`x-death`).

A message that is dead-lettered again and again has one entry for each queue and reason, the newest
first, with a count: its history stays short however often it comes round. What a message looked
like at its first death is kept apart, as the oldest entries are dropped when there are too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ringmq_node.model.fields import (
    INTEGER_MAX,
    FieldValue,
    Headers,
    array,
    integer,
    table_of,
    text,
    values_of,
)
from ringmq_node.model.reasons import BrokerError, Reason

X_DEATH = "x-death"
X_FIRST = "x-first-death-"
X_LAST = "x-last-death-"


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


@dataclass(frozen=True, slots=True)
class FirstDeath:
    """Of a message's first death of all."""

    reason: str
    queue: str
    exchange: str

    @classmethod
    def of(cls, death: Death) -> FirstDeath:
        return cls(death.reason, death.queue, death.exchange)


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


class ClosesCycleError(BrokerError):
    """Each queue that a letter is routed to is one that must not get it. Nothing was published.

    Not the same as a letter that is routed nowhere: a binding that this node doesn't know of yet
    can't be what is missing.
    """

    def __init__(self, queues: Iterable[str]) -> None:
        names = ", ".join(map(repr, queues))
        super().__init__(Reason.UNROUTABLE, f"they would go round for ever through {names}")


# --- the history as headers: RabbitMQ's `x-death`, exactly ---


def history_headers(deaths: Sequence[Death], first: FirstDeath | None) -> dict[str, FieldValue]:
    """As RabbitMQ 3.13 shows a history to AMQP's clients: names, types and order.

    Java's clients cast a count to 64 bits; times are in seconds.
    """
    if not deaths:
        return {}
    headers = {X_DEATH: array([_death_table(each) for each in deaths])}
    for prefix, which in ((X_FIRST, first), (X_LAST, FirstDeath.of(deaths[0]))):
        if which is not None:
            headers[prefix + "reason"] = text(which.reason)
            headers[prefix + "queue"] = text(which.queue)
            headers[prefix + "exchange"] = text(which.exchange)
    return headers


def _death_table(death: Death) -> FieldValue:
    fields = [
        ("count", integer(min(death.count, INTEGER_MAX))),
        ("reason", text(death.reason)),
        ("queue", text(death.queue)),
        ("time", FieldValue("timestamp", death.at_ms // 1000)),
        ("exchange", text(death.exchange)),
        ("routing-keys", array([*map(text, death.routing_keys)])),
    ]
    if death.original_expiration_ms is not None:
        fields.append(("original-expiration", text(str(death.original_expiration_ms))))
    # Not sorted: clients show this order.
    return FieldValue("table", tuple(fields))


def history_of(headers: Headers) -> tuple[tuple[Death, ...], FirstDeath | None]:
    """The history that a message brings along: it may be a copy that a client has published again.
    What isn't in the shape of `history_headers` counts as not there."""
    deaths = [
        _death_of(fields) for each in values_of(headers.get(X_DEATH)) if (fields := table_of(each))
    ]
    first = [headers.get(X_FIRST + each) for each in ("reason", "queue", "exchange")]
    known = first[0] is not None and first[1] is not None
    return tuple(deaths), FirstDeath(*map(_text_of, first)) if known else None


def _death_of(fields: Headers) -> Death:
    expiration = _text_of(fields.get("original-expiration"))
    return Death(
        reason=_text_of(fields.get("reason")),
        queue=_text_of(fields.get("queue")),
        # RabbitMQ before 3.5 counted nothing.
        count=_number_of(fields.get("count"), 1),
        at_ms=_number_of(fields.get("time"), 0) * 1000,
        exchange=_text_of(fields.get("exchange")),
        routing_keys=tuple(map(_text_of, values_of(fields.get("routing-keys")))),
        original_expiration_ms=int(expiration) if _is_number(expiration) else None,
    )


def _text_of(field: FieldValue | None) -> str:
    return field.value if field is not None and isinstance(field.value, str) else ""


def _number_of(field: FieldValue | None, default: int) -> int:
    """Never one that another format can't hold."""
    if field is None or not isinstance(field.value, int) or not 0 <= field.value < 2**53:
        return default
    return int(field.value)


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) < 16
