"""`ringmq queue list` and `queue show`: these look, and change nothing."""

from __future__ import annotations

from dataclasses import asdict

import click

from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_facts, emit_json, emit_table
from ringmq_node.cli.queue.description import (
    losses_text,
    queue_json,
    ring_text,
    storage_facts,
    sync_text,
)

LIST_COLUMNS = (
    *("queue", "state", "mode", "durable", "ring"),
    *("epoch", "ready", "unacked", "bytes", "consumers", "losses"),
)
RING_COLUMNS = ("replica", "role", "synchronised", "received", "persisted")


@click.command("list")
@click.argument("prefix", default="")
@client_options
def list_queues(prefix: str, target: Target) -> None:
    """All queues, or those whose names begin with PREFIX."""
    found = target.run(lambda client: client.queues(prefix))
    if target.as_json:
        emit_json([queue_json(info) for info in found])
        return
    emit_table(
        LIST_COLUMNS,
        (
            (
                info.queue,
                info.state.name.lower(),
                info.mode.name.lower(),
                "yes" if info.durable else "no",
                ring_text(info),
                info.epoch,
                info.messages_ready,
                info.messages_unacknowledged,
                info.bytes_ready + info.bytes_unacknowledged,
                info.consumers,
                len(info.losses),
            )
            for info in found
        ),
    )
    for info in found:
        if info.quarantine:
            click.echo(f"queue {info.queue} is quarantined: {info.quarantine}", err=True)


@click.command()
@click.argument("name")
@client_options
def show(name: str, target: Target) -> None:
    """Everything about the queue NAME."""
    info = target.run(lambda client: client.queue(name))
    facts = queue_json(info)
    if target.as_json:
        emit_json(facts | {"storage": None if info.storage is None else asdict(info.storage)})
        return
    # The ring is the table below the facts.
    del facts["ring"]
    facts["losses"] = losses_text(info) or None
    if info.storage is not None:
        facts |= storage_facts(info.storage)
    emit_facts(facts)
    emit_table(
        RING_COLUMNS,
        (
            (
                replica.node,
                "mirror" if index else "master",
                sync_text(replica),
                replica.received,
                replica.persisted,
            )
            for index, replica in enumerate(info.ring)
        ),
    )
