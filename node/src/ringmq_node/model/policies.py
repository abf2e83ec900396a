"""Policies: the wishes of operators for queues and exchanges whose names match a pattern. Pure.

A policy is for the queues of its vhost, for its exchanges, or for both (`ApplyTo`). Of those whose
pattern matches a name, the one with the highest priority applies, the first by name among equals.
Policies are never added to each other: one for all hides one for exchanges with a lower priority.
An *operator policy* is matched by itself, in the same way, and bounds the wishes of the other one.

`wanted_of` merges the declaration's arguments, the policy and the operator policy into the
queue's wanted settings, key by key:

* `mirrors` and `min_insync`: the policy's; the argument counts where the policy says nothing. An
  operator policy allows no more mirrors than its own, on nodes that it names. Its `min_insync` is
  a floor, as it is there so that nobody weakens the promise that these queues give.
* `master_locator` and `mode`: the argument's, else the policy's, else the operator policy's.
* `sync_mode`: the operator policy's, else the policy's. `sync_rate_bytes_max`: the lower one.
* `forced_promotion`: refused if either of them refuses it.
* the rules of messages, such as `max_length`: see `model.rules`.

Exchanges have one key, `alternate_exchange`, and `exchange_wanted_of` merges it: the declaration's
counts, else the policy's. Operator policies are for queues alone.

Mirroring is the policies' business, as in RabbitMQ: an operator knows the nodes, and can change a
policy later, while a declaration is for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

from ringmq_node.model.names import (
    DEFAULT_VHOST,
    check_name,
    check_vhost,
    join_name,
    shown,
    split_name,
)
from ringmq_node.model.patterns import Pattern, compiled
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import REPLICAS_MAX, MasterLocator, QueueMode, QueueRecord
from ringmq_node.model.rules import NO_RULES, QueueRules, check_offered, merged
from ringmq_node.model.settings import SyncMode, SyncSettings
from ringmq_node.model.topology import ExchangeRecord

T = TypeVar("T")

# Replicas of a queue of which neither a declaration nor a policy says how many.
REPLICAS_DEFAULT = 3
NAME_BYTES_MAX = 255
PATTERN_BYTES_MAX = 1024
PRIORITY_MAX = 2**31 - 1
# Policies and operator policies, each: every declaration looks at all of them.
POLICIES_MAX = 1000
NODES_NAMED_MAX = 64
RATE_BYTES_MIN = 1024
RATE_BYTES_MAX = 2**50


class ApplyTo(Enum):
    """What a policy is for; the values are RabbitMQ's."""

    QUEUES = "queues"
    EXCHANGES = "exchanges"
    ALL = "all"


class ForcedPromotion(Enum):
    """Whether an operator may make a replica the master that may lack confirmed messages. Without
    an operator none is ever made the master."""

    ALLOWED = "allowed"
    REFUSED = "refused"


class PolicyError(ValueError):
    """These values are not a policy."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Which nodes should hold a replica: at most `count` of `nodes`; None is all of them."""

    count: int | None = None
    nodes: tuple[str, ...] | None = None

    def pool(self, known: Collection[str]) -> list[str]:
        """The nodes that may hold a replica."""
        return [node for node in known if self.nodes is None or node in self.nodes]

    def bounded_by(self, other: Mirrors) -> Mirrors:
        """Those of these that an operator policy's `other` allows."""
        counts = [count for count in (self.count, other.count) if count is not None]
        nodes = self.nodes
        if other.nodes is not None:
            both = tuple(node for node in nodes or () if node in other.nodes)
            nodes = both or other.nodes
        return Mirrors(min(counts, default=None), nodes)

    def __str__(self) -> str:
        count = "all" if self.count is None else f"exactly {self.count}"
        if self.nodes is None:
            return count
        named = ",".join(self.nodes)
        return f"nodes {named}" if self.count is None else f"{count} of {named}"


