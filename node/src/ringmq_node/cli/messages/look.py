"""A look at a queue: messages are printed, held meanwhile, and go back to their places.

They have to be held until the look ends: a message that is put back at once would be
delivered again, in front of the ones not seen yet. What puts them back is the consumer's end:
one that nacks them is there still when they are ready again, and is given them once more.
"""

from __future__ import annotations

import time

import click

from ringmq import Client, Consumer
from ringmq_node.cli.messages.printer import Printer
from ringmq_node.cli.messages.take import IDLE_S, is_empty

# The largest windows that a node allows a consumer, so the most that a look can hold.
HELD_BYTES_MAX = 1024 * 1024 * 1024
HELD_MESSAGES_MAX = 1_000_000


async def look(
    client: Client, consumer: Consumer, printer: Printer, count: int, patience_s: float
) -> None:
    """Prints up to `count` messages, and leaves them to the consumer, whose end puts them back.

    Raises `ClickException` if the consumer's window is full before that: no more messages
    can be held.
    """
    messages = size_bytes = generation = 0
    heard_at = time.monotonic()
    while messages < count:
        batch = await consumer.next_batch(timeout_s=IDLE_S)
        if batch is not None:
            if generation != batch.generation:
                # The stream broke: its node put all held messages back, and delivers them anew.
                generation = batch.generation
                size_bytes = messages = 0
            batch = batch[: count - messages]
            printer.show(batch)
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
    if messages < count:
        raise click.ClickException(
            f"queue {consumer.queue!r}: stopped after {messages} messages, {size_bytes} bytes, as "
            f"nothing more came: a look holds at most {HELD_MESSAGES_MAX} messages, "
            f"{HELD_BYTES_MAX} bytes"
        )
