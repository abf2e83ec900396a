"""Tells the client of a publish stream that its batches are held, and that they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.timer import Timer
from ringmq_node.doors.grpc.wire import block_reasons_to_wire
from ringmq_node.resources.connection_states import PeerStream
from ringmq_node.resources.flow import BlockNotices, Reasons


class BlockTeller:
    """The shell of `BlockNotices`: its clock, its timer and its messages."""

    def __init__(
        self,
        reasons: Callable[[], Reasons],
        put: Callable[[broker.PublishResponse], None],
        stream: PeerStream,
    ) -> None:
        """`stream`: as which its connection shows that it is held."""
        self._reasons = reasons
        self._put = put
        self._stream = stream
        self._notices = BlockNotices()
        self._timer = Timer(self._look)
        self._closed = False
        # A batch is held here, a queue's master holds one, and the stream isn't read for lack of
        # room: all at a time.
        self._holders = 0
        self._clock = asyncio.get_running_loop().time

    @contextmanager
    def held(self) -> Iterator[None]:
        """The stream is held for as long as the block lasts."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """As often as `release`."""
        self._holders += 1
        if self._holders == 1:
            self._notices.hold(self._clock())
            self._look()

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._notices.release(self._clock())
            self._stream.release()
            self._look()

    def close(self) -> None:
        """Tells nothing more, also if a batch is still held."""
        self._closed = True
        self._timer.end()

    def _look(self) -> None:
        if self._closed:
            return
        now = self._clock()
        reasons = self._reasons() if self._notices.held else ()
        if self._notices.held:
            self._stream.hold(reasons)
        told = self._notices.look(reasons, now)
        if told:
            blocked = broker.Blocked(reasons=block_reasons_to_wire(told))
            self._put(broker.PublishResponse(blocked=blocked))
        elif told is not None:
            self._put(broker.PublishResponse(unblocked=broker.Unblocked()))
        self._timer.set_at(self._notices.next_look(now))
