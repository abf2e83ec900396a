"""The last look at a queue before a run is judged."""

from __future__ import annotations

from ringmq import Client


async def is_drained(client: Client, queue: str) -> bool:
    """Whether the queue has no message left, neither ready nor unacknowledged.

    A run asks this after the last message that it waits for: a duplicate would be behind it.
    """
    info = await client.queue(queue)
    return info.messages_ready == info.messages_unacknowledged == 0
