"""`ringmq publish` and `ringmq consume`: messages from and to lines of text."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

import ringmq
from ringmq import Batch, Client, Consumer, OutcomeUnknownError, Publisher
from ringmq_node.cli.options import client_options, run
from ringmq_node.cli.output import emit_facts, emit_json, progress_bar

WINDOW = 1000
SIZE_BYTES = 1024
PREFETCH = 1000
_READ_BYTES = 256 * 1024
# Chunks of lines that may wait for their confirms; bounds what is held in memory.
_CHUNKS_MAX = 8
# After this long without a message we ask whether the queue is empty.
_IDLE_S = 0.2
# What a look at a queue (`--requeue`) may hold: the most that a node allows.
_LOOK_BYTES_MAX = 1024 * 1024 * 1024
_LOOK_MESSAGES_MAX = 1_000_000


async def _readable(descriptor: int) -> None:
    """Returns when a read won't block. (A thread that reads would hold up Ctrl-C.)"""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        return  # epoll(7): a regular file, which is always ready
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, in lists of those that are there: `tail -f` isn't held back."""
    rest: list[bytes] = []
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            rest.append(data)
            continue
        yield b"".join([*rest, head]).split(b"\n")
        rest = [tail] if tail else []
    if rest:
        yield [b"".join(rest)]


