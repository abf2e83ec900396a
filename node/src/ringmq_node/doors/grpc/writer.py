"""The writing half of a publish or consume stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range, RangeSet
from ringmq_node.doors.grpc.service import Context
from ringmq_node.resources.buffers import UnsentBytes
from ringmq_wire import WireMessage

# Answers that may wait for one peer to read them: messages, and ranges within them.
ANSWERS_MAX = 1024
# Ranges that are merged into one message, some 2 us for each of them. No fewer than a settlement
# has: so a peer that doesn't read gets no more messages for them.
MERGED_RANGES_MAX = 1024

Then = Callable[[], None] | None


class StreamWriter:
    """Writes a stream's messages in order, and bounds the answers that wait for the peer to read.

    Deliveries are bounded by the consumer's prefetch, and over all streams by `unsent`. Answers are
    bounded by `wait_room`, which a stream awaits before it takes the next request: a peer that
    sends and never reads isn't read either. Ranges (confirms, settlements) that wait are merged
    into one message, unless another message was put between them: the order is kept. `of_ranges`
    makes that message.

    While the stream takes what is written, no task is woken for it: a call of the loop writes all
    that has gathered in a turn. `run` goes on where the stream has to be waited for.
    """

    def __init__(
        self,
        context: Context,
        of_ranges: Callable[[Sequence[Range]], Message],
        unsent: UnsentBytes | None = None,
    ) -> None:
        """`unsent` counts the bytes of messages that are no answers."""
        self._context = context
        self._of_ranges = of_ranges
        # Either a serialized message, the number of answers that it counts for, and what is called
        # once it is written; or ranges,
        # which count one each: a list while nothing was merged into it (nearly always), else a set.
        self._messages: deque[tuple[WireMessage, int, Then] | list[Range] | RangeSet] = deque()
        self._answers = 0
        # What `run` waits for, when it does.
        self._wake: asyncio.Future[None] | None = None
        self._is_due = False
        self._room: asyncio.Future[None] | None = None
        self._closed = False
        self._unsent = unsent
        self.written = 0

    @property
    def empty(self) -> bool:
        return not self._messages

    @property
    def full(self) -> bool:
        return self._answers >= ANSWERS_MAX

    def put(self, message: Message, *, answer: bool = True, then: Then = None) -> None:
        """`then` is called when the stream has taken the message, unless that never happens."""
        self.put_encoded(message.SerializeToString(), answer=answer, then=then)

    def put_encoded(self, data: WireMessage, *, answer: bool = True, then: Then = None) -> None:
        self._messages.append((data, int(answer), then))
        self._answers += answer
        self._write_soon()
        if not answer and self._unsent is not None:
            self._unsent.put(len(data))

    def put_ranges(self, ranges: Sequence[Range]) -> None:
        waiting = self._messages[-1] if self._messages else None
        if waiting is None or isinstance(waiting, tuple) or _is_large(waiting):
            self._messages.append([*ranges])
            self._answers += len(ranges)
        else:
            if isinstance(waiting, list):
                self._answers -= len(waiting)
                waiting = self._messages[-1] = RangeSet(waiting)
            else:
                self._answers -= waiting.range_count
            waiting.update(ranges)
            self._answers += waiting.range_count
        self._write_soon()

    async def wait_room(self) -> None:
        """Returns when another answer may be put."""
        while self.full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def close(self) -> None:
        """Takes nothing more; messages that were put before are still written."""
        self._closed = True
        _set(self._wake)

    def drop(self) -> None:
        """Takes nothing more, and forgets every message but the one that is being written."""
        self._messages.clear()
        self._answers = 0
        if self._unsent is not None:
            self._unsent.end()
        self.close()

    def _take(self) -> tuple[WireMessage, Then]:
        message = self._messages.popleft()
        if isinstance(message, tuple):
            self._answers -= message[1]
            if not message[1] and self._unsent is not None:
                self._unsent.taken(len(message[0]))
            return message[0], message[2]
        ranges = message if isinstance(message, list) else message.ranges()
        self._answers -= len(ranges)
        return self._of_ranges(ranges).SerializeToString(), None

    def _write_soon(self) -> None:
        # A task that is awake comes to it by itself.
        if not self._is_due and self._wake is not None:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write_now)

    def _write_now(self) -> None:
        self._is_due = False
        if self._wake is None or self._wake.done():
            return
        pieces = Pieces()
        while self._messages and self._context.is_writable and not pieces.is_over:
            data, then = self._take()
            self._context.write_now(data)
            self.written += 1
            if then is not None:
                then()
        if not self.full:
            _set(self._room)
        if self._messages:
            _set(self._wake)

    async def run(self) -> None:
        """Writes until closed and empty."""
        loop = asyncio.get_running_loop()
        pieces = Pieces()
        while True:
            while self._messages:
                await pieces.step()
                if not self._messages:
                    break
                data, then = self._take()
                await self._context.write(data)
                self.written += 1
                if then is not None:
                    then()
                if not self.full:
                    _set(self._room)
            if self._closed:
                return
            self._wake = loop.create_future()
            await self._wake
            self._wake = None


def _is_large(ranges: list[Range] | RangeSet) -> bool:
    count = len(ranges) if isinstance(ranges, list) else ranges.range_count
    return count >= MERGED_RANGES_MAX


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
