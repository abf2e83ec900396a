"""Messages for callers that ask for them: taken from a queue, given to a consumer, or looked at.

A get waits for three things before it answers that there is nothing: the first confirm after a
take-over, the repair of the message that comes next, and messages that have expired and are still
in the way. A consumer that pulls also waits for what it, or another, has just requeued.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from ringmq_base.notifier import Notifier
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.effects import Effect
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.run import Run
from ringmq_node.replica.refusals import no_trip
from ringmq_node.replica.subscribers import Subscribers
from ringmq_node.replica.upkeep import Upkeep

# How long a get waits for the first confirm after a take-over.
INHERITANCE_WAIT_S = 1.0
# How long a pull waits for messages that are on their way back to their places.
REQUEUE_WAIT_S = 1.0
# How long a get waits for the repair of the message that comes next.
REPAIR_WAIT_S = 5.0


class GivingMaster(Protocol):
    """A mastership, as this module uses it."""

    ended: bool

    @property
    def epoch(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> QueueMaster: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def changed(self) -> Notifier: ...
    def check_serving(self) -> None: ...
    def check_writable(self) -> None: ...
    def next_number(self) -> int: ...
    @property
    def subscribers(self) -> Subscribers: ...
    def carry_out(self, effects: list[Effect]) -> None: ...
    async def wait_settled(self, number: int, effects: list[Effect]) -> None: ...


async def take(mastership: GivingMaster, messages_max: int, bytes_max: int) -> list[Run]:
    """Removes messages from the queue, and returns them when their removal is safe."""
    await _wait_inheritance(mastership)
    queue = mastership.queue
    while True:
        await _wait_expired(mastership)
        mastership.check_serving()
        mastership.check_writable()
        number = mastership.next_number()
        runs, effects = queue.take(number, messages_max, bytes_max)
        if runs:
            await mastership.wait_settled(number, effects)
        elif queue.is_held:
            await _wait_repaired(mastership)
            continue
        return runs


async def peek(mastership: GivingMaster, messages_max: int, bytes_max: int) -> list[Run]:
    """The first messages, which stay where they are."""
    await _wait_inheritance(mastership)
    queue = mastership.queue
    while True:
        await _wait_expired(mastership)
        mastership.check_serving()
        runs = queue.peek(messages_max, bytes_max)
        if runs or not queue.is_held:
            return runs
        await _wait_repaired(mastership)


async def pull(
    mastership: GivingMaster, consumer: int, messages_max: int, bytes_max: int
) -> tuple[list[Run], int]:
    """Gives messages to a consumer that asks for them; also says how many are ready then. Raises
    `BrokerError` if there are none but some that are on their way back."""
    await _wait_inheritance(mastership)
    queue = mastership.queue
    while True:
        await _wait_requeued(mastership)
        await _wait_expired(mastership)
        runs = mastership.subscribers.pull(consumer, messages_max, bytes_max)
        if runs or not (queue.is_held or queue.is_requeuing):
            return runs, len(queue.ready)
        if queue.is_held:
            await _wait_repaired(mastership)
            continue
        # They aren't ready, and may hold up those behind them. "None are ready" would be heard as
        # "the queue is empty".
        mastership.check_writable()
        raise no_trip(mastership.name, mastership.epoch, REQUEUE_WAIT_S)


async def _wait_requeued(mastership: GivingMaster) -> None:
    """Waits until messages that are on their way back can be had. While the ring takes no op they
    can't, and then the caller gets those behind them, if they may pass."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REQUEUE_WAIT_S):
            while not mastership.ended and mastership.queue.is_requeuing:
                await mastership.changed.wait()


async def _wait_expired(mastership: GivingMaster) -> None:
    """Returns, in this very turn of the loop, when no ready message has expired."""
    mastership.upkeep.used()
    while not mastership.ended and mastership.queue.keeping.is_overdue:
        mastership.carry_out(mastership.queue.expire())
        if mastership.queue.keeping.is_overdue:
            await asyncio.sleep(0)


async def _wait_inheritance(mastership: GivingMaster) -> None:
    """Waits until the messages of the previous master can be seen.

    A queue whose master has just changed isn't empty, but its messages are hidden until a trip
    around the ring has confirmed them. Without a quorum there is no such trip: then the
    caller sees the visible messages alone.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(INHERITANCE_WAIT_S):
            while not mastership.ended and mastership.queue.hides_inheritance:
                await mastership.changed.wait()


async def _wait_repaired(mastership: GivingMaster) -> None:
    """Waits while the next message is being repaired; raises if that takes too long."""
    try:
        async with asyncio.timeout(REPAIR_WAIT_S):
            while not mastership.ended and mastership.queue.is_held:
                await mastership.changed.wait()
    except TimeoutError:
        raise BrokerError(
            Reason.REPAIRING,
            f"queue {mastership.name!r}: its next message is damaged here, and is being "
            "fetched from another replica",
            queue=mastership.name,
        ) from None
