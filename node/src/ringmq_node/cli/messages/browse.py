"""`ringmq browse`: print messages by their positions, and leave them where they are."""

from __future__ import annotations

import sys
from typing import Any

import click

from ringmq import BrowsedBatch, BrowseSource, Client
from ringmq_node.cli.messages.properties import message_json
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json


@click.command()
@click.argument("queue")
@click.option(
    "--first", type=click.IntRange(0), help="The first position.  [default: the first there is]"
)
@click.option(
    "--end",
    type=click.IntRange(0),
    help="Stop before this position.  [default: behind the last confirmed message]",
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option(
    "--body-bytes",
    "body_bytes_max",
    type=click.IntRange(0),
    help="Only so many bytes of each body.  [default: all]",
)
@click.option(
    "--from",
    "source",
    type=click.Choice([source.value for source in BrowseSource]),
    default=BrowseSource.MASTER.value,
    show_default=True,
    help="Which replica to read.",
)
@client_options
def browse(
    queue: str,
    first: int | None,
    end: int | None,
    count: int | None,
    body_bytes_max: int | None,
    source: str,
    target: Target,
) -> None:
    """Print the messages of QUEUE at a range of positions: a line each, its position and its body
    (with --json: an object each). They stay in the queue, also those that consumers have."""

    async def look(client: Client) -> None:
        reader = client.reader(queue)
        stat = await reader.stat()
        begin = stat.first if first is None else first
        stop = stat.end if end is None else end
        if count is not None and begin < stop:
            stop = min(stop, (await reader.range_end(begin, messages_max=count)).end)
        async for batch in reader.browse(
            begin, max(begin, stop), source=BrowseSource(source), body_bytes_max=body_bytes_max
        ):
            (_show_json if target.as_json else _show)(batch)

    target.run(look)


def _show(batch: BrowsedBatch) -> None:
    out = sys.stdout.buffer
    out.write(b"".join(b"%d\t%s\n" % (each.position, each.body) for each in batch.messages))
    out.flush()
    for low, high in batch.damaged:
        click.echo(f"positions {low} to {high}: damaged on every replica", err=True)


def _show_json(batch: BrowsedBatch) -> None:
    rows = zip(batch.messages, batch.body_sizes, batch.persistent, strict=True)
    for message, size, persistent in rows:
        row: dict[str, Any] = {
            "position": message.position,
            "redelivered": message.redelivered,
            "persistent": persistent,
            "body_size": size,
        }
        emit_json(row | message_json(message))
    for low, high in batch.damaged:
        emit_json({"damaged": [low, high]})