async def _made_up(count: int, size_bytes: int, chunk: int) -> AsyncIterator[list[bytes]]:
    body = (b"ringmq " * (size_bytes // 7 + 1))[:size_bytes]
    for first in range(0, count, chunk):
        yield [body] * min(chunk, count - first)


class _Sending:
    """Chunks on their way, in order, at most `_CHUNKS_MAX` of them."""

    def __init__(self, transient: bool) -> None:
        self._transient = transient
        self._started = time.perf_counter()
        self.published = 0
        self.confirmed = 0

    async def send(
        self, publisher: Publisher, chunks: AsyncIterator[list[bytes]], total: int | None
    ) -> None:
        places = asyncio.Semaphore(_CHUNKS_MAX)
        self._started = time.perf_counter()
        with progress_bar() as bar:
            shown = bar.add_task(f"publish {publisher.queue}", total=total, note="")

            async def one(bodies: list[bytes]) -> None:
                try:
                    await publisher.publish_batch(bodies, transient=self._transient)
                finally:
                    places.release()
                self.confirmed += len(bodies)
                bar.update(shown, completed=self.confirmed)

            async with asyncio.TaskGroup() as group:
                async for bodies in chunks:
                    await places.acquire()
                    self.published += len(bodies)
                    group.create_task(one(bodies))

    def as_json(self, queue: str) -> dict[str, Any]:
        seconds = time.perf_counter() - self._started
        return {
            "queue": queue,
            "published": self.published,
            "confirmed": self.confirmed,
            "seconds": round(seconds, 6),
            "rate_per_s": round(self.confirmed / seconds, 1),
        }


@click.command()
@click.argument("queue")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish the lines of this file. Default: of stdin.",
)
@click.option("--count", type=click.IntRange(1), help="Publish so many made-up messages instead.")
@click.option(
    "--size", type=click.IntRange(0), help=f"Their size in bytes.  [default: {SIZE_BYTES}]"
)
@click.option(
    "--window",
    type=click.IntRange(1),
    default=WINDOW,
    show_default=True,
    help="Unconfirmed messages on their way.",
)
@click.option("--transient", is_flag=True, help="Confirmed before they are on disk.")
@client_options
def publish(
    queue: str,
    path: Path | None,
    count: int | None,
    size: int | None,
    window: int,
    transient: bool,
    seeds: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Publish lines to QUEUE, each one a message, and wait for the confirms."""
    if count is None and size is not None:
        raise click.UsageError("--size goes with --count")
    if count is not None and path is not None:
        raise click.UsageError("--count and --file exclude each other")
    sending = _Sending(transient)

    async def work() -> None:
        async with (
            ringmq.connect(seeds, deadline_s=timeout) as client,
            client.publisher(queue, window_messages=window) as publisher,
        ):
            if count is not None:
                size_bytes = SIZE_BYTES if size is None else size
                await sending.send(
                    publisher, _made_up(count, size_bytes, max(1, window // 4)), count
                )
                return
            with nullcontext(sys.stdin) if path is None else path.open("rb") as source:
                await sending.send(publisher, read_lines(source.fileno()), None)

    try:
        run(work())
    except BaseException:
        # What was confirmed is worth knowing all the more if the rest failed.
        if sending.published:
            (emit_json if as_json else emit_facts)(sending.as_json(queue))
        raise
    (emit_json if as_json else emit_facts)(sending.as_json(queue))


class _Printer:
    """Bodies as lines, or as JSON with what else is known of a message."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, batch: Batch) -> None:
        """On return it has been written: only then is it acked."""
        if not self._as_json:
            out = sys.stdout.buffer
            out.write(b"".join([body + b"\n" for body in batch.bodies]))
            out.flush()
            return
        for message in batch:
            row: dict[str, Any] = {
                "position": message.position,
                "redelivered": message.redelivered,
            }
            try:
                row["body"] = message.body.decode()
            except UnicodeDecodeError:
                row["body_base64"] = base64.b64encode(message.body).decode()
            emit_json(row)


async def _is_empty(client: Client, queue: str) -> bool:
    return (await client.queue(queue)).messages_ready == 0


class _Acks:
    """Acks all that is printed but the newest message, so that at the end there is an ack to
    wait for: acks are settled in order, so it tells of all of them."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._newest: Batch | None = None
        #: Whether the newest ack that was waited for is known to be safe.
        self.known = True

    async def note(self, batch: Batch) -> None:
        """`batch` has been printed."""
        if self._newest is not None:
            await self._consumer.ack(self._newest)
        await self._consumer.ack(batch[:-1])
        self._newest = batch[-1:]

    async def finish(self, *, wait: bool) -> None:
        """Acks the newest, too. Raises `TimedOutError` if it isn't known in time to be safe."""
        newest, self._newest = self._newest, None
        if newest is not None:
            self.known = await self._consumer.ack(newest, wait=wait)


async def _consume(
    client: Client, consumer: Consumer, printer: _Printer, count: int | None, follow: bool
) -> None:
    """Prints and acks, until `count` messages have come or (unless `follow`) none is left."""
    left = count
    acks = _Acks(consumer)
    while left is None or left > 0:
        batch = await consumer.next_batch(timeout_s=_IDLE_S)
        if batch is None:
            # It may be what the node waits for: its window has bytes, too.
            await acks.finish(wait=not follow)
            if not follow and await _is_empty(client, consumer.queue):
                break
            continue
        batch = batch[:left]
        printer.show(batch)
        await acks.note(batch)
        if left is not None:
            left -= len(batch)
    await acks.finish(wait=True)
    if not acks.known:
        raise OutcomeUnknownError(
            f"queue {consumer.queue!r}: the connection broke before the last acks were known "
            "to be safe: messages that were printed may be delivered again"
        )


async def _look(
    client: Client, consumer: Consumer, printer: _Printer, count: int, patience_s: float
) -> None:
    """Prints up to `count` messages, holds them meanwhile, and puts them back.

    Raises `ClickException` if it has to stop before, as no more can be held.
    """
    held: list[Batch] = []
    messages = size_bytes = 0
    heard_at = time.monotonic()
    while messages < count:
        batch = await consumer.next_batch(timeout_s=_IDLE_S)
        if batch is not None:
            if held and held[-1].generation != batch.generation:
                # The stream broke: all of these are back in the queue, and come again.
                held.clear()
                size_bytes = messages = 0
            batch = batch[: count - messages]
            printer.show(batch)
            held.append(batch)
            messages += len(batch)
            size_bytes += sum(map(len, batch.bodies))
            heard_at = time.monotonic()
            continue
        if await _is_empty(client, consumer.queue):
            count = messages
        # Nearly full is full: the next message may be a large one.
        elif (
            messages >= _LOOK_MESSAGES_MAX
            or size_bytes > _LOOK_BYTES_MAX // 2
            or time.monotonic() > heard_at + patience_s
        ):
            break
    for each in held:
        await consumer.nack(each, requeue=True)
    if messages < count:
        raise click.ClickException(
            f"queue {consumer.queue!r}: stopped after {messages} messages, {size_bytes} bytes, as "
            f"nothing more came: a look holds at most {_LOOK_MESSAGES_MAX} messages, "
            f"{_LOOK_BYTES_MAX} bytes"
        )


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
def consume(
    queue: str,
    count: int | None,
    follow: bool,
    ack: bool,
    seeds: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Print the messages of QUEUE, a line each (with --json: an object each)."""
    if follow and not ack:
        raise click.UsageError("--follow and --requeue exclude each other")
    printer = _Printer(as_json)

    async def work() -> None:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            if ack:
                prefetch = PREFETCH if count is None else min(count, PREFETCH)
                async with client.consumer(queue, prefetch=prefetch) as consumer:
                    await _consume(client, consumer, printer, count, follow)
                return
            ready = (await client.queue(queue)).messages_ready
            wanted = ready if count is None else min(ready, count)
            if wanted:
                async with client.consumer(
                    queue,
                    prefetch=min(wanted, _LOOK_MESSAGES_MAX),
                    prefetch_bytes=_LOOK_BYTES_MAX,
                ) as consumer:
                    await _look(client, consumer, printer, wanted, timeout)

    run(work())
