"""The clients of a chaos run: they publish, consume and ack all the time, and write the history.

Each queue has

- a publisher and a consumer as an application has them: the client library, which finds the
  master again. Its confirms say how long nobody was served;
- a *stubborn* publisher for each node, which speaks the protocol itself and never asks another
  node. So a deposed master, or one that is cut off, keeps a client that believes it. It knows the
  epoch and the master of each stream, and never sends a message twice.

All are in this process, and in the host that can reach every node.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc.aio
from history.records import (
    Ack,
    Confirm,
    Deliver,
    Drained,
    Garbled,
    History,
    Publish,
    Unknown,
    View,
)
from nemesis.oracle import body_of, parse_body, runs_of
from waiting import until

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1.broker_pb2_grpc import BrokerStub
from ringmq_base.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class Kind:
    """A queue, and what its clients do."""

    mode: ringmq.QueueMode
    size_bytes: int
    batch_messages: int
    pause_s: float
    # The consumer takes nothing for so long, and then all there is.
    idle_s: float = 0.0


QUEUES: Mapping[str, Kind] = {
    "small": Kind(ringmq.QueueMode.DEFAULT, 200, 5, 0.02),
    # Bodies above `embed_below`: they lie in the message store.
    "large": Kind(ringmq.QueueMode.DEFAULT, 6000, 2, 0.04),
    # A backlog on the disk, which a start or a new master has to read.
    "backlog": Kind(ringmq.QueueMode.LAZY, 300, 5, 0.04, idle_s=12.0),
}
REPLICAS, MIN_INSYNC = 3, 2

# Longer than any fault and its repair: a publish that fails sooner has met a bug, or an operator.
DEADLINE_S = 90.0
BATCHES_AT_ONCE = 8
PREFETCH = 1000
ACKS_AT_ONCE = 20
ACK_S_MAX = 20.0
AGAIN_AFTER_S = 0.3
LOOK_EACH_S, LOOK_S_MAX = 0.25, 1.0

VERIFY_S_MAX = 60.0
DAMAGE_KINDS = (ringmq.DifferenceKind.MISSING, ringmq.DifferenceKind.BODY)

# Of stubborn publishers.
STUBBORN_PAUSE_S = 0.1
STUBBORN_MESSAGES = 2
STUBBORN_BATCHES_AT_ONCE = 20
SILENCE_S_MAX = 4.0

# The body of a library's message, with its number as group 1.
BODY = rb"lib-[a-z]+ (\d{9}) \.+"
# Messages in a row that only one of the nodes may have damaged; see `may_be_damaged`.
STRETCH, MARGIN = 200, 50


def may_be_damaged(number: int, node_index: int, nodes: int) -> bool:
    """Whether the disk of this one of the nodes may have a flipped bit in the message. No two
    nodes' may; and the margins are there because damage to one body can take its neighbours."""
    mine = number // STRETCH % nodes == node_index
    return mine and MARGIN <= number % STRETCH < STRETCH - MARGIN


