"""What the registry knows of a queue, besides its ring.

    queues/<name, percent-encoded>   this record, as JSON
    rings/<id>                       the ring's view

The id is made anew when a queue is declared, so that a queue that is deleted and
declared again never meets the files or frames of its namesake.
"""

from __future__ import annotations

import json
import unicodedata
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Self
from urllib.parse import quote

from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_node.model.reasons import BrokerError

QUEUES = "queues/"
REPLICAS_MAX = 7


class QueueMode(Enum):
    """Where a queue keeps its messages. The value is what the registry has."""

    DEFAULT = "default"
    LAZY = "lazy"


_TO_WIRE = {
    QueueMode.DEFAULT: common.QUEUE_MODE_DEFAULT,
    QueueMode.LAZY: common.QUEUE_MODE_LAZY,
}
_FROM_WIRE = {wire: mode for mode, wire in _TO_WIRE.items()}


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """`nodes`: those that should hold a replica, in the order of the first ring. Not `durable`:
    nothing of the queue outlives the processes that hold it; it stays so for life."""

    name: str
    id: str
    nodes: tuple[str, ...]
    min_insync: int
    mode: QueueMode = QueueMode.DEFAULT
    durable: bool = True

    @property
    def key(self) -> str:
        return queue_key(self.name)

    def encode(self) -> bytes:
        value = {
            "name": self.name,
            "id": self.id,
            "nodes": self.nodes,
            "min_insync": self.min_insync,
            "mode": self.mode.value,
            "durable": self.durable,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        value = json.loads(data)
        return cls(
            value["name"],
            value["id"],
            tuple(value["nodes"]),
            value["min_insync"],
            # Records that are older than modes, or than transient queues, don't say.
            QueueMode(value.get("mode", QueueMode.DEFAULT.value)),
            value.get("durable", True),
        )


def queue_key(name: str) -> str:
    return QUEUES + quote(name, safe="")


def new_queue_id() -> str:
    return uuid.uuid4().hex


def check_queue_name(name: str) -> None:
    """Refuses what can't be the name of a queue."""
    size = len(name.encode())
    if not 1 <= size <= QUEUE_NAME_BYTES_MAX or any(map(_is_control, name)):
        raise BrokerError(
            common.REASON_BAD_REQUEST,
            f"a queue's name has 1 to {QUEUE_NAME_BYTES_MAX} bytes and no control characters; "
            f"this one has {size} bytes",
            field="queue",
        )


def mode_to_wire(mode: QueueMode) -> common.QueueMode.ValueType:
    return _TO_WIRE[mode]


def mode_from_wire(value: common.QueueMode.ValueType) -> QueueMode | None:
    """None: unspecified. Raises for a mode that there isn't."""
    mode = _FROM_WIRE.get(value)
    if mode is None and value != common.QUEUE_MODE_UNSPECIFIED:
        raise BrokerError(
            common.REASON_BAD_REQUEST,
            f"there is no queue mode {value}; there are default (1) and lazy (2)",
            field="mode",
        )
    return mode


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) == "Cc"
