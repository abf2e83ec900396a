"""The arguments of a declaration, and when two declarations mean the same queue. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import Enum

from ringmq_node.model.fields import VOID, FieldValue, Headers, field_to_json, text
from ringmq_node.model.policies import REPLICAS_DEFAULT, Wanted
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import REPLICAS_MAX, MasterLocator, QueueMode, QueueRecord
from ringmq_node.model.rules import NO_RULES, QueueRules, check_offered
from ringmq_node.model.topology import ARGUMENT_BYTES_MAX, BINDING_ARGUMENTS_MAX

# Of all further arguments of a queue, as its record has them: far below what the registry takes.
ARGUMENTS_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """The properties that a client asks of a queue when it declares it.

    An argument that is left out (0 or None) means the default for a new queue, and matches any
    value of one that exists. If the declaration is `exact`, it matches the default alone, as AMQP
    has it. A `mode` that is left out matches any even then, as operators change it. So do
    `replicas` and `min_insync`, unless the protocol has words for them: `names_replicas`.

    `opaque` arguments are another broker's: they are kept, told back, and have no effect.
    """

    replicas: int = 0
    min_insync: int = 0
    mode: QueueMode | None = None
    durable: bool | None = None
    master_locator: MasterLocator | None = None
    rules: QueueRules = NO_RULES
    auto_delete: bool | None = None
    exclusive: bool | None = None
    # The connection that an exclusive queue is for: `Owner.encode`.
    owner: str = ""
    opaque: tuple[tuple[str, FieldValue], ...] = ()
    exact: bool = False
    names_replicas: bool = False
    # The declaration comes from definitions: see `broker.ownership.named`.
    restores: bool = False


# Of the opaque arguments those that tell queues apart in RabbitMQ, and what leaving one out means.
_COMPARED_OPAQUE = {"x-queue-type": text("classic"), "x-queue-version": VOID}


def check_equivalent(record: QueueRecord, wanted: Wanted, arguments: QueueArguments) -> None:
    """Raises `BrokerError` unless declaring `arguments` again means the queue of `record`.

    A number that the first declaration left out is what is `wanted` of the queue now.
    """
    locator = record.master_locator
    if locator is None and not arguments.exact:
        locator = wanted.master_locator
    replicas = record.replicas or wanted.replicas
    min_insync = record.min_insync or wanted.min_insync
    mode = record.mode or wanted.mode
    # The last column is what leaving one out means: the first three match any value.
    compared: list[tuple[str, object, object, object]] = [
        ("replicas", replicas, arguments.replicas or None, replicas),
        ("min_insync", min_insync, arguments.min_insync or None, min_insync),
        ("mode", mode, arguments.mode, mode),
        ("durable", record.durable, arguments.durable, True),
        ("auto_delete", record.auto_delete, arguments.auto_delete, False),
        ("exclusive", bool(record.owner), arguments.exclusive, False),
        ("master_locator", locator, arguments.master_locator, None),
    ]
    # Not what policies make of them: the program asks for what it has declared.
    for each in fields(QueueRules):
        name = each.name
        compared.append((name, getattr(record.rules, name), getattr(arguments.rules, name), None))
    for field, existing, asked, default in compared:
        if asked is None and not arguments.exact:
            continue
        asked = default if asked is None else asked
        if asked != existing:
            raise _inequivalent(record, field, existing, asked)
    if arguments.exact:
        _check_same_opaque(record, dict(arguments.opaque))
        if arguments.names_replicas:
            _check_left_out(record, arguments)


def _check_left_out(record: QueueRecord, arguments: QueueArguments) -> None:
    """Numbers that are left out are for policies to say, of the queue that exists, too."""
    for field in ("replicas", "min_insync"):
        declared = getattr(record, field)
        if declared and not getattr(arguments, field):
            raise _inequivalent(record, field, declared, None)


def _check_same_opaque(record: QueueRecord, asked: Headers) -> None:
    declared = dict(record.opaque)
    for field, default in _COMPARED_OPAQUE.items():
        existing, wanted = declared.get(field, default), asked.get(field, default)
        if existing != wanted:
            raise _inequivalent(record, field, existing.value, wanted.value)


def _inequivalent(record: QueueRecord, field: str, existing: object, asked: object) -> BrokerError:
    there, here = _shown(existing), _shown(asked)
    return BrokerError(
        Reason.QUEUE_EXISTS,
        f"queue {record.name!r} exists with {field} {there}, not {here}",
        queue=record.name,
        field=field,
        existing=there,
        asked=here,
    )


def check_arguments(declared: QueueArguments) -> None:
    """Raises `BrokerError` for rules that aren't offered, and more than a record may hold."""
    check_offered(declared.rules, declared=True)
    arguments = dict(declared.opaque)
    for name, value in arguments.items():
        size = max(len(name.encode(errors="replace")), value.size_bytes)
        if not name or size > ARGUMENT_BYTES_MAX or len(arguments) > BINDING_ARGUMENTS_MAX:
            raise bad_request(
                f"argument {name[:40]!r}: a queue has at most {BINDING_ARGUMENTS_MAX} further "
                f"arguments, of at most {ARGUMENT_BYTES_MAX} bytes for each name and value",
                field="arguments",
            )
    # Many small fields in one value take more in the record than in a message.
    written = [(name, field_to_json(value)) for name, value in declared.opaque]
    if len(json.dumps(written)) > ARGUMENTS_BYTES_MAX:
        raise bad_request(
            f"the further arguments of a queue have at most {ARGUMENTS_BYTES_MAX} bytes in its "
            "record",
            field="arguments",
        )


def check_possible(arguments: QueueArguments, nodes: Collection[str]) -> None:
    """Raises `BrokerError` for numbers that a cluster of these nodes, up or down, can't satisfy."""
    replicas = arguments.replicas or min(len(nodes), REPLICAS_DEFAULT)
    if replicas > min(len(nodes), REPLICAS_MAX):
        raise BrokerError(
            Reason.LIMIT_EXCEEDED,
            f"{replicas} replicas are wanted; the cluster has {len(nodes)} nodes, "
            f"and a ring has at most {REPLICAS_MAX}",
            limit="replicas",
        )
    if arguments.min_insync > replicas:
        raise bad_request(
            f"min_insync {arguments.min_insync} is above the {replicas} replicas",
            field="min_insync",
        )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value.value if isinstance(value, Enum) else value)
