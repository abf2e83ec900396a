"""The arguments of a declaration, and when two declarations mean the same queue. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import Enum

from ringmq_node.model.policies import REPLICAS_DEFAULT, Wanted
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import REPLICAS_MAX, MasterLocator, QueueMode, QueueRecord
from ringmq_node.model.rules import NO_RULES, QueueRules


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """The properties that a client asks of a queue when it declares it.

    An argument that is left out (0 or None) means the default for a new queue, and matches any
    value of one that exists.
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


def check_equivalent(record: QueueRecord, wanted: Wanted, arguments: QueueArguments) -> None:
    """Raises `BrokerError` unless declaring `arguments` again means the queue of `record`.

    A number that the first declaration left out is what is `wanted` of the queue now.
    """
    locator = record.master_locator or wanted.master_locator
    compared: list[tuple[str, object, object]] = [
        ("replicas", record.replicas or wanted.replicas, arguments.replicas or None),
        ("min_insync", record.min_insync or wanted.min_insync, arguments.min_insync or None),
        (
            "master_locator",
            locator.value,
            arguments.master_locator and arguments.master_locator.value,
        ),
        ("mode", (record.mode or wanted.mode).value, arguments.mode and arguments.mode.value),
        ("durable", _yes_or_no(record.durable), _yes_or_no(arguments.durable)),
        ("auto_delete", _yes_or_no(record.auto_delete), _yes_or_no(arguments.auto_delete)),
        ("exclusive", _yes_or_no(bool(record.owner)), _yes_or_no(arguments.exclusive)),
    ]
    # Not what policies make of them: the program asks for what it has declared.
    for each in fields(QueueRules):
        declared = _shown(getattr(record.rules, each.name)) or "unset"
        compared.append((each.name, declared, _shown(getattr(arguments.rules, each.name))))
    for field, existing, asked in compared:
        if asked is not None and asked != existing:
            raise BrokerError(
                Reason.QUEUE_EXISTS,
                f"queue {record.name!r} exists with {field} {existing}, not {asked}",
                queue=record.name,
                field=field,
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


def _shown(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return _yes_or_no(value)
    if isinstance(value, str):
        return repr(value)
    return str(value.value if isinstance(value, Enum) else value)


def _yes_or_no(value: bool | None) -> str | None:
    if value is None:
        return None
    return "yes" if value else "no"
