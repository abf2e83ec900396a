"""Definitions as JSON, both ways. Pure.

The document has the shape of RabbitMQ's `definitions.json` (3.x), so that one of theirs is taken as
it is:

    {"vhosts": [{"name": "/"}],
     "exchanges": [{"vhost", "name", "type", "durable", "auto_delete", "internal", "arguments"}],
     "queues": [{"vhost", "name", "durable", "auto_delete", "arguments"}],
     "bindings": [{"vhost", "source", "destination", "destination_type", "routing_key",
                   "arguments"}],
     "policies": [{"vhost", "name", "pattern", "apply-to", "priority", "definition"}],
     "parameters": [{"vhost", "component", "name", "value"}]}

RabbitMQ has its operator policies among the parameters. Of these we read no others.

What ours has and theirs lacks: the queue arguments `x-ringmq-replicas` and `x-ringmq-min-insync`,
and policies with `is_operator`, whose `definition` has our keys.

Nothing is dropped in silence. What can't be mapped is in `unmapped`, each with its place and why;
the rest of its entry counts. An entry that is no entry at all (a queue without a name, a number for
a list) refuses the whole document: it is of another kind, or damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.definitions.node_names import NodeNames
from ringmq_node.broker.definitions.notes import Notes, is_empty
from ringmq_node.broker.definitions.policies import (
    OPERATOR_POLICY,
    locator_of,
    mode_of,
    policy_of,
    rules_of,
)
from ringmq_node.broker.topology.arguments import BindingWish, ExchangeArguments
from ringmq_node.model.fields import FieldError, FieldValue, document_of, field_of, fields_of, text
from ringmq_node.model.names import DEFAULT_VHOST, join_name, split_name
from ringmq_node.model.policies import Policy
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.records import QueueMode
from ringmq_node.model.topology import ExchangeKind, is_predeclared, sorted_arguments

T = TypeVar("T")

# Facts about the file, which say nothing of what was declared.
_ABOUT = frozenset(
    (
        *("rabbit_version", "rabbitmq_version", "product_name", "product_version"),
        *("rabbitmq_definition_format", "original_cluster_name", "original_vhost_name"),
        *("explanation", "ringmq_version"),
    )
)
_LISTS = (
    *("vhosts", "exchanges", "queues", "bindings", "policies"),
    *("parameters", "global_parameters"),
)
# Keys of entries that are read; a reader lists all others.
_EXCHANGE = ("vhost", "name", "type", "durable", "auto_delete", "internal", "arguments")
_QUEUE = ("vhost", "name", "type", "durable", "auto_delete", "exclusive", "arguments")
_BINDING = ("vhost", "source", "destination", "destination_type", "routing_key", "arguments")
_PARAMETER = ("vhost", "component", "name", "value")
_IDLE_OF_VHOSTS: dict[str, tuple[object, ...]] = {
    "tracing": (False,),
    "default_queue_type": ("classic", "undefined"),
}
CLASSIC = text("classic")
# Arguments of queues, and the rules that they are.
RULES = {
    "x-message-ttl": "message_ttl_ms",
    "x-expires": "expires_ms",
    "x-max-length": "max_length",
    "x-max-length-bytes": "max_length_bytes",
    "x-overflow": "overflow",
    "x-dead-letter-exchange": "dead_letter_exchange",
    "x-dead-letter-routing-key": "dead_letter_routing_key",
    "x-max-priority": "max_priority",
    "x-delivery-limit": "delivery_limit",
    "x-single-active-consumer": "single_active_consumer",
    "x-consumer-timeout": "consumer_timeout_ms",
}
REPLICAS = "x-ringmq-replicas"
MIN_INSYNC = "x-ringmq-min-insync"


@dataclass(frozen=True, slots=True)
class Definitions:
    """Names are internal ones; `exchanges` has none that is predeclared. `vhosts` are those that
    the document lists; its entries may be of others."""

    vhosts: tuple[str, ...] = ()
    exchanges: Mapping[str, ExchangeArguments] | None = None
    queues: Mapping[str, QueueArguments] | None = None
    bindings: tuple[BindingWish, ...] = ()
    policies: tuple[Policy, ...] = ()
    unmapped: tuple[str, ...] = ()


def read_definitions(
    document: object, *, vhost: str = DEFAULT_VHOST, nodes: NodeNames | None = None
) -> Definitions:
    """Raises `BrokerError` for what is no such document. `vhost` is that of entries which name
    none, as in RabbitMQ's definitions of one vhost; `nodes` are those that policies name."""
    if not isinstance(document, dict):
        raise bad_request("definitions are a JSON object", field="definitions")
    notes = Notes()
    nodes = nodes or NodeNames()
    for key in document:
        if key not in _LISTS and key not in _ABOUT and not is_empty(document[key]):
            notes.add(str(key), "is not kept here")
    vhosts = [_vhost(entry, at, notes) for entry, at in _entries(document, "vhosts")]
    exchanges: dict[str, ExchangeArguments] = {}
    lost_exchanges: set[str] = set()
    lost_queues: set[str] = set()
    for entry, at in _entries(document, "exchanges", vhost):
        name = _named(entry, "name", at)
        exchange = _exchange(entry, name, at, notes)
        if exchange is None:
            lost_exchanges.add(name)
        elif not is_predeclared(name):
            exchanges[name] = exchange
    queues: dict[str, QueueArguments] = {}
    not_classic: list[str] = []
    for entry, at in _entries(document, "queues", vhost):
        name = _named(entry, "name", at)
        queue = _queue(entry, name, notes)
        if queue is None:
            lost_queues.add(name)
        else:
            queues[name] = queue
            if dict(queue.opaque).get("x-queue-type", CLASSIC) != CLASSIC:
                not_classic.append(name)
    bindings = [
        binding
        for entry, at in _entries(document, "bindings", vhost)
        if (binding := _binding(entry, at, lost_exchanges, lost_queues, notes)) is not None
    ]
    given = [*_entries(document, "policies", vhost), *_operator_policies(document, vhost, notes)]
    policies = [
        policy
        for entry, at in given
        if (policy := policy_of(entry, at, notes, nodes, not_classic=not_classic)) is not None
    ]
    nodes.note_unused(notes)
    for entry, at in _entries(document, "global_parameters"):
        notes.add(f"global parameter {_text(entry, 'name', at)!r}", "is not kept here")
    return Definitions(
        tuple(dict.fromkeys(vhosts)),
        exchanges,
        queues,
        tuple(bindings),
        tuple(policies),
        tuple(notes.lines),
    )


