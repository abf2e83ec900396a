"""`ringmq cluster connections`: who is connected, and whose publishers are held."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ringmq import ConnectionInfo
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table

COLUMNS = ("node", "peer", "state", "held by", "publishers", "consumers", "relayed")


@click.command()
@client_options
def connections(target: Target) -> None:
    """The connections that have streams, at each node, and how their publishers fare."""
    found = target.run(lambda client: client.operator.connections())
    if target.as_json:
        emit_json(
            {
                "connections": [*map(_json, found.connections)],
                "silent_nodes": found.silent_nodes,
            }
        )
        return
    emit_table(
        COLUMNS,
        (
            (
                each.node,
                each.peer,
                each.state.name.lower(),
                ", ".join(reason.text for reason in each.flow_reasons) or "-",
                each.publishers,
                each.consumers,
                "yes" if each.relayed else "no",
            )
            for each in found.connections
        ),
    )
    for node in found.silent_nodes:
        click.echo(f"node {node} hasn't answered: its connections are missing", err=True)


def _json(info: ConnectionInfo) -> dict[str, Any]:
    return {
        **asdict(info),
        "state": info.state.name.lower(),
        "flow_reasons": [reason.name.lower() for reason in info.flow_reasons],
    }
