"""Clients of RabbitMQ over pika: a publisher that follows its queue, and short blocking calls.

The publisher does what the best clients do. It has confirms on and `mandatory` set, so that a
message without a queue isn't confirmed away. When its connection ends, it goes to the next node at
once; when a node is silent, it leaves it after as long as our own client waits. It leaves a node
that nacks, too: in 3.10 a channel that is opened while a quorum queue has no leader nacks
everything from then on, also when there is a leader again. It repeats all messages whose outcome
is open, in order. AMQP has no way to recognise a repeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError

from bench.failover.load import Confirms, body_of, number_of
from bench.measure import BenchError

PORT = 5672
CONNECT_S_MAX = 2.0
# As `ringmq`'s client: without a confirm for so long it looks for the master again.
SILENCE_S_MAX = 3.0
SILENCE_POLL_S = 0.1
# Between two attempts once no node has taken the connection, and after a nack.
AGAIN_AFTER_S = 0.1
DRAIN_PREFETCH, DRAIN_ACKS_OF = 2000, 500
DRAIN_IDLE_S = 0.3
DRAIN_S_MAX = 120.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def parameters(address: str) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        host=address,
        port=PORT,
        connection_attempts=1,
        socket_timeout=CONNECT_S_MAX,
        stack_timeout=CONNECT_S_MAX,
    )


class _Stream:
    """One connection with one channel, from its start to its end."""

    def __init__(self, address: str, queue: str, on_confirms: Confirms) -> None:
        loop = asyncio.get_running_loop()
        self._queue, self._on_confirms = queue, on_confirms
        self.opened: asyncio.Future[None] = loop.create_future()
        self.ended = asyncio.Event()
        self.nacked = False
        self.heard_at = time.monotonic()
        # By delivery tag; numbers that came back have no queue to be in.
        self.open_numbers: dict[int, int] = {}
        self._returned: set[int] = set()
        self._to_repeat: list[int] = []
        self._tag = 0
        self._channel: Any = None
        self._connection = AsyncioConnection(
            parameters(address),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
            custom_ioloop=loop,
        )

    def publish(self, number: int, size_bytes: int) -> None:
        self._tag += 1
        self.open_numbers[self._tag] = number
        body = body_of(number, size_bytes)
        try:
            self._channel.basic_publish("", self._queue, body, PERSISTENT, mandatory=True)
        except AMQPError:
            self.ended.set()  # It is closing, and `_on_end` not called yet. The next one repeats.

    def taken_to_repeat(self) -> list[int]:
        """The messages that came back since the last call."""
        taken, self._to_repeat = self._to_repeat, []
        return taken

    def leave(self) -> None:
        """Nothing that it hears from now on counts."""
        self.ended.set()
        if self._connection.is_open:
            self._connection.close()

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_end)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=self._on_selected)

    def _on_selected(self, _: object) -> None:
        self.heard_at = time.monotonic()
        if not self.opened.done():
            self.opened.set_result(None)

    def _on_end(self, _: object, reason: object) -> None:
        self.ended.set()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(str(reason)))
            self.opened.exception()  # It may have been given up: then nobody asks.

    def _on_return(self, _channel: object, _method: object, _header: object, body: bytes) -> None:
        self._returned.add(number_of(body))

    def _on_confirm(self, frame: Any) -> None:
        if self.ended.is_set():
            return
        self.heard_at = time.monotonic()
        method = frame.method
        tag = method.delivery_tag
        tags = [each for each in self.open_numbers if each <= tag] if method.multiple else [tag]
        if isinstance(method, pika.spec.Basic.Nack):
            self.nacked = True
            self.ended.set()
            return
        numbers = [self.open_numbers.pop(each) for each in tags]
        self._to_repeat += [number for number in numbers if number in self._returned]
        self._on_confirms([number for number in numbers if number not in self._returned])
        self._returned.difference_update(numbers)


class RabbitSender:
    """`addresses` by node; `full_name` is the queue's name in RabbitMQ."""

    def __init__(self, addresses: Mapping[str, str], full_name: Callable[[str], str]) -> None:
        self._addresses, self._full_name = addresses, full_name
        self._stream: _Stream | None = None
        self._follower: asyncio.Task[None] | None = None
        # In order: what has no confirm, with the size.
        self._outstanding: dict[int, int] = {}

    async def open(self, queue: str, node: str, on_confirms: Confirms) -> None:
        self._queue = self._full_name(queue)
        self._on_confirms = on_confirms
        nodes = [*self._addresses]
        self._at = nodes.index(node)
        deadline = time.monotonic() + DRAIN_S_MAX
        while not await self._connect():
            if time.monotonic() > deadline:
                raise BenchError(f"rabbitmq: {node} takes no connection")
            await asyncio.sleep(AGAIN_AFTER_S)
        self._follower = asyncio.create_task(self._follow(), name=f"follows {self._queue}")

    def send(self, numbers: range, size_bytes: int) -> None:
        self._outstanding.update(dict.fromkeys(numbers, size_bytes))
        stream = self._stream
        if stream is not None and not stream.ended.is_set():
            for number in numbers:
                stream.publish(number, size_bytes)

    async def close(self) -> None:
        ended: object = None
        if self._follower is not None:
            self._follower.cancel()
            (ended,) = await asyncio.gather(self._follower, return_exceptions=True)
        if self._stream is not None:
            self._stream.leave()
        if isinstance(ended, Exception):
            raise ended  # It had ended by itself: what looks like an outage is ours.

    async def _connect(self) -> bool:
        """To the node `_at`; then everything open is sent again, before anything new."""
        address = [*self._addresses.values()][self._at]
        stream = _Stream(address, self._queue, self._confirm)
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await stream.opened
        except (ConnectionError, TimeoutError, AMQPError):
            stream.leave()
            return False
        self._stream = stream
        for number, size_bytes in self._outstanding.items():
            stream.publish(number, size_bytes)
        return True

    async def _follow(self) -> None:
        while True:
            assert self._stream is not None
            await self._until_over(self._stream)
            self._stream.leave()
            if self._stream.nacked:
                await asyncio.sleep(AGAIN_AFTER_S)  # The queue's trouble, so the next node's too.
            self._stream = None
            refused = 0
            while self._stream is None:
                self._at = (self._at + 1) % len(self._addresses)
                if not await self._connect():
                    refused += 1
                    if refused % len(self._addresses) == 0:
                        await asyncio.sleep(AGAIN_AFTER_S)

    async def _until_over(self, stream: _Stream) -> None:
        """Until the stream has ended, or has been silent for too long with messages open."""
        silent_since = time.monotonic()
        while not stream.ended.is_set():
            if not stream.open_numbers:
                silent_since = time.monotonic()
            elif time.monotonic() - max(silent_since, stream.heard_at) > SILENCE_S_MAX:
                return
            for number in stream.taken_to_repeat():
                stream.publish(number, self._outstanding[number])
            try:
                async with asyncio.timeout(SILENCE_POLL_S):
                    await stream.ended.wait()
            except TimeoutError:
                continue

    def _confirm(self, numbers: Any) -> None:
        for number in numbers:
            self._outstanding.pop(number, None)
        self._on_confirms(numbers)


