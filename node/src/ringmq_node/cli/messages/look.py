"""A look at a queue: messages are printed, held meanwhile, and put back to their places.

They have to be held until the look ends: a message that is put back at once would be
delivered again, in front of the ones not seen yet.
"""

from __future__ import annotations

import time

import click

from ringmq import Batch, Client, Consumer
from ringmq_node.cli.messages.printer import Printer
from ringmq_node.cli.messages.take import IDLE_S, is_empty

# The largest windows that a node allows a consumer, so the most that a look can hold.
HELD_BYTES_MAX = 1024 * 1024 * 1024
HELD_MESSAGES_MAX = 1_000_000


async def look(
    client: Client, consumer: Consumer, printer: Printer, count: int, patience_s: float
) -> None:
    """Prints up to `count` messages, then puts them back.

    Raises `ClickException` if the consumer's window is full before that: no more messages
    can be held.
    """
    held: list[Batch] = []
    messages = size_bytes = 0
    heard_at = time.monotonic()
    while messages < count:
        batch = await consumer.next_batch(timeout_s=IDLE_S)
        if batch is not None:
            if held and held[-1].generation != batch.generation:
                # The stream broke: its node put all held messages back, and delivers them anew.
                held.clear()
                size_bytes = messages = 0
            batch = batch[: count - messages]
            printer.show(batch)
            held.append(batch)
            messages += len(batch)
            size_bytes += sum(map(len, batch.bodies))
            heard_at = time.monotonic()
            continue
        if await is_empty(client, consumer.queue):
            count = messages
        # A window that is half full in bytes counts as full: the next message may be large.
        elif (
            messages >= HELD_MESSAGES_MAX
            or size_bytes > HELD_BYTES_MAX // 2
            or time.monotonic() > heard_at + patience_s
        ):
            break
    for each in held:
        await consumer.nack(each, requeue=True)
    if messages < count:
        raise click.ClickException(
            f"queue {consumer.queue!r}: stopped after {messages} messages, {size_bytes} bytes, as "
            f"nothing more came: a look holds at most {HELD_MESSAGES_MAX} messages, "
            f"{HELD_BYTES_MAX} bytes"
        )
