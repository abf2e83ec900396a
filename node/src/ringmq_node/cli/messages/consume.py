"""`ringmq consume`: print a queue's messages, and take them off, refuse them or put them back."""

from __future__ import annotations

from functools import partial

import click

from ringmq import Client
from ringmq_node.cli.messages import look
from ringmq_node.cli.messages.printer import Printer
from ringmq_node.cli.messages.take import take, watch
from ringmq_node.cli.options import Target, client_options

PREFETCH = 1000


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(1), help="Stop after so many. Default: when empty.")
@click.option("--follow", is_flag=True, help="Wait for more when the queue is empty.")
@click.option(
    "--ack", "verb", flag_value="ack", default="ack", help="Take printed messages off.  [default]"
)
@click.option("--requeue", "verb", flag_value="requeue", help="Put them back in their places.")
@click.option("--reject", "verb", flag_value="reject", help="Refuse them: dead letters, if any.")
@click.option("--auto-ack", "verb", flag_value="auto", help="They are acknowledged when sent.")
@click.option(
    "--prefetch",
    type=click.IntRange(1, look.HELD_MESSAGES_MAX),
    help=f"Messages that may be unacknowledged.  [default: {PREFETCH}, or the count]",
)
@click.option("--prefetch-bytes", type=click.IntRange(0), default=0, help="0: the node's default.")
@click.option("--priority", type=int, default=0, help="Higher ones are given messages first.")
@click.option("--exclusive", is_flag=True, help="Be the only consumer, or fail.")
@client_options
def consume(
    queue: str,
    count: int | None,
    follow: bool,
    verb: str,
    prefetch: int | None,
    prefetch_bytes: int,
    priority: int,
    exclusive: bool,
    target: Target,
) -> None:
    """Print the messages of QUEUE, a line each (with --json: an object each)."""
    if follow and verb == "requeue":
        raise click.UsageError("--follow and --requeue exclude each other")
    if verb == "requeue" and (prefetch is not None or prefetch_bytes):
        raise click.UsageError("--requeue holds all that it prints: it takes no prefetch")
    if verb == "auto" and count is not None:
        raise click.UsageError("--auto-ack and --count exclude each other: more would be sent")
    printer = Printer(target.as_json)
    consumer_of = partial(Client.consumer, queue=queue, priority=priority, exclusive=exclusive)

    async def take_them(client: Client) -> None:
        async with consumer_of(
            client,
            prefetch=prefetch or (PREFETCH if count is None else min(count, PREFETCH)),
            prefetch_bytes=prefetch_bytes,
            auto_ack=verb == "auto",
        ) as consumer:
            if verb == "auto":
                await watch(client, consumer, printer, follow)
            else:
                await take(client, consumer, printer, count, follow, reject=verb == "reject")

    async def look_at_them(client: Client) -> None:
        ready = (await client.queue(queue)).messages_ready
        wanted = ready if count is None else min(ready, count)
        if not wanted:
            return
        async with consumer_of(
            client,
            prefetch=min(wanted, look.HELD_MESSAGES_MAX),
            prefetch_bytes=look.HELD_BYTES_MAX,
        ) as consumer:
            await look.look(client, consumer, printer, wanted, target.timeout_s)

    target.run(look_at_them if verb == "requeue" else take_them)