@dataclass(frozen=True, slots=True)
class PolicyDefinition:
    """The keys of one policy; None leaves a key to others."""

    mirrors: Mirrors | None = None
    min_insync: int | None = None
    sync_mode: SyncMode | None = None
    sync_rate_bytes_max: int | None = None
    master_locator: MasterLocator | None = None
    forced_promotion: ForcedPromotion | None = None
    mode: QueueMode | None = None
    rules: QueueRules = NO_RULES
    # The one key of exchanges: a name of the policy's vhost.
    alternate_exchange: str | None = None

    def facts(self) -> dict[str, str]:
        """The keys that are set, as texts for people."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["rules"]
        said = {name: _text(value) for name, value in values.items() if value is not None}
        return said | self.rules.facts()


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


@dataclass(frozen=True, slots=True)
class Policy:
    """`is_operator`: it bounds the wishes of policies without that mark."""

    name: str
    pattern: str
    priority: int
    definition: PolicyDefinition
    is_operator: bool = False
    vhost: str = DEFAULT_VHOST
    apply_to: ApplyTo = ApplyTo.QUEUES
    matcher: Pattern = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raises `BrokerError` for values that can't be a policy's."""
        check_vhost(self.vhost)
        _check_text("name", self.name, NAME_BYTES_MAX)
        _check_text("pattern", self.pattern, PATTERN_BYTES_MAX)
        if abs(self.priority) > PRIORITY_MAX:
            raise bad_request(f"priority {self.priority} is beyond 32 bits", field="priority")
        check_definition(self.definition)
        self._check_apply_to()
        object.__setattr__(self, "matcher", compiled(self.pattern))

    def _check_apply_to(self) -> None:
        alternate = self.definition.alternate_exchange
        if self.apply_to is ApplyTo.QUEUES:
            if alternate is not None:
                raise bad_request(
                    "alternate_exchange is a key of exchanges: apply it to exchanges or all",
                    field="alternate_exchange",
                )
        elif self.is_operator:
            raise bad_request("an operator policy is for queues alone", field="apply_to")
        elif self.apply_to is ApplyTo.EXCHANGES:
            others = replace(self.definition, alternate_exchange=None).facts()
            if others:
                raise bad_request(
                    f"{min(others)} is a key of queues: apply the policy to queues or all",
                    field="apply_to",
                )

    def matches(self, name: str) -> bool:
        """`name` is an internal one (`model.names`); the pattern is for the name in the vhost.
        Nothing else looks at a pattern."""
        vhost, name = split_name(name)
        return vhost == self.vhost and self.matcher.search(name) is not None

    def __str__(self) -> str:
        return policy_said(self.vhost, self.name, is_operator=self.is_operator)

    def to_json(self) -> dict[str, Any]:
        definition = self.definition
        mirrors = definition.mirrors
        values = {
            "mirrors": mirrors and {"count": mirrors.count, "nodes": mirrors.nodes},
            "min_insync": definition.min_insync,
            "sync_mode": definition.sync_mode and definition.sync_mode.value,
            "sync_rate_bytes_max": definition.sync_rate_bytes_max,
            "master_locator": definition.master_locator and definition.master_locator.value,
            "forced_promotion": definition.forced_promotion and definition.forced_promotion.value,
            "mode": definition.mode and definition.mode.value,
            "rules": definition.rules.to_json() or None,
            "alternate_exchange": definition.alternate_exchange,
        }
        return {
            "vhost": self.vhost,
            "name": self.name,
            "pattern": self.pattern,
            "priority": self.priority,
            "is_operator": self.is_operator,
            "apply-to": self.apply_to.value,
            "definition": {name: value for name, value in values.items() if value is not None},
        }

    @classmethod
    def from_json(cls, value: Any) -> Policy:
        """Raises `PolicyError`."""
        try:
            return cls(
                value["name"],
                value["pattern"],
                value["priority"],
                _definition(value["definition"]),
                _checked(value["is_operator"], bool),
                value["vhost"],
                ApplyTo(value.get("apply-to", ApplyTo.QUEUES.value)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, BrokerError) as error:
            raise PolicyError(f"not a policy: {error!r}") from error


def _checked(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise PolicyError(f"{value!r} is no {kind.__name__}")
    return value


def _definition(value: dict[str, Any]) -> PolicyDefinition:
    unknown = value.keys() - {each.name for each in fields(PolicyDefinition)}
    if unknown:
        raise PolicyError(f"there is no key {min(unknown)!r} of policies")
    mirrors = value.get("mirrors")
    if mirrors is not None:
        nodes = mirrors["nodes"]
        named = None if nodes is None else tuple(_checked(node, str) for node in nodes)
        mirrors = Mirrors(mirrors["count"], named)
    sync_mode, locator = value.get("sync_mode"), value.get("master_locator")
    forced, mode = value.get("forced_promotion"), value.get("mode")
    return PolicyDefinition(
        mirrors,
        value.get("min_insync"),
        None if sync_mode is None else SyncMode(sync_mode),
        value.get("sync_rate_bytes_max"),
        None if locator is None else MasterLocator(locator),
        None if forced is None else ForcedPromotion(forced),
        None if mode is None else QueueMode(mode),
        QueueRules.from_json(value.get("rules", {})),
        value.get("alternate_exchange"),
    )


def _check_text(name: str, text: str, bytes_max: int) -> None:
    size = len(text.encode())
    if not 1 <= size <= bytes_max or not text.isprintable():
        raise bad_request(
            f"a policy's {name} has 1 to {bytes_max} bytes and no control characters; "
            f"this one has {size} bytes",
            field=name,
        )


def check_definition(definition: PolicyDefinition) -> None:
    """Raises `BrokerError` for values that can't be, or contradict each other."""
    mirrors, min_insync = definition.mirrors, definition.min_insync
    if mirrors is not None:
        _check_within("mirrors", mirrors.count, 1, REPLICAS_MAX)
        named = mirrors.nodes
        if named is not None and not 1 <= len(set(named)) == len(named) <= NODES_NAMED_MAX:
            raise bad_request(
                f"mirrors: 1 to {NODES_NAMED_MAX} different nodes can be named, not {named}",
                field="mirrors",
            )
    _check_within("min_insync", min_insync, 1, REPLICAS_MAX)
    most = None if mirrors is None else _most(mirrors)
    if min_insync is not None and most is not None and min_insync > most:
        raise bad_request(
            f"min_insync {min_insync} is above the {most} replicas", field="min_insync"
        )
    rate = definition.sync_rate_bytes_max
    _check_within("sync_rate_bytes_max", rate, RATE_BYTES_MIN, RATE_BYTES_MAX)
    check_offered(definition.rules, declared=False)
    if definition.alternate_exchange is not None:
        check_name(definition.alternate_exchange, "an exchange", field="alternate_exchange")
    if definition == PolicyDefinition():
        raise bad_request("a policy sets one key or more", field="definition")


def _most(mirrors: Mirrors) -> int | None:
    """The most replicas that these allow, as far as that can be said without the cluster."""
    counts = [mirrors.count, None if mirrors.nodes is None else len(mirrors.nodes)]
    return min((count for count in counts if count is not None), default=None)


def _check_within(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise bad_request(f"{name} {value} is not within {low} to {high}", field=name)


def matching(policies: Iterable[Policy], queue: str) -> Policy | None:
    """The policy that applies to a queue of this internal name; None if no pattern matches."""
    return _first(policies, queue, ApplyTo.EXCHANGES)


def _first(policies: Iterable[Policy], name: str, others: ApplyTo) -> Policy | None:
    """Of those that aren't for `others` alone."""
    found = [each for each in policies if each.apply_to is not others and each.matches(name)]
    return min(found, key=lambda policy: (-policy.priority, policy.name), default=None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a queue, by its declaration and the policies that apply to it now."""

    mirrors: Mirrors
    # How many of the cluster's nodes that is, those that are down included.
    replicas: int
    min_insync: int
    sync: SyncSettings = field(default_factory=SyncSettings)
    master_locator: MasterLocator = MasterLocator.MIN_MASTERS
    forced_promotion: ForcedPromotion = ForcedPromotion.ALLOWED
    mode: QueueMode = QueueMode.DEFAULT
    rules: QueueRules = NO_RULES
    # Names, empty if none applies.
    policy: str = ""
    operator_policy: str = ""

    def facts(self) -> dict[str, str]:
        """The settings in force, as texts for people."""
        rate = self.sync.rate_bytes_max
        return PolicyDefinition(
            self.mirrors,
            self.min_insync,
            self.sync.mode,
            rate,
            self.master_locator,
            self.forced_promotion,
            self.mode,
            self.rules,
        ).facts()


NOTHING = PolicyDefinition()


def wanted_of(
    record: QueueRecord, policy: Policy | None, operator: Policy | None, known: Collection[str]
) -> Wanted:
    """The rules of the module. `known` are the nodes that belong to the cluster, up or down.

    More replicas than there are nodes can't be had: `replicas` is what the cluster allows, and
    grows with it. By default `min_insync` is the majority of that, and never above it.
    """
    asked = NOTHING if policy is None else policy.definition
    bound = NOTHING if operator is None else operator.definition
    mirrors = asked.mirrors or Mirrors(record.replicas or REPLICAS_DEFAULT)
    if bound.mirrors is not None:
        mirrors = mirrors.bounded_by(bound.mirrors)
    most = min(len(mirrors.pool(known)), REPLICAS_MAX)
    replicas = max(1, most if mirrors.count is None else min(mirrors.count, most))
    floor = bound.min_insync or 1
    min_insync = max(asked.min_insync or record.min_insync or replicas // 2 + 1, floor)
    rates = [r for r in (asked.sync_rate_bytes_max, bound.sync_rate_bytes_max) if r is not None]
    refused = ForcedPromotion.REFUSED in (asked.forced_promotion, bound.forced_promotion)
    return Wanted(
        mirrors,
        replicas,
        min(min_insync, replicas),
        SyncSettings(
            bound.sync_mode or asked.sync_mode or SyncMode.AUTOMATIC, min(rates, default=None)
        ),
        record.master_locator
        or asked.master_locator
        or bound.master_locator
        or MasterLocator.MIN_MASTERS,
        ForcedPromotion.REFUSED if refused else ForcedPromotion.ALLOWED,
        record.mode or asked.mode or bound.mode or QueueMode.DEFAULT,
        merged(record.rules, asked.rules, bound.rules),
        "" if policy is None else policy.name,
        "" if operator is None else operator.name,
    )


@dataclass(frozen=True, slots=True)
class ExchangeWanted:
    """What counts for an exchange, by its declaration and the policy that applies to it now."""

    # An internal name, or "".
    alternate: str
    # Its name, empty if none applies.
    policy: str = ""


def exchange_wanted_of(record: ExchangeRecord, policies: Iterable[Policy]) -> ExchangeWanted:
    """`policies`: none that is an operator's. The default exchange has none, as it has no alternate
    in RabbitMQ, whatever a policy says."""
    policy = None if record.is_default else _first(policies, record.name, ApplyTo.QUEUES)
    if policy is None:
        return ExchangeWanted(record.alternate)
    asked = policy.definition.alternate_exchange
    alternate = record.alternate or (asked and join_name(policy.vhost, asked)) or ""
    return ExchangeWanted(alternate, policy.name)


def policy_said(vhost: str, name: str, *, is_operator: bool) -> str:
    """For logs and errors."""
    kind = "operator policy" if is_operator else "policy"
    return f"{kind} {shown(join_name(vhost, name))}"


def unknown_policy(vhost: str, name: str, *, is_operator: bool) -> BrokerError:
    said = policy_said(vhost, name, is_operator=is_operator)
    return BrokerError(Reason.POLICY_NOT_FOUND, f"there is no {said}", policy=name, vhost=vhost)


def too_many_policies() -> BrokerError:
    return BrokerError(
        Reason.LIMIT_EXCEEDED,
        f"there are {POLICIES_MAX} policies already, which is the most",
        limit="policies",
    )