def _entries(
    document: dict[str, Any], key: str, vhost: str | None = None
) -> Iterable[tuple[dict[str, Any], str]]:
    """The entries of a list, and where each of them is; of `vhost` if they name none."""
    unnamed = {} if vhost is None else {"vhost": vhost}
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise bad_request(f"{key} is no list", field=key)
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise bad_request(f"{key}[{index}] is no object", field=key)
        yield unnamed | entry, f"{key}[{index}]"


def _checked(entry: dict[str, Any], key: str, at: str, kind: type[T], default: T | None) -> T:
    value = entry.get(key, default)
    # Not `isinstance`: for Python a bool is an int.
    if type(value) is not kind:
        raise bad_request(f"{at}.{key} is {value!r}, and no {kind.__name__}", field=f"{at}.{key}")
    return value


def _text(entry: dict[str, Any], key: str, at: str, default: str | None = None) -> str:
    found = _checked(entry, key, at, str, default)
    try:
        found.encode()
    except UnicodeEncodeError:
        # JSON can write half a surrogate pair, and no frame or file can.
        raise bad_request(f"{at}.{key} is {found!r}, and no text", field=f"{at}.{key}") from None
    return found


def _named(entry: dict[str, Any], key: str, at: str) -> str:
    """An internal name."""
    vhost, name = _text(entry, "vhost", at), _text(entry, key, at)
    if "\x1f" in vhost + name:
        raise bad_request(f"{at}.{key} has a control character", field=f"{at}.{key}")
    return join_name(vhost, name)


def _arguments(entry: dict[str, Any], at: str) -> dict[str, Any]:
    # RabbitMQ's exports write an empty object of Erlang as a list at times.
    return _checked({"arguments": entry.get("arguments") or {}}, "arguments", at, dict, None)


