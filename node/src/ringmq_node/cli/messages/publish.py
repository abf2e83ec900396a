"""`ringmq publish`: lines, or made-up messages, with confirms."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from ringmq import BlockReason, Client, Properties, Publisher, RingMQError
from ringmq_base.ranges import numbers_in
from ringmq_node.cli.load.bodies import filler
from ringmq_node.cli.messages.lines import read_lines
from ringmq_node.cli.messages.properties import property_options
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_report, progress_bar

WINDOW = 1000
SIZE_BYTES = 1024
# Chunks of lines that may wait for their confirms; bounds the lines held in memory.
_CHUNKS_MAX = 8


async def _made_up(count: int, size_bytes: int, chunk: int) -> AsyncIterator[list[bytes]]:
    body = filler(size_bytes)
    for first in range(0, count, chunk):
        yield [body] * min(chunk, count - first)


def _say_blocked(reasons: tuple[BlockReason, ...]) -> None:
    click.echo(f"blocked: {', '.join(reason.text for reason in reasons)}", err=True)


class _Sending:
    """Publishes chunks in order, with at most `_CHUNKS_MAX` of them unconfirmed. All messages have
    the same `attributes`, by their names in `Publisher.publish_batch`."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes
        self._started = time.perf_counter()
        self.published = 0
        self.confirmed = 0
        self._has_failed = False

    def say_unblocked(self) -> None:
        """Nothing once the command has given up: a stream that ends holds nobody either, and says
        nothing of the alarm."""
        if not self._has_failed:
            click.echo("not blocked any more", err=True)

    async def send(
        self, publisher: Publisher, chunks: AsyncIterator[list[bytes]], total: int | None
    ) -> None:
        places = asyncio.Semaphore(_CHUNKS_MAX)
        self._started = time.perf_counter()
        with progress_bar() as bar:
            shown = bar.add_task(f"publish {publisher.target}", total=total, note="")

            async def one(bodies: list[bytes]) -> None:
                failed: tuple[tuple[int, int], ...] = ((0, len(bodies) - 1),)
                try:
                    await publisher.publish_batch(bodies, **self._attributes)
                    failed = ()
                except RingMQError as error:
                    # A full queue takes the first ones.
                    failed = error.failed or failed
                    raise
                finally:
                    places.release()
                    self.confirmed += len(bodies) - numbers_in(failed)
                    bar.update(shown, completed=self.confirmed)

            try:
                async with asyncio.TaskGroup() as group:
                    async for bodies in chunks:
                        await places.acquire()
                        self.published += len(bodies)
                        group.create_task(one(bodies))
            except BaseException:
                self._has_failed = True
                raise

    def report(self, queue: str, exchange: str | None) -> dict[str, Any]:
        seconds = time.perf_counter() - self._started
        target = {"queue": queue} if exchange is None else {"exchange": exchange}
        return {
            **target,
            "published": self.published,
            "confirmed": self.confirmed,
            "seconds": round(seconds, 6),
            "rate_per_s": round(self.confirmed / seconds, 1),
        }


@click.command()
@click.argument("queue", required=False, default="")
@click.option(
    "--exchange",
    help='Publish to this exchange instead of a queue; "" is the default exchange.',
)
@click.option("--routing-key", default="", help="Of all messages, for the exchange.")
@click.option("--cc", multiple=True, help="A further routing key; repeatable.")
@click.option("--bcc", multiple=True, help="As --cc, and consumers aren't told.")
@click.option("--mandatory", is_flag=True, help="Fail if no queue is bound for the keys.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish the lines of this file. Default: of stdin.",
)
@click.option("--count", type=click.IntRange(1), help="Publish so many made-up messages instead.")
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(0),
    help=f"Their size in bytes.  [default: {SIZE_BYTES}]",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    default=WINDOW,
    show_default=True,
    help="Unconfirmed messages on their way.",
)
@click.option("--transient", is_flag=True, help="Confirmed before they are on disk.")
@click.option(
    "--priority",
    type=click.IntRange(0, 255),
    default=0,
    help="In a queue with --max-priority, the highest are delivered first.  [default: 0]",
)
@click.option(
    "--ttl-ms",
    type=click.IntRange(0),
    help="Milliseconds until a message that waits in a queue expires.  [default: the queue's]",
)
@property_options
@client_options
def publish(
    queue: str,
    exchange: str | None,
    routing_key: str,
    cc: tuple[str, ...],
    bcc: tuple[str, ...],
    mandatory: bool,
    path: Path | None,
    count: int | None,
    size_bytes: int | None,
    window: int,
    transient: bool,
    priority: int,
    ttl_ms: int | None,
    properties: Properties | None,
    target: Target,
) -> None:
    """Publish lines to QUEUE, each one a message, and wait for the confirms."""
    if (exchange is None) == (not queue):
        raise click.UsageError("give a QUEUE or an --exchange")
    if exchange is None and (routing_key or cc or bcc or mandatory):
        raise click.UsageError("--routing-key, --cc, --bcc and --mandatory go with --exchange")
    if count is None and size_bytes is not None:
        raise click.UsageError("--size goes with --count")
    if count is not None and path is not None:
        raise click.UsageError("--count and --file exclude each other")
    attributes: dict[str, Any] = {"transient": transient, "priority": priority, "ttl_ms": ttl_ms}
    attributes["properties"] = properties
    if exchange is not None:
        attributes |= {"routing_key": routing_key, "cc": cc, "bcc": bcc, "mandatory": mandatory}
    sending = _Sending(attributes)

    async def work(client: Client) -> None:
        async with client.publisher(
            queue,
            exchange=exchange,
            window_messages=window,
            on_blocked=_say_blocked,
            on_unblocked=sending.say_unblocked,
        ) as publisher:
            if count is not None:
                size = SIZE_BYTES if size_bytes is None else size_bytes
                await sending.send(publisher, _made_up(count, size, max(1, window // 4)), count)
                return
            with nullcontext(sys.stdin) if path is None else path.open("rb") as source:
                await sending.send(publisher, read_lines(source.fileno()), None)

    try:
        target.run(work)
    except BaseException:
        # The number of confirmed messages is worth knowing all the more when the rest failed.
        if sending.published:
            emit_report(sending.report(queue, exchange), as_json=target.as_json)
        raise
    emit_report(sending.report(queue, exchange), as_json=target.as_json)