# --- blocking calls, for threads ---


def _with_channel(address: str, work: Callable[[Any], Any]) -> Any:
    try:
        connection = pika.BlockingConnection(parameters(address))
        try:
            return work(connection.channel())
        finally:
            if connection.is_open:
                connection.close()
    except AMQPError as error:
        raise BenchError(f"rabbitmq at {address}: {error!r}") from error


def declare(address: str, queue: str, type_name: str) -> None:
    arguments = {"x-queue-type": type_name}
    _with_channel(
        address, lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments)
    )


def delete(address: str, queue: str) -> None:
    _with_channel(address, lambda channel: channel.queue_delete(queue))


def drain(address: str, queue: str) -> list[int]:
    """Takes out and acks everything; the numbers, repeated deliveries of one message once."""
    found: list[int] = _with_channel(address, partial(_drain, queue))
    return found


def _drain(queue: str, channel: Any) -> list[int]:
    found: list[int] = []
    channel.basic_qos(prefetch_count=DRAIN_PREFETCH)
    deadline = time.monotonic() + DRAIN_S_MAX
    tag = 0
    for method, _, body in channel.consume(queue, inactivity_timeout=DRAIN_IDLE_S):
        if method is not None:
            found.append(number_of(body))
            tag = method.delivery_tag
        if tag and (method is None or len(found) % DRAIN_ACKS_OF == 0):
            channel.basic_ack(tag, multiple=True)
            tag = 0
        if method is None:
            left = channel.queue_declare(queue, passive=True).method.message_count
            if left == 0:
                break
        if time.monotonic() > deadline:
            raise BenchError(f"rabbitmq: {queue} isn't empty after {DRAIN_S_MAX:g} s")
    channel.cancel()
    return found