def _operator_policies(
    document: dict[str, Any], vhost: str, notes: Notes
) -> Iterable[tuple[dict[str, Any], str]]:
    """Those among RabbitMQ's parameters, as entries like other policies; other parameters are
    listed."""
    for entry, at in _entries(document, "parameters", vhost):
        component = _text(entry, "component", at)
        own, name = _text(entry, "vhost", at), _text(entry, "name", at)
        if component == OPERATOR_POLICY:
            notes.unread(f"operator policy {_said(join_name(own, name))}", entry, _PARAMETER)
            value = _checked(entry, "value", at, dict, None)
            yield value | {"vhost": own, "name": name, "component": component}, f"{at}.value"
        else:
            where = f"parameter {name!r} of component {component!r} in vhost {own!r}"
            notes.add(where, "is not kept here")


def _vhost(entry: dict[str, Any], at: str, notes: Notes) -> str:
    name = _text(entry, "name", at)
    where = f"vhost {name!r}"
    for key, value in entry.items():
        if key == "metadata" and isinstance(value, dict):
            # It repeats the keys of the vhost.
            told = {each: text for each, text in value.items() if entry.get(each) != text}
            notes.unread(where, told, _idle(told), prefix="metadata.")
        elif key != "name":
            notes.unread(where, {key: value}, _idle({key: value}))
    return name


def _idle(keys: dict[str, Any]) -> list[str]:
    """Those keys of a vhost whose values say what is so here for every vhost."""
    return [key for key, value in keys.items() if value in _IDLE_OF_VHOSTS.get(key, ())]


def _exchange(entry: dict[str, Any], name: str, at: str, notes: Notes) -> ExchangeArguments | None:
    where = _where("exchange", name)
    notes.unread(where, entry, _EXCHANGE)
    kind = _text(entry, "type", at)
    arguments = dict(_arguments(entry, at))
    alternate = arguments.pop("alternate-exchange", "")
    if not isinstance(alternate, str):
        notes.add(where, f"alternate-exchange {alternate!r} is no name")
        alternate = ""
    for key in arguments:
        notes.add(where, f"argument {key} has no meaning here")
    if kind not in (each.value for each in ExchangeKind):
        notes.add(where, f"there is no exchange type {kind!r} here")
        return None
    return ExchangeArguments(
        ExchangeKind(kind),
        _checked(entry, "durable", at, bool, True),
        _checked(entry, "auto_delete", at, bool, False),
        _checked(entry, "internal", at, bool, False),
        join_name(split_name(name)[0], alternate) if alternate else "",
    )


def _queue(entry: dict[str, Any], name: str, notes: Notes) -> QueueArguments | None:
    where = at = _where("queue", name)
    arguments = dict(_arguments(entry, at))
    opaque: dict[str, FieldValue] = {}
    notes.unread(where, entry, _QUEUE)
    kind = entry.get("type", "classic")
    if "x-queue-type" in arguments:
        kind = arguments.pop("x-queue-type")
        opaque["x-queue-type"] = text(str(kind))
    if kind == "stream":
        notes.add(where, "streams have no like here: declare a queue, and browse it by position")
        return None
    if kind != "classic":
        notes.add(where, f"x-queue-type {kind}: becomes a mirrored queue, as all are")
    if _checked(entry, "exclusive", at, bool, False):
        notes.add(where, "exclusive: it belongs to a connection that isn't here")
        return None
    rules = rules_of(arguments, RULES, where, notes, declared=True)
    return QueueArguments(
        replicas=_count(arguments, REPLICAS, where, notes),
        min_insync=_count(arguments, MIN_INSYNC, where, notes),
        mode=_mode(arguments, where, notes),
        durable=_checked(entry, "durable", at, bool, True),
        master_locator=locator_of(arguments, "x-", where, notes),
        rules=rules,
        auto_delete=_checked(entry, "auto_delete", at, bool, False),
        opaque=sorted_arguments(opaque | _left(arguments, where, notes)),
    )


def _left(arguments: dict[str, Any], where: str, notes: Notes) -> dict[str, FieldValue]:
    """What is left of the arguments, each of which is noted."""
    kept: dict[str, FieldValue] = {}
    for key, value in arguments.items():
        try:
            kept[key] = field_of(value)
            notes.add(where, f"argument {key} is kept, and has no meaning here")
        except FieldError as error:
            notes.add(where, f"argument {key}: {error}")
    return kept


