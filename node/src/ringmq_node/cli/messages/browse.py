"""`ringmq browse`: print messages by their positions, and leave them where they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from ringmq import BrowsedBatch, BrowseSource, Client, Message
from ringmq_node.cli.messages.properties import (
    check_properties_option,
    message_json,
    properties_json,
    properties_option,
    words,
)
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
@properties_option
@client_options
def browse(
    queue: str,
    first: int | None,
    end: int | None,
    count: int | None,
    body_bytes_max: int | None,
    source: str,
    with_properties: bool,
    target: Target,
) -> None:
    """Print the messages of QUEUE at a range of positions: a line each, its position and its body
    (with --json: an object each). They stay in the queue, also those that consumers have."""

    check_properties_option(with_properties, target)

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
            if target.as_json:
                _show_json(batch)
            else:
                _show(batch, with_properties=with_properties)

    target.run(look)


def _show(batch: BrowsedBatch, *, with_properties: bool) -> None:
    out = sys.stdout.buffer
    for message, row in _rows(batch):
        said = b""
        if with_properties:
            said = words(row | properties_json(message.properties)).encode() + b"\t"
        out.write(b"%d\t%s%s\n" % (message.position, said, message.body))
    out.flush()
    for low, high in batch.damaged:
        click.echo(f"positions {low} to {high}: damaged on every replica", err=True)


def _rows(batch: BrowsedBatch) -> Iterator[tuple[Message, dict[str, Any]]]:
    """The messages, and of each what isn't its own, but for its position."""
    for message, size, persistent in zip(
        batch.messages, batch.body_sizes, batch.persistent, strict=True
    ):
        yield (
            message,
            {"redelivered": message.redelivered, "persistent": persistent, "body_size": size},
        )


def _show_json(batch: BrowsedBatch) -> None:
    for message, row in _rows(batch):
        emit_json({"position": message.position} | row | message_json(message))
    for low, high in batch.damaged:
        emit_json({"damaged": [low, high]})
