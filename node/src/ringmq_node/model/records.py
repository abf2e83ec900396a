"""The registry's record of a queue; its ring's view has a key of its own.

    queues/<name, percent-encoded>   this record, as JSON
    rings/<id>                       the ring's view

Each declaration makes a new id. A queue that is deleted and declared again therefore never meets
the files or frames of its namesake.
"""

from __future__ import annotations

import json
import unicodedata
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Self
from urllib.parse import quote

from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_node.model.reasons import bad_request

QUEUES = "queues/"
REPLICAS_MAX = 7


class QueueMode(Enum):
    """Where a queue keeps its messages. The values are stored in the registry."""

    DEFAULT = "default"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """`nodes` should hold a replica each, in the order of the first ring.

    A queue that isn't `durable` is transient for life: its messages end with the last process that
    holds a synchronised replica (see `broker.transient`).
    """

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
            # Records written before queues had modes, or could be transient, lack these fields.
            QueueMode(value.get("mode", QueueMode.DEFAULT.value)),
            value.get("durable", True),
        )


def queue_key(name: str) -> str:
    return QUEUES + quote(name, safe="")


def new_queue_id() -> str:
    return uuid.uuid4().hex


def check_queue_name(name: str) -> None:
    """Raises `BrokerError` unless `name` can be the name of a queue."""
    size = len(name.encode())
    if not 1 <= size <= QUEUE_NAME_BYTES_MAX or any(map(_is_control, name)):
        raise bad_request(
            f"a queue's name has 1 to {QUEUE_NAME_BYTES_MAX} bytes and no control characters; "
            f"this one has {size} bytes",
            field="queue",
        )


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) == "Cc"
