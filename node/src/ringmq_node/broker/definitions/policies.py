"""RabbitMQ's policies and queue arguments as ours. Pure; what can't be mapped is noted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringmq_node.model.names import DEFAULT_VHOST
from ringmq_node.model.policies import Mirrors, Policy, PolicyDefinition, PolicyError
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
_TO_QUEUES = ("queues", "all", "classic_queues", "quorum_queues")


class Notes:
    """What can't be mapped: where it stands, and why."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, why: str) -> None:
        self.lines.append(f"{where}: {why}")


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
            check_offered(QueueRules.from_json({rule: value}), declared=declared)
        except (BrokerError, TypeError, ValueError) as error:
            notes.add(where, f"{name} {value!r}: {error}")
        else:
            values[rule] = value
    return QueueRules.from_json(values) if values else NO_RULES


def policy_of(entry: dict[str, Any], at: str, notes: Notes) -> Policy | None:
    """Ours, or one of RabbitMQ's; None if nothing of it can be mapped. Raises `BrokerError` for
    what is no policy."""
    name, definition = entry.get("name"), entry.get("definition")
    if type(name) is not str or type(definition) is not dict:
        raise bad_request(f"{at}: a policy has a name and a definition", field=at)
    # RabbitMQ's definitions of one vhost don't say of which.
    entry = {"vhost": DEFAULT_VHOST} | entry
    where = f"policy {name!r}"
    if entry["vhost"] != DEFAULT_VHOST:
        where += f" of vhost {entry['vhost']!r}"
    try:
        if "is_operator" in entry:
            return Policy.from_json(entry)
        return _of_rabbitmq(entry, dict(definition), where, notes)
    except (BrokerError, PolicyError, KeyError, TypeError) as error:
        notes.add(where, str(error))
        return None


def _of_rabbitmq(
    entry: dict[str, Any], keys: dict[str, Any], where: str, notes: Notes
) -> Policy | None:
    if entry.get("apply-to", "all") not in _TO_QUEUES:
        notes.add(where, f"applies to {entry['apply-to']}: policies here are for queues")
        return None
    rules = rules_of(keys, RULES, where, notes, declared=False)
    definition = PolicyDefinition(
        mirrors=_mirrors(keys, where, notes),
        sync_mode=_sync_mode(keys, where, notes),
        master_locator=_locator(keys, where, notes),
        mode=mode_of(keys.pop("queue-mode", None), "queue-mode", where, notes),
        rules=rules,
    )
    for key in ("ha-promote-on-failure", "ha-promote-on-shutdown"):
        if keys.pop(key, "when-synced") != "when-synced":
            notes.add(where, f"{key} always: no queue here goes on without what was confirmed")
    for key in keys:
        notes.add(where, f"{key} has no meaning here")
    if definition == PolicyDefinition():
        notes.add(where, "nothing of it can be mapped")
        return None
    return Policy(
        entry["name"],
        entry["pattern"],
        entry.get("priority", 0),
        definition,
        vhost=entry["vhost"],
    )


def _mirrors(keys: dict[str, Any], where: str, notes: Notes) -> Mirrors | None:
    mode, params = keys.pop("ha-mode", None), keys.pop("ha-params", None)
    match mode:
        case None:
            return None
        case "all":
            return Mirrors()
        case "exactly" if type(params) is int and params >= 1:
            if params > REPLICAS_MAX:
                notes.add(where, f"ha-params {params}: a ring has at most {REPLICAS_MAX} replicas")
            return Mirrors(count=min(params, REPLICAS_MAX))
        case "nodes" if type(params) is list and all(type(node) is str for node in params):
            # RabbitMQ's are called rabbit@a.
            return Mirrors(nodes=tuple(node.partition("@")[2] or node for node in params))
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


def _locator(keys: dict[str, Any], where: str, notes: Notes) -> MasterLocator | None:
    value = keys.pop("queue-master-locator", None)
    try:
        return None if value is None else MasterLocator(value)
    except ValueError:
        notes.add(where, f"there is no queue-master-locator {value!r}")
        return None
