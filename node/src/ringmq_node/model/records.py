"""The registry's record of a queue; its ring's view has a key of its own.

    queues/<name, percent-encoded>   this record, as JSON
    rings/<id>                       the ring's view

Each declaration makes a new id. A queue that is deleted and declared again therefore never meets
the files or frames of its namesake.

The record tells two things apart. What is *wanted* are the arguments of the declaration; the
policies that match the name are added to them (`policies.wanted_of`). What is *present* are
`nodes` and `leaving`: the reconciler of the master's node changes them, step by step, until they
are as wanted (`broker.reconciler`).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self, TypeVar
from urllib.parse import quote, unquote

from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_node.model.fields import FieldValue, field_of_json, field_to_json
from ringmq_node.model.names import check_name, split_name
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.rules import NO_RULES, QueueRules

QUEUES = "queues/"
REPLICAS_MAX = 7


class RecordError(ValueError):
    """These bytes are not the record of a queue."""


class QueueMode(Enum):
    """Where a queue keeps its messages. The values are stored in the registry."""

    DEFAULT = "default"
    LAZY = "lazy"


class MasterLocator(Enum):
    """Where a new queue's master goes. The values are stored in the registry."""

    # The node that the client is connected to.
    CLIENT_LOCAL = "client-local"
    # The node with the fewest masters.
    MIN_MASTERS = "min-masters"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """`nodes` hold a replica each, in the order in which they were chosen.

    A node in `leaving` still has its replica, which is about to go: once it is out of the ring it
    doesn't join again. `replicas` and `min_insync` are as declared, 0 where the declaration left
    them out, and `master_locator` is None then.

    A queue that isn't `durable` is transient for life: its messages end with the last process that
    holds a synchronised replica (see `broker.transient`). `rules` are as declared; policies add
    to them. An exclusive queue has an `owner`, the connection that declared it. `opaque`: arguments
    of another broker, sorted by name, which are told back and have no effect.
    """

    name: str
    id: str
    nodes: tuple[str, ...]
    min_insync: int
    mode: QueueMode | None = None
    durable: bool = True
    replicas: int = 0
    master_locator: MasterLocator | None = None
    leaving: tuple[str, ...] = ()
    rules: QueueRules = NO_RULES
    auto_delete: bool = False
    owner: str = ""
    opaque: tuple[tuple[str, FieldValue], ...] = ()

    def with_replicas(self, nodes: tuple[str, ...], leaving: tuple[str, ...]) -> Self:
        return replace(self, nodes=nodes, leaving=leaving)

    @property
    def key(self) -> str:
        return queue_key(self.name)

    def encode(self) -> bytes:
        value = {
            "name": self.name,
            "id": self.id,
            "nodes": self.nodes,
            "min_insync": self.min_insync,
            "mode": self.mode and self.mode.value,
            "durable": self.durable,
            "replicas": self.replicas,
            "master_locator": self.master_locator and self.master_locator.value,
            "leaving": self.leaving,
            "rules": self.rules.to_json(),
            "auto_delete": self.auto_delete,
            "owner": self.owner,
            "opaque": [(name, field_to_json(field)) for name, field in self.opaque],
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `RecordError`: whatever can write to the registry can write this."""
        try:
            value = json.loads(data)
            locator, mode = value["master_locator"], value["mode"]
            record = cls(
                _checked(value["name"], str),
                _checked(value["id"], str),
                tuple(_checked(node, str) for node in _checked(value["nodes"], list)),
                _checked(value["min_insync"], int),
                None if mode is None else QueueMode(mode),
                _checked(value["durable"], bool),
                _checked(value["replicas"], int),
                None if locator is None else MasterLocator(locator),
                tuple(_checked(node, str) for node in _checked(value["leaving"], list)),
                QueueRules.from_json(_checked(value["rules"], dict)),
                _checked(value["auto_delete"], bool),
                _checked(value["owner"], str),
                tuple(
                    (_checked(name, str), field_of_json(field)) for name, field in value["opaque"]
                ),
            )
            # As folder, frame and key: every node would stumble over it later.
            if not 1 <= len(record.id.encode()) <= QUEUE_NAME_BYTES_MAX:
                raise RecordError(f"id {record.id!r}")
            return record
        except (
            *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
            BrokerError,
        ) as error:
            raise RecordError(f"not a queue's record: {error!r} in {data[:80]!r}") from error


T = TypeVar("T")


def _checked(value: object, kind: type[T]) -> T:
    # Not `isinstance`: for Python a bool is an int.
    if type(value) is not kind:
        raise RecordError(f"{value!r} is no {kind.__name__}")
    return value


def decode_entry(key: str, value: bytes) -> QueueRecord:
    """The record at `key` of the registry. Raises `RecordError`, also for one of another name."""
    try:
        record = QueueRecord.decode(value)
    except RecordError as error:
        raise RecordError(f"registry key {key!r}: {error}") from error
    if record.key != key:
        raise RecordError(f"registry key {key!r}: the record is of queue {record.name!r}")
    return record


def name_of_key(key: str) -> str:
    """The name of the queue whose record belongs at `key`."""
    return unquote(key.removeprefix(QUEUES), errors="replace")


def queue_key(name: str) -> str:
    return QUEUES + quote(name, safe="")


def new_queue_id() -> str:
    return uuid.uuid4().hex


def check_queue_name(name: str) -> None:
    """Raises `BrokerError` unless `name`, an internal one, can be the name of a queue."""
    check_name(split_name(name)[1], "a queue", field="queue")
