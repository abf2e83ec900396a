"""`ringmq queue consumers`: who consumes from a queue, and what each of them holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ringmq import ConsumerInfo
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table

COLUMNS = (
    *("consumer", "node", "peer", "state", "ack", "prefetch"),
    *("unacked", "bytes", "priority", "exclusive", "pulls"),
)


@click.command()
@click.argument("name")
@client_options
def consumers(name: str, target: Target) -> None:
    """The consumers of the queue NAME, in the order in which they came."""
    found = target.run(lambda client: client.operator.consumers(name))
    if target.as_json:
        emit_json([*map(_json, found)])
        return
    emit_table(
        COLUMNS,
        (
            (
                each.consumer_tag,
                each.node,
                each.peer or "-",
                each.state.name.lower(),
                "required" if each.ack_required else "when sent",
                each.prefetch_messages,
                each.messages_unacknowledged,
                each.bytes_unacknowledged,
                each.priority,
                "yes" if each.exclusive else "no",
                "yes" if each.pulls else "no",
            )
            for each in found
        ),
    )


def _json(info: ConsumerInfo) -> dict[str, Any]:
    return {**asdict(info), "state": info.state.name.lower(), "active": info.active}
