"""The arguments of a declaration, and when two declarations mean the same queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode, QueueRecord


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


def check_equivalent(record: QueueRecord, arguments: QueueArguments) -> None:
    """Raises `BrokerError` unless declaring `arguments` again means the queue of `record`."""
    compared: list[tuple[str, object, object]] = [
        ("replicas", len(record.nodes), arguments.replicas or None),
        ("min_insync", record.min_insync, arguments.min_insync or None),
        ("mode", record.mode.value, arguments.mode and arguments.mode.value),
        ("durable", _yes_or_no(record.durable), _yes_or_no(arguments.durable)),
    ]
    for field, existing, asked in compared:
        if asked is not None and asked != existing:
            raise BrokerError(
                Reason.QUEUE_EXISTS,
                f"queue {record.name!r} exists with {field} {existing}, not {asked}",
                queue=record.name,
                field=field,
            )


def _yes_or_no(value: bool | None) -> str | None:
    if value is None:
        return None
    return "yes" if value else "no"
