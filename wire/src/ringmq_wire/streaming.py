"""Calls as coroutines, for all that isn't hot: `await` for each batch, or for the one answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ringmq_wire.codes import Code, Metadata, RpcStatus
from ringmq_wire.errors import RpcError
from ringmq_wire.handler import CallHandler
from ringmq_wire.parts import WireMessage
from ringmq_wire.transport import WireCall


class CallStream(CallHandler):
    """The messages of one call, to be read and written by one task each.

    Credit goes back to the peer as messages are read.
    """

    def __init__(self) -> None:
        self._call: WireCall | None = None
        self._loop = asyncio.get_running_loop()
        self._messages: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._paused = False
        self._half_closed = False
        # How the call has ended; None while it goes on.
        self.status: RpcStatus | None = None
        # The metadata with which the answer began; None before.
        self.initial_metadata: Metadata | None = None

    @property
    def call(self) -> WireCall:
        assert self._call is not None
        return self._call

    def bind(self, call: WireCall) -> None:
        call.credit_by_hand = True
        self._call = call

    @property
    def next_bytes(self) -> int | None:
        """The size of the message that `read` would return without a wait; None if it would wait,
        or there is no more."""
        return len(self._messages[0]) if self._messages else None

    async def wait_message(self) -> int:
        """Returns when `read` would return at once: the size of its message, 0 behind the last.
        Raises `RpcError` as `read` does."""
        if not self._messages and not await self._wait_messages():
            return 0
        return len(self._messages[0])

    async def read(self) -> bytes | None:
        """The next message; None behind the last. Raises `RpcError` if the call has failed."""
        if not self._messages and not await self._wait_messages():
            return None
        message = self._messages.popleft()
        self.call.consumed(len(message) + 5)
        return message

    async def read_batch(self) -> list[bytes]:
        """All messages that are there, at least one; none behind the last."""
        if not self._messages and not await self._wait_messages():
            return []
        batch = list(self._messages)
        self._messages.clear()
        self.call.consumed(sum(map(len, batch)) + 5 * len(batch))
        return batch

    async def write(self, message: WireMessage) -> None:
        await self.write_batch((message,))

    @property
    def is_writable(self) -> bool:
        """Whether `write_now` may be called."""
        return not self._paused and self.status is None

    def write_now(self, message: WireMessage) -> None:
        """As `write`, of a stream that `is_writable`."""
        self.call.send((message,))

    async def write_batch(self, messages: Sequence[WireMessage]) -> None:
        """Returns once the next one may be written. Raises `RpcError` if the call has ended."""
        if self.status is not None:
            raise RpcError(self.status)
        self.call.send(messages)
        while self._paused and self.status is None:
            self._writer = self._loop.create_future()
            await self._writer

    async def write_taken(self, message: WireMessage) -> None:
        """As `write`, but returns once the connection has taken the whole message: with it, a
        budget can count what waits here. Raises `RpcError` if the call has ended before."""
        await self.write(message)
        while self.status is None and self.call.stream.pause_until_taken():
            self._paused = True
            self._writer = self._loop.create_future()
            await self._writer
        if self.status is not None:
            raise RpcError(self.status)

    def half_close(self) -> None:
        """No more is written."""
        self.call.half_close()

    def cancel(self) -> None:
        """Ends the call at once; who reads or writes now gets CANCELLED."""
        self.call.cancel()
        if self.status is None:
            CallStream.ended(self, RpcStatus(Code.CANCELLED, "this side has cancelled the call"))

    async def _wait_messages(self) -> bool:
        while not self._messages:
            if self.status is not None:
                if self.status.code is Code.OK:
                    return False
                raise RpcError(self.status)
            if self._half_closed:
                return False
            self._reader = self._loop.create_future()
            await self._reader
        return True

    # --- CallHandler ---

    def began(self, metadata: Metadata) -> None:
        self.initial_metadata = metadata
        _wake(self._reader)

    def received(self, messages: list[bytes]) -> None:
        self._messages.extend(messages)
        _wake(self._reader)

    def half_closed(self) -> None:
        self._half_closed = True
        _wake(self._reader)

    def ended(self, status: RpcStatus) -> None:
        self.status = status
        _wake(self._reader)
        _wake(self._writer)

    def pause_sending(self) -> None:
        self._paused = True

    def resume_sending(self) -> None:
        self._paused = False
        _wake(self._writer)


class OneAnswer(CallHandler):
    """The answer of a unary call."""

    def __init__(self) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answer: bytes | None = None

    def received(self, messages: list[bytes]) -> None:
        if self._answer is not None or len(messages) > 1:
            status = RpcStatus(Code.INTERNAL, "a unary call was answered with several messages")
            self.ended(status)
            # The call is cancelled by this: the rest isn't kept.
            raise RpcError(status)
        self._answer = messages[0]

    def ended(self, status: RpcStatus) -> None:
        if self.done.done():
            return
        if status.code is not Code.OK:
            self.done.set_exception(RpcError(status))
        elif self._answer is None:
            text = "a unary call was answered without a message"
            self.done.set_exception(RpcError(RpcStatus(Code.INTERNAL, text)))
        else:
            self.done.set_result(self._answer)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