def _count(arguments: dict[str, Any], key: str, where: str, notes: Notes) -> int:
    value = arguments.pop(key, 0)
    if type(value) is int and value >= 0:
        return value
    notes.add(where, f"{key} {value!r} is no number of replicas")
    return 0


def _mode(arguments: dict[str, Any], where: str, notes: Notes) -> QueueMode | None:
    return mode_of(arguments.pop("x-queue-mode", None), "x-queue-mode", where, notes)


def _binding(
    entry: dict[str, Any], at: str, lost_exchanges: set[str], lost_queues: set[str], notes: Notes
) -> BindingWish | None:
    source = _named(entry, "source", at)
    destination = _named(entry, "destination", at)
    kind = _text(entry, "destination_type", at, "queue")
    if kind not in ("queue", "exchange"):
        raise bad_request(f"{at}.destination_type is {kind!r}", field=f"{at}.destination_type")
    where = f"binding from {_said(source)} to {_said(destination)}"
    notes.unread(where, entry, _BINDING)
    # A queue and an exchange may have the same name.
    lost_ends = lost_exchanges if kind == "exchange" else lost_queues
    ends = ((source, lost_exchanges), (destination, lost_ends))
    gone = [name for name, lost in ends if name in lost]
    if gone:
        notes.add(where, f"{_said(gone[0])} can't be mapped")
        return None
    key = _text(entry, "routing_key", at, "")
    if not split_name(source)[1]:
        # Every queue has the one by its name, without a record. There are no others.
        if kind != "queue" or key != split_name(destination)[1]:
            notes.add(where, f"routing key {key!r}: the default exchange has no bindings")
        return None
    try:
        arguments = fields_of(_arguments(entry, at))
    except FieldError as error:
        notes.add(where, f"{error}: the binding is left out")
        return None
    return BindingWish(source, destination, kind == "exchange", key, arguments)


def _said(name: str) -> str:
    vhost, short = split_name(name)
    return repr(short) if vhost == DEFAULT_VHOST else f"{short!r} of vhost {vhost!r}"


def _where(what: str, name: str) -> str:
    return f"{what} {_said(name)}"


# --- writing ---


def write_definitions(definitions: Definitions, version: str) -> dict[str, Any]:
    """The document that `read_definitions` reads as these."""
    return {
        "ringmq_version": version,
        "vhosts": [{"name": vhost} for vhost in definitions.vhosts],
        "exchanges": [
            _entry(name)
            | {
                "type": each.kind.value,
                "durable": each.durable,
                "auto_delete": each.auto_delete,
                "internal": each.internal,
                "arguments": {"alternate-exchange": split_name(each.alternate)[1]}
                if each.alternate
                else {},
            }
            for name, each in (definitions.exchanges or {}).items()
        ],
        "queues": [
            _entry(name)
            | {
                "durable": each.durable is not False,
                "auto_delete": each.auto_delete is True,
                "arguments": _queue_arguments(each),
            }
            for name, each in (definitions.queues or {}).items()
        ],
        "bindings": [
            {
                "vhost": split_name(each.source)[0],
                "source": split_name(each.source)[1],
                "destination": split_name(each.destination)[1],
                "destination_type": "exchange" if each.to_exchange else "queue",
                "routing_key": each.routing_key,
                "arguments": {
                    name: document_of(value)
                    for name, value in sorted_arguments(each.arguments or {})
                },
            }
            for each in definitions.bindings
        ],
        "policies": [each.to_json() for each in definitions.policies],
    }


def _entry(name: str) -> dict[str, Any]:
    vhost, short = split_name(name)
    return {"vhost": vhost, "name": short}


def _queue_arguments(queue: QueueArguments) -> dict[str, Any]:
    said = queue.rules.to_json()
    arguments = {argument: said[rule] for argument, rule in RULES.items() if rule in said}
    more: dict[str, object] = {
        REPLICAS: queue.replicas or None,
        MIN_INSYNC: queue.min_insync or None,
        "x-queue-mode": queue.mode and queue.mode.value,
        "x-queue-master-locator": queue.master_locator and queue.master_locator.value,
    }
    more |= {name: document_of(value) for name, value in queue.opaque}
    return arguments | {name: value for name, value in more.items() if value is not None}
