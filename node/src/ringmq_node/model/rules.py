"""The rules of a queue for its messages, from its declaration and its policies. Pure.

One type for all of them, `QueueRules`: the declared ones (`QueueRecord.rules`), a policy's
(`PolicyDefinition.rules`), and those in force (`Wanted.rules`, the merge of these), which the
queue's master follows. A rule that is None is not set: then it limits nothing.

How two of them are merged (`merged`): of two numbers the smaller one holds, as each of them is a
limit that somebody relies on. Of anything else the declaration's, else the policy's, else the
operator policy's: the program that declares a queue knows the meaning of its messages.

A rule is *offered* (`OFFERED`) once the part that follows it is built. A declaration or policy with
another one is refused: it would be kept, and have no effect. Some rules are for declarations only
(`DECLARED_ONLY`): a queue with messages can't become another kind of queue.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_node.model.reasons import bad_request

# Ten years, which is more than anybody waits; and no deadline in milliseconds overflows.
MILLISECONDS_MAX: Final = 10 * 366 * 86_400_000
COUNT_MAX: Final = 2**53
KEY_BYTES_MAX: Final = 255
PRIORITIES_MAX: Final = 255
# Where delivery counts stay (`queue.counts`).
DELIVERY_LIMIT_MAX: Final = 65_535


class Overflow(Enum):
    """The fate of messages beyond a queue's length. The values are stored in the registry."""

    # The oldest ready messages go.
    DROP_HEAD = "drop-head"
    # The new ones are refused.
    REJECT_PUBLISH = "reject-publish"
    # They are refused, and sent to the queue's dead-letter exchange.
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


@dataclass(frozen=True, slots=True)
class QueueRules:
    """See the module. The names are those of policy keys and arguments."""

    # How long a message may be ready; 0: it goes unless a consumer takes it at once.
    message_ttl_ms: int | None = None
    # How long the queue may be unused before it is deleted.
    expires_ms: int | None = None
    # Ready messages, and bytes of their bodies.
    max_length: int | None = None
    max_length_bytes: int | None = None
    # None: `DROP_HEAD`.
    overflow: Overflow | None = None
    # Names an exchange of the queue's vhost, "" the default one. None: messages are dropped.
    dead_letter_exchange: str | None = None
    # None: the key that the message had.
    dead_letter_routing_key: str | None = None
    # Levels of priority, from 0 to this one. None: all messages are equal.
    max_priority: int | None = None
    # How often a message may come back from a consumer; the next time it leaves the queue.
    delivery_limit: int | None = None
    single_active_consumer: bool | None = None
    # How long a consumer may have a message.
    consumer_timeout_ms: int | None = None

    def __bool__(self) -> bool:
        """Whether any rule is set."""
        return self != NO_RULES

    def facts(self) -> dict[str, str]:
        """The rules that are set, as texts for people."""
        return {name: str(value) for name, value in self.to_json().items()}

    def to_json(self) -> dict[str, Any]:
        """The rules that are set."""
        # Not by `asdict`, which copies each value deeply: a node's declares are written together,
        # and of two thousand of them it held the loop for a tenth of a second.
        values = ((name, getattr(self, name)) for name in _NAMES)
        return {
            name: value.value if isinstance(value, Enum) else value
            for name, value in values
            if value is not None
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> QueueRules:
        """Raises `BrokerError`, which names the key, for what aren't rules."""
        for name in values:
            if name not in _NAMES:
                raise bad_request(f"there is no rule {name!r}", field=str(name))
        rules = cls(**{**values, "overflow": _overflow(values.get("overflow"))})
        rules.check()
        return rules

    def check(self) -> None:
        """Raises `BrokerError` for values that can't be."""
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not (type(value) is int and low <= value <= high):
                raise bad_request(f"{name} {value!r} is not within {low} to {high}", field=name)
        for name, bytes_max in _TEXTS.items():
            text = getattr(self, name)
            if text is not None and not (
                type(text) is str and len(text.encode()) <= bytes_max and text.isprintable()
            ):
                raise bad_request(
                    f"{name} has at most {bytes_max} bytes and no control characters", field=name
                )
        if type(self.single_active_consumer) not in (bool, type(None)):
            raise bad_request(
                f"single_active_consumer is yes or no, not {self.single_active_consumer!r}",
                field="single_active_consumer",
            )


def _overflow(value: Any) -> Overflow | None:
    try:
        return None if value is None else Overflow(value)
    except ValueError:
        names = ", ".join(each.value for each in Overflow)
        raise bad_request(f"overflow is one of {names}, not {value!r}", field="overflow") from None


_NAMES: Final = tuple(field.name for field in fields(QueueRules))
_BOUNDS: Final = {
    "message_ttl_ms": (0, MILLISECONDS_MAX),
    "expires_ms": (1, MILLISECONDS_MAX),
    "max_length": (0, COUNT_MAX),
    "max_length_bytes": (0, COUNT_MAX),
    "max_priority": (1, PRIORITIES_MAX),
    "delivery_limit": (0, DELIVERY_LIMIT_MAX),
    "consumer_timeout_ms": (1, MILLISECONDS_MAX),
}
_TEXTS: Final = {
    "dead_letter_exchange": QUEUE_NAME_BYTES_MAX,
    "dead_letter_routing_key": KEY_BYTES_MAX,
}

NO_RULES: Final = QueueRules()

# The author of the part that follows a rule adds its name here. The command line and the doors
# then offer it too.
OFFERED: Final = frozenset(
    (
        "message_ttl_ms",
        "expires_ms",
        "max_length",
        "max_length_bytes",
        "overflow",
        "dead_letter_exchange",
        "dead_letter_routing_key",
        "max_priority",
        "delivery_limit",
        "single_active_consumer",
        "consumer_timeout_ms",
    )
)
DECLARED_ONLY: Final = frozenset(("max_priority", "single_active_consumer"))


def check_offered(rules: QueueRules, *, declared: bool) -> None:
    """Raises `BrokerError` for values that can't be, and for rules that a declaration
    (`declared`), or else a policy, can't set."""
    rules.check()
    for name in rules.to_json():
        if name not in OFFERED:
            raise bad_request(f"{name} is not offered by this version", field=name)
        if name in DECLARED_ONLY and not declared:
            raise bad_request(
                f"{name} belongs to a queue's declaration, and is no key of policies", field=name
            )
    if (
        declared
        and rules.dead_letter_exchange is None
        and rules.dead_letter_routing_key is not None
    ):
        raise bad_request(
            "a dead_letter_routing_key is of no use without a dead_letter_exchange",
            field="dead_letter_routing_key",
        )


def check_ttl(ttl_ms: int) -> None:
    """Raises `BrokerError` for a time to live that a message can't have."""
    if not 0 <= ttl_ms <= MILLISECONDS_MAX:
        raise bad_request(f"ttl_ms {ttl_ms} is above {MILLISECONDS_MAX}", field="ttl_ms")


def merged(*rules: QueueRules) -> QueueRules:
    """The rules that hold; `rules` in the order of their weight, the declaration's first."""
    given = [each for each in rules if each]
    if len(given) <= 1:
        return given[0] if given else NO_RULES
    values: dict[str, Any] = {}
    for field in fields(QueueRules):
        said = [value for each in given if (value := getattr(each, field.name)) is not None]
        if said:
            values[field.name] = min(said) if field.name in _BOUNDS else said[0]
    return QueueRules(**values)
