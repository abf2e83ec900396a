"""Printing delivered messages."""

from __future__ import annotations

import sys
from typing import Any

from ringmq import Batch, Message
from ringmq_node.cli.messages.properties import message_json, properties_json, words
from ringmq_node.cli.output import emit_json


class Printer:
    """Prints bodies as lines, `with_properties` behind all that the message has; with `as_json` an
    object for each. Both name `queue` unless that is empty."""

    def __init__(self, as_json: bool, queue: str = "", *, with_properties: bool = False) -> None:
        self._as_json = as_json
        self._with_properties = with_properties
        self._named = {"queue": queue} if queue else {}

    def show(self, batch: Batch) -> None:
        """Returns when the batch is written and flushed: a message is acked only after that."""
        if self._as_json:
            for message in batch:
                emit_json(self._row(message) | message_json(message))
            return
        out = sys.stdout.buffer
        if self._with_properties:
            for message in batch:
                text = words(self._row(message) | properties_json(message.properties))
                out.write(b"%s\t%s\n" % (text.encode(), message.body))
        else:
            out.write(b"".join([body + b"\n" for body in batch.bodies]))
        out.flush()

    def _row(self, message: Message) -> dict[str, Any]:
        return self._named | {
            "position": message.position,
            "redelivered": message.redelivered,
            "delivery_count": message.delivery_count,
        }
