"""RabbitMQ's policies and queue arguments as ours. Pure; what can't be mapped is noted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ringmq_node.broker.definitions.node_names import NodeNames
from ringmq_node.broker.definitions.notes import Notes, is_empty
from ringmq_node.model.names import DEFAULT_VHOST, shown
from ringmq_node.model.policies import ApplyTo, Mirrors, Policy, PolicyDefinition, PolicyError
from ringmq_node.model.reasons import BrokerError, bad_request
from ringmq_node.model.records import REPLICAS_MAX, MasterLocator, QueueMode
from ringmq_node.model.rules import NO_RULES, QueueRules, check_offered
from ringmq_node.model.settings import SyncMode

# Keys of policies, and the rules that they are.
RULES = {
    "message-ttl": "message_ttl_ms",
    "expires": "expires_ms",
    "max-length": "max_length",
    "max-length-bytes": "max_length_bytes",
    "overflow": "overflow",
    "dead-letter-exchange": "dead_letter_exchange",
    "dead-letter-routing-key": "dead_letter_routing_key",
    "delivery-limit": "delivery_limit",
    "consumer-timeout": "consumer_timeout_ms",
}
_ENTRY = ("vhost", "name", "pattern", "apply-to", "priority", "definition")
# The component of RabbitMQ's parameters that are operator policies.
OPERATOR_POLICY = "operator_policy"
# Values of the leader's locator, and those of ours that mean the same.
_LEADERS = {"balanced": "min-masters", "least-leaders": "min-masters"}
# Keys of which a declaration's value, then a policy's, counts over an operator policy's.
_OVERRIDDEN = (
    *("overflow", "dead-letter-exchange", "dead-letter-routing-key"),
    *("queue-mode", "queue-master-locator", "queue-leader-locator"),
)
# The one key of exchanges.
_ALTERNATE = "alternate-exchange"
_CLASSIC = "classic_queues"
_APPLY_TO = {each.value: each for each in ApplyTo} | {_CLASSIC: ApplyTo.QUEUES}
_WHY_NOT = {
    "exchanges": "operator policies are for queues",
    "quorum_queues": "policies here are for all queues, and others than these would get it",
    "streams": "there are no streams here",
}


def rules_of(
    given: dict[str, Any], names: Mapping[str, str], where: str, notes: Notes, *, declared: bool
) -> QueueRules:
    """The rules among these arguments or keys, which are taken out of `given`."""
    values: dict[str, Any] = {}
    for name, rule in names.items():
        if name not in given:
            continue
        value = given.pop(name)
        # RabbitMQ takes 0 for "no priorities".
        if rule == "max_priority" and value == 0 and type(value) is int:
            continue
        try:
            # Beside the ones before it: some are of no use alone.
            check_offered(QueueRules.from_json(values | {rule: value}), declared=declared)
        except (BrokerError, TypeError, ValueError) as error:
            notes.add(where, f"{name} {value!r}: {error}")
        else:
            values[rule] = value
    return QueueRules.from_json(values) if values else NO_RULES


def policy_of(
    entry: dict[str, Any],
    at: str,
    notes: Notes,
    nodes: NodeNames,
    *,
    not_classic: Iterable[str] = (),
) -> Policy | None:
    """Ours, or one of RabbitMQ's; None if nothing of it can be mapped. Raises `BrokerError` for
    what is no policy. `not_classic` are the document's queues of other types, which become ours."""
    name, definition = entry.get("name"), entry.get("definition")
    if type(name) is not str or type(definition) is not dict:
        raise bad_request(f"{at}: a policy has a name and a definition", field=at)
    is_operator = entry.get("component") == OPERATOR_POLICY
    where = f"{'operator ' if is_operator else ''}policy {name!r}"
    if entry["vhost"] != DEFAULT_VHOST:
        where += f" of vhost {entry['vhost']!r}"
    notes.unread(where, entry, (*_ENTRY, "component" if is_operator else "is_operator"))
    definition = dict(definition)
    # Ours say for which; an export of before they could is for queues.
    apply_to = entry.get("apply-to", "queues" if "is_operator" in entry else "all")
    kind = _APPLY_TO.get(str(apply_to))
    if kind is None or (is_operator and kind is ApplyTo.EXCHANGES):
        why = _WHY_NOT.get(str(apply_to), "nothing here is called so")
        keys = ", ".join(map(str, definition))
        notes.add(where, f"apply-to {apply_to}: {why}; not taken" + (keys and f", with {keys}"))
        return None
    try:
        if "is_operator" in entry:
            policy: Policy | None = _here(Policy.from_json(entry | {"apply-to": kind.value}), nodes)
        elif kind is ApplyTo.EXCHANGES:
            policy = _of_exchanges(entry, definition, where, notes)
        else:
            policy = _of_rabbitmq(
                entry, definition, kind, where, notes, nodes, is_operator=is_operator
            )
    except (BrokerError, PolicyError, KeyError, TypeError) as error:
        notes.add(where, str(error))
        return None
    if policy is not None and apply_to == _CLASSIC:
        also = ", ".join(shown(name) for name in not_classic if policy.matches(name))
        notes.add(
            where,
            f"apply-to {_CLASSIC}: it is for all queues here"
            + (f", so it applies to {also}, too" if also else ", which are of one type"),
        )
    return policy


def _here(policy: Policy, nodes: NodeNames) -> Policy:
    """One of ours, perhaps from another cluster."""
    mirrors = policy.definition.mirrors
    if mirrors is None or mirrors.nodes is None:
        return policy
    mirrors = replace(mirrors, nodes=nodes.here(mirrors.nodes))
    return replace(policy, definition=replace(policy.definition, mirrors=mirrors))


