"""Consuming for good: messages are printed, then acknowledged."""

from __future__ import annotations

from ringmq import Batch, Client, Consumer, OutcomeUnknownError
from ringmq_node.cli.messages.printer import Printer

# After this long without a message, ask the cluster whether the queue is empty.
IDLE_S = 0.2


async def is_empty(client: Client, queue: str) -> bool:
    return (await client.queue(queue)).messages_ready == 0


class _Acks:
    """Acks (or rejects) all printed messages but the newest, so that there is one left to wait for.

    Acks are settled in order. So when the newest message's ack is known to be safe, all
    acks before it are safe, too, and only this one has to be waited for.
    """

    def __init__(self, consumer: Consumer, *, reject: bool) -> None:
        self._settle = consumer.reject if reject else consumer.ack
        self._newest: Batch | None = None
        #: Whether the newest ack that was waited for is known to be safe.
        self.known = True

    async def note(self, batch: Batch) -> None:
        """`batch` has been printed."""
        if self._newest is not None:
            await self._settle(self._newest)
        await self._settle(batch[:-1])
        self._newest = batch[-1:]

    async def finish(self, *, wait: bool) -> None:
        """Acks the newest message, too.

        With `wait`, raises `TimedOutError` if that ack isn't known to be safe in time.
        """
        newest, self._newest = self._newest, None
        if newest is not None:
            self.known = await self._settle(newest, wait=wait)


async def watch(client: Client, consumer: Consumer, printer: Printer, follow: bool) -> None:
    """Prints what an auto-ack consumer is given, until (unless `follow`) none is left."""
    while True:
        batch = await consumer.next_batch(timeout_s=IDLE_S)
        if batch is not None:
            printer.show(batch)
        elif not follow and await is_empty(client, consumer.queue):
            return


async def take(
    client: Client,
    consumer: Consumer,
    printer: Printer,
    count: int | None,
    follow: bool,
    *,
    reject: bool = False,
) -> None:
    """Prints and acks (or rejects), until `count` messages have come or (unless `follow`) none is
    left."""
    left = count
    acks = _Acks(consumer, reject=reject)
    while left is None or left > 0:
        batch = await consumer.next_batch(timeout_s=IDLE_S)
        if batch is None:
            # The node may be waiting for this very ack: the window is bounded in bytes,
            # too, and one large message can fill it.
            await acks.finish(wait=not follow)
            if not follow and await is_empty(client, consumer.queue):
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
