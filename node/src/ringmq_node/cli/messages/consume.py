"""`ringmq consume`: print a queue's messages, and take them off or put them back."""

from __future__ import annotations

import click

from ringmq import Client
from ringmq_node.cli.messages import look
from ringmq_node.cli.messages.printer import Printer
from ringmq_node.cli.messages.take import take
from ringmq_node.cli.options import Target, client_options

PREFETCH = 1000


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(1), help="Stop after so many. Default: when empty.")
@click.option("--follow", is_flag=True, help="Wait for more when the queue is empty.")
@click.option(
    "--ack/--requeue",
    default=True,
    show_default=True,
    help="Take messages off the queue once printed, or put them back.",
)
@client_options
def consume(queue: str, count: int | None, follow: bool, ack: bool, target: Target) -> None:
    """Print the messages of QUEUE, a line each (with --json: an object each)."""
    if follow and not ack:
        raise click.UsageError("--follow and --requeue exclude each other")
    printer = Printer(target.as_json)

    async def take_them(client: Client) -> None:
        prefetch = PREFETCH if count is None else min(count, PREFETCH)
        async with client.consumer(queue, prefetch=prefetch) as consumer:
            await take(client, consumer, printer, count, follow)

    async def look_at_them(client: Client) -> None:
        ready = (await client.queue(queue)).messages_ready
        wanted = ready if count is None else min(ready, count)
        if not wanted:
            return
        async with client.consumer(
            queue,
            prefetch=min(wanted, look.HELD_MESSAGES_MAX),
            prefetch_bytes=look.HELD_BYTES_MAX,
        ) as consumer:
            await look.look(client, consumer, printer, wanted, target.timeout_s)

    target.run(take_them if ack else look_at_them)