def _of_exchanges(
    entry: dict[str, Any], keys: dict[str, Any], where: str, notes: Notes
) -> Policy | None:
    alternate = _alternate(keys, where, notes)
    for key in keys:
        notes.add(where, f"{key} has no meaning for exchanges here")
    if alternate is None:
        notes.add(where, "nothing of it can be mapped")
        return None
    definition = PolicyDefinition(alternate_exchange=alternate)
    return _policy(entry, definition, ApplyTo.EXCHANGES, is_operator=False)


def _alternate(keys: dict[str, Any], where: str, notes: Notes) -> str | None:
    alternate = keys.pop(_ALTERNATE, None)
    if alternate is None or (type(alternate) is str and alternate):
        return alternate
    notes.add(where, f"{_ALTERNATE} {alternate!r} is no name")
    return None


def _of_rabbitmq(
    entry: dict[str, Any],
    keys: dict[str, Any],
    apply_to: ApplyTo,
    where: str,
    notes: Notes,
    nodes: NodeNames,
    *,
    is_operator: bool,
) -> Policy | None:
    if is_operator:
        _note_weaker(keys, where, notes)
        apply_to = ApplyTo.QUEUES
    alternate = _alternate(keys, where, notes)
    if alternate is not None and apply_to is ApplyTo.QUEUES:
        notes.add(where, f"{_ALTERNATE} {alternate!r}: the policy isn't for exchanges")
        alternate = None
    rules = rules_of(keys, RULES, where, notes, declared=False)
    definition = PolicyDefinition(
        mirrors=_mirrors(keys, where, notes, nodes),
        sync_mode=_sync_mode(keys, where, notes),
        master_locator=locator_of(keys, "", where, notes),
        mode=mode_of(keys.pop("queue-mode", None), "queue-mode", where, notes),
        rules=rules,
        alternate_exchange=alternate,
    )
    for key in ("ha-promote-on-failure", "ha-promote-on-shutdown"):
        value = keys.pop(key, "when-synced")
        if value != "when-synced":
            notes.add(where, f"{key} {value}: no queue here goes on without what was confirmed")
    for key in keys:
        notes.add(where, f"{key} has no meaning here")
    if definition == PolicyDefinition():
        notes.add(where, "nothing of it can be mapped")
        return None
    return _policy(entry, definition, apply_to, is_operator=is_operator)


def _policy(
    entry: dict[str, Any], definition: PolicyDefinition, apply_to: ApplyTo, *, is_operator: bool
) -> Policy:
    return Policy(
        entry["name"],
        entry["pattern"],
        entry.get("priority", 0),
        definition,
        is_operator,
        entry["vhost"],
        apply_to,
    )


def _note_weaker(keys: dict[str, Any], where: str, notes: Notes) -> None:
    """Takes out of an operator policy's keys those that bound in the other direction here, and
    lists those with less weight than in RabbitMQ, where an operator's text overrides a policy's."""
    for key in ("ha-mode", "ha-params"):
        if keys.pop(key, None) is not None:
            notes.add(
                where,
                f"{key}: an operator policy of RabbitMQ bounds mirrors from below, one of ours "
                "from above; say it by a policy",
            )
    for key in _OVERRIDDEN:
        if key in keys:
            notes.add(where, f"{key} counts only where neither queue nor policy says one")


def _mirrors(keys: dict[str, Any], where: str, notes: Notes, nodes: NodeNames) -> Mirrors | None:
    mode, params = keys.pop("ha-mode", None), keys.pop("ha-params", None)
    match mode:
        case None if params is None:
            return None
        case "all":
            if not is_empty(params):
                notes.add(where, f"ha-params {params!r}: ha-mode all takes none")
            return Mirrors()
        case None:
            notes.add(where, f"ha-params {params!r} without ha-mode")
            return None
        case "exactly" if type(params) is int and params >= 1:
            if params > REPLICAS_MAX:
                notes.add(where, f"ha-params {params}: a ring has at most {REPLICAS_MAX} replicas")
            return Mirrors(count=min(params, REPLICAS_MAX))
        case "nodes" if type(params) is list and all(type(node) is str for node in params):
            return Mirrors(nodes=nodes.here(params))
    notes.add(where, f"ha-mode {mode!r} with ha-params {params!r}")
    return None


def _sync_mode(keys: dict[str, Any], where: str, notes: Notes) -> SyncMode | None:
    mode = keys.pop("ha-sync-mode", None)
    if mode in (None, "automatic", "manual"):
        return None if mode is None else SyncMode(mode)
    notes.add(where, f"there is no ha-sync-mode {mode!r}")
    return None


def mode_of(value: Any, key: str, where: str, notes: Notes) -> QueueMode | None:
    """The mode that a queue's argument or a policy's key says."""
    try:
        return None if value is None else QueueMode(value)
    except ValueError:
        notes.add(where, f"there is no {key} {value!r}")
        return None


def locator_of(
    given: dict[str, Any], prefix: str, where: str, notes: Notes
) -> MasterLocator | None:
    """The locator among a queue's arguments (their `prefix` is "x-") or a policy's keys, which is
    taken out of `given`. Queues of RabbitMQ have the locator of the leader as another one."""
    found: list[MasterLocator] = []
    for key in (f"{prefix}queue-master-locator", f"{prefix}queue-leader-locator"):
        value = given.pop(key, None)
        if value is None:
            continue
        try:
            locator = MasterLocator(_LEADERS.get(str(value), value))
        except ValueError:
            notes.add(where, f"there is no {key} {value!r} here")
            continue
        if found and locator != found[0]:
            notes.add(where, f"{key} {value}: the other locator, {found[0].value}, counts")
        found.append(locator)
    return found[0] if found else None