class Load:
    """`async with Load(addresses, history) as load`: the queues are there, and clients at work."""

    def __init__(self, addresses: Mapping[str, str], history: History) -> None:
        self._addresses, self._history = dict(addresses), history
        self.queues = tuple(QUEUES)
        self.confirmed = dict.fromkeys(self.queues, 0)
        self.delivered = 0
        # Failures that a client saw, told once each.
        self.errors: dict[str, int] = {}
        self.infos: dict[str, ringmq.QueueInfo] = {}
        self._publishing = True
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []
        self._publishers: list[asyncio.Task[None]] = []

    # --- life ---

    async def __aenter__(self) -> Load:
        self._client = await ringmq.connect(list(self._addresses.values()), deadline_s=DEADLINE_S)
        for name, kind in QUEUES.items():
            await self._client.declare_queue(
                name, replicas=REPLICAS, min_insync=MIN_INSYNC, mode=kind.mode
            )
        for name, kind in QUEUES.items():
            self._start(self._publishers, self._publish(name, kind))
            for node in self._addresses:
                self._start(self._publishers, self._publish_stubbornly(name, node))
            self._start(self._tasks, self._consume(name, kind))
            self._start(self._tasks, self._look(name))
        return self

    def _start(self, tasks: list[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
        tasks.append(asyncio.create_task(work))

    async def __aexit__(self, *_: object) -> None:
        # A task group whose task fails in the moment of a cancellation raises the failure alone
        # (gh-116720): a task that is told only by that would go on, and be waited for, for ever.
        self._publishing = False
        self._ended = True
        for task in (*self._tasks, *self._publishers):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._publishers, return_exceptions=True)
        await self._client.close()

    def failed(self) -> None:
        """Raises what a client's task has raised, if one has."""
        for task in (*self._tasks, *self._publishers):
            if task.done() and not task.cancelled():
                task.result()

    async def end(self, within_s: float) -> None:
        """Publishes no more, and returns when every queue is empty, which the history is told."""
        self._publishing = False
        async with asyncio.timeout(within_s):
            await asyncio.gather(*self._publishers)
        for queue in self.queues:

            async def is_empty(queue: str = queue) -> bool:
                self.failed()
                info = await self._client.queue(queue)
                left = info.messages_ready + info.messages_unacknowledged + info.messages_damaged
                self.infos[queue] = info
                return left == 0

            await until(is_empty, f"queue {queue} is empty", within_s=within_s, poll_s=0.1)
            self._history.note(Drained(time.monotonic(), queue))

    async def differences(self, *, damage: bool) -> list[str]:
        """How the replicas differ, compared while the queues are in use. Damaged bodies count as
        no difference if `damage` was done: nobody need have read them yet."""
        found: list[str] = []
        for queue in self.queues:
            compared = await self._client.operator.verify_queue(queue, deadline_s=VERIFY_S_MAX)
            if not compared.done:
                found.append(f"queue {queue}: not compared to the end: {compared}")
            found += [
                f"queue {queue}: {each}"
                for each in compared.differences
                if not (damage and each.kind in DAMAGE_KINDS)
            ]
        return found

    def _trouble(self, client: str, error: BaseException) -> None:
        text = f"{client}: {type(error).__name__}: {error}"[:200]
        self.errors[text] = self.errors.get(text, 0) + 1

    # --- an application's publisher ---

    async def _publish(self, queue: str, kind: Kind) -> None:
        tag = f"lib-{queue}"
        room = asyncio.Semaphore(BATCHES_AT_ONCE)
        numbers = count(step=kind.batch_messages)
        async with (
            self._client.publisher(queue, deadline_s=DEADLINE_S) as publisher,
            asyncio.TaskGroup() as batches,
        ):
            while self._publishing:
                await room.acquire()
                first = next(numbers)
                last = first + kind.batch_messages - 1
                bodies = [body_of(tag, n, kind.size_bytes) for n in range(first, last + 1)]
                self._history.note(Publish(time.monotonic(), queue, tag, first, last))
                ticket = asyncio.ensure_future(publisher.publish_batch(bodies))
                ticket.add_done_callback(lambda _: room.release())
                batches.create_task(self._confirmed(queue, tag, first, last, ticket))
                await asyncio.sleep(kind.pause_s)

    async def _confirmed(
        self, queue: str, tag: str, first: int, last: int, ticket: asyncio.Future[None]
    ) -> None:
        try:
            await ticket
        except ringmq.RingMQError as error:
            self._trouble(f"publisher of {queue}", error)
            now = time.monotonic()
            sure = RangeSet([(first, last)])
            for low, high in error.failed:
                sure.remove(first + low, first + high)
                self._history.note(
                    Unknown(now, queue, tag, first + low, first + high, str(error)[:200])
                )
            for low, high in sure:
                self._history.note(Confirm(now, queue, tag, low, high))
        else:
            self._history.note(Confirm(time.monotonic(), queue, tag, first, last))
            self.confirmed[queue] += last - first + 1

    # --- an application's consumer ---

    async def _consume(self, queue: str, kind: Kind) -> None:
        name = f"consumer of {queue}"
        generations = count(1)
        while not self._ended:
            try:
                await self._consume_once(queue, kind, f"{name} {next(generations)}")
            except* ringmq.RingMQError as errors:
                for error in errors.exceptions:
                    self._trouble(name, error)
            await asyncio.sleep(max(AGAIN_AFTER_S, kind.idle_s if self._publishing else 0.0))

    async def _consume_once(self, queue: str, kind: Kind, name: str) -> None:
        """Until the queue is empty, if the consumer is idle at times; else for ever."""
        room = asyncio.Semaphore(ACKS_AT_ONCE)
        async with (
            self._client.consumer(queue, prefetch=PREFETCH) as consumer,
            asyncio.TaskGroup() as acks,
        ):
            while True:
                batch = await consumer.next_batch(timeout_s=1.0 if kind.idle_s else None)
                if batch is None:
                    return
                self._deliver(queue, name, kind, batch)
                await room.acquire()
                ack = asyncio.ensure_future(self._ack(queue, name, consumer, batch))
                ack.add_done_callback(lambda _: room.release())
                acks.create_task(_result_of(ack))

    def _deliver(self, queue: str, name: str, kind: Kind, batch: ringmq.Batch) -> None:
        now = time.monotonic()
        self.delivered += len(batch)
        for part in batch.parts:
            for offset, body in enumerate(part.bodies):
                if not _is_whole(body, kind):
                    self._history.note(Garbled(now, queue, name, part.first + offset))
                    return
        self._history.note(Deliver(now, queue, name, batch.generation, runs_of(batch)))

    async def _ack(
        self, queue: str, name: str, consumer: ringmq.Consumer, batch: ringmq.Batch
    ) -> None:
        try:
            safe = await consumer.ack(batch, wait=True, deadline_s=ACK_S_MAX)
        except ringmq.TimedOutError:
            return  # It may be delivered again.
        if safe:
            ranges = tuple((first, last) for first, last in batch.positions)
            self._history.note(Ack(time.monotonic(), queue, name, ranges))

    # --- a client that believes one node ---

    async def _publish_stubbornly(self, queue: str, node: str) -> None:
        lives = count(1)
        while self._publishing:
            tag = f"stubborn-{queue}-{node}-{next(lives)}"
            stream = _Stubborn(self._history, queue, tag)
            await stream.run(self._addresses[node], lambda: self._publishing)
            await asyncio.sleep(AGAIN_AFTER_S)

    # --- views ---

    async def _look(self, queue: str) -> None:
        before: View | None = None
        while True:
            try:
                info = await self._client.queue(queue, deadline_s=LOOK_S_MAX)
            except ringmq.RingMQError:
                self.infos.pop(queue, None)
            else:
                self.infos[queue] = info
                ring = tuple(each.node for each in info.ring)
                synchronised = tuple(each.node for each in info.ring if each.synchronised)
                view = View(0.0, queue, info.epoch, ring, synchronised, info.state.name)
                if view != before:
                    now = time.monotonic()
                    self._history.note(
                        View(now, queue, info.epoch, ring, synchronised, info.state.name)
                    )
                    before = view
            await asyncio.sleep(LOOK_EACH_S)


async def _result_of(ack: asyncio.Future[None]) -> None:
    await ack


def _is_whole(body: bytes, kind: Kind) -> bool:
    try:
        tag, number = parse_body(body)
    except ValueError:
        return False
    size_bytes = kind.size_bytes if tag.startswith("lib-") else _Stubborn.SIZE_BYTES
    return body == body_of(tag, number, size_bytes)


class _Stubborn:
    """One stream to one node, until it ends or the node has been silent for too long."""

    SIZE_BYTES = 100

    def __init__(self, history: History, queue: str, tag: str) -> None:
        self._history, self._queue, self._tag = history, queue, tag
        self._sent = self._confirmed = 0
        self._heard_at = 0.0

    async def run(self, address: str, wanted: Callable[[], bool]) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = BrokerStub(channel).Publish()
            try:
                async with asyncio.timeout(SILENCE_S_MAX):
                    opening = broker.PublishOpen(queue=self._queue, producer_id=os.urandom(16))
                    await call.write(broker.PublishRequest(open=opening))
                    answer: Any = await call.read()
                if answer is grpc.aio.EOF or not answer.HasField("opened"):
                    return
                async with asyncio.TaskGroup() as both:
                    reading = both.create_task(self._read(call, answer.opened))
                    both.create_task(self._write(call, reading, wanted))
            except* (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
                pass  # The node refuses, is cut off, or is gone: the next stream asks it again.
            finally:
                call.cancel()
                self._give_up()

    async def _write(
        self,
        call: grpc.aio.StreamStreamCall[broker.PublishRequest, broker.PublishResponse],
        reading: asyncio.Task[None],
        wanted: Callable[[], bool],
    ) -> None:
        while wanted() and not reading.done():
            if self._sent - self._confirmed < STUBBORN_BATCHES_AT_ONCE * STUBBORN_MESSAGES:
                first, last = self._sent, self._sent + STUBBORN_MESSAGES - 1
                bodies = [body_of(self._tag, n, self.SIZE_BYTES) for n in range(first, last + 1)]
                batch = broker.PublishBatch(first_sequence=first + 1, bodies=bodies)
                self._sent = last + 1
                now = time.monotonic()
                self._history.note(Publish(now, self._queue, self._tag, first, last))
                await call.write(broker.PublishRequest(batch=batch))
            await asyncio.sleep(STUBBORN_PAUSE_S)
        reading.cancel()

    async def _read(
        self,
        call: grpc.aio.StreamStreamCall[broker.PublishRequest, broker.PublishResponse],
        opened: broker.PublishOpened,
    ) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S_MAX):
                answer: Any = await call.read()
            if answer is grpc.aio.EOF or answer.HasField("moved") or answer.HasField("rejected"):
                return
            for each in answer.confirmed.sequences:
                self._confirm(each.first - 1, each.last - 1, opened)

    def _confirm(self, first: int, last: int, opened: broker.PublishOpened) -> None:
        """In the batches in which they were handed over."""
        now = time.monotonic()
        for low in range(first, last + 1, STUBBORN_MESSAGES):
            high = min(last, low + STUBBORN_MESSAGES - 1)
            self._history.note(
                Confirm(now, self._queue, self._tag, low, high, opened.epoch, opened.node)
            )
        self._confirmed = max(self._confirmed, last + 1)

    def _give_up(self) -> None:
        if self._sent > self._confirmed:
            left = (self._confirmed, self._sent - 1)
            self._history.note(
                Unknown(time.monotonic(), self._queue, self._tag, *left, "the stream ended")
            )
