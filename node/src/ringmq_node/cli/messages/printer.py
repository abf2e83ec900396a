"""Printing delivered messages."""

from __future__ import annotations

import sys
from typing import Any

from ringmq import Batch
from ringmq_node.cli.messages.properties import message_json
from ringmq_node.cli.output import emit_json


class Printer:
    """Prints bodies as lines; with `as_json` an object for each message, which names `queue` unless
    that is empty."""

    def __init__(self, as_json: bool, queue: str = "") -> None:
        self._as_json = as_json
        self._named = {"queue": queue} if queue else {}

    def show(self, batch: Batch) -> None:
        """Returns when the batch is written and flushed: a message is acked only after that."""
        if not self._as_json:
            out = sys.stdout.buffer
            out.write(b"".join([body + b"\n" for body in batch.bodies]))
            out.flush()
            return
        for message in batch:
            row: dict[str, Any] = self._named | {
                "position": message.position,
                "redelivered": message.redelivered,
                "delivery_count": message.delivery_count,
            }
            emit_json(row | message_json(message))
