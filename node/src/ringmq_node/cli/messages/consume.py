"""`ringmq consume`: print a queue's messages, and take them off, refuse them or put them back."""

from __future__ import annotations

import asyncio
from functools import partial

import click

from ringmq import Client, RingMQError, SharedPrefetch
from ringmq_node.cli.messages import look
from ringmq_node.cli.messages.printer import Printer
from ringmq_node.cli.messages.properties import check_properties_option, properties_option
from ringmq_node.cli.messages.take import take, watch
from ringmq_node.cli.options import Target, client_options

PREFETCH = 1000


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
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
@click.option(
    "--shared-prefetch", type=click.IntRange(1), help="As --prefetch, for all queues together."
)
@click.option("--shared-prefetch-bytes", type=click.IntRange(1), help="The same in bytes.")
@click.option("--priority", type=int, default=0, help="Higher ones are given messages first.")
@click.option("--exclusive", is_flag=True, help="Be the only consumer, or fail.")
@properties_option
@client_options
def consume(
    queues: tuple[str, ...],
    count: int | None,
    follow: bool,
    verb: str,
    prefetch: int | None,
    prefetch_bytes: int,
    shared_prefetch: int | None,
    shared_prefetch_bytes: int | None,
    priority: int,
    exclusive: bool,
    with_properties: bool,
    target: Target,
) -> None:
    """Print the messages of each QUEUE, a line each (with --json: an object each)."""
    shares = shared_prefetch is not None or shared_prefetch_bytes is not None
    if len(queues) > 1 and (verb == "requeue" or count is not None):
        raise click.UsageError("--requeue and --count take one queue")
    if shares and verb in ("requeue", "auto"):
        raise click.UsageError(f"--{verb} takes no shared prefetch")
    if follow and verb == "requeue":
        raise click.UsageError("--follow and --requeue exclude each other")
    if verb == "requeue" and (prefetch is not None or prefetch_bytes):
        raise click.UsageError("--requeue holds all that it prints: it takes no prefetch")
    if verb == "auto" and count is not None:
        raise click.UsageError("--auto-ack and --count exclude each other: more would be sent")
    check_properties_option(with_properties, target)
    consumer_of = partial(Client.consumer, priority=priority, exclusive=exclusive)
    printer_of = partial(Printer, target.as_json, with_properties=with_properties)

    async def take_them(client: Client) -> None:
        shared = SharedPrefetch(shared_prefetch or 0, shared_prefetch_bytes or 0)
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue in queues:
                    tasks.create_task(take_one(client, queue, shared if shares else None))
        except* RingMQError as errors:
            raise errors.exceptions[0] from None

    async def take_one(client: Client, queue: str, shared: SharedPrefetch | None) -> None:
        printer = printer_of(queue if len(queues) > 1 else "")
        async with consumer_of(
            client,
            queue=queue,
            shared_prefetch=shared,
            prefetch=prefetch or (PREFETCH if count is None else min(count, PREFETCH)),
            prefetch_bytes=prefetch_bytes,
            auto_ack=verb == "auto",
        ) as consumer:
            if verb == "auto":
                await watch(client, consumer, printer, follow)
            else:
                await take(client, consumer, printer, count, follow, reject=verb == "reject")

    async def look_at_them(client: Client) -> None:
        (queue,) = queues
        ready = (await client.queue(queue)).messages_ready
        wanted = ready if count is None else min(ready, count)
        if not wanted:
            return
        async with consumer_of(
            client,
            queue=queue,
            prefetch=min(wanted, look.HELD_MESSAGES_MAX),
            prefetch_bytes=look.HELD_BYTES_MAX,
        ) as consumer:
            await look.look(client, consumer, printer_of(), wanted, target.timeout_s)

    target.run(look_at_them if verb == "requeue" else take_them)
