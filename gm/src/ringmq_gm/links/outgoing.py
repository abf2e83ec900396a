"""The calling end of the links: dials a node, and sends it the frames that wait. See link.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ringmq_gm.core.frames import Frame, Gone, Pong, ViewTold
from ringmq_gm.links import wire
from ringmq_gm.links.link import (
    BROKEN,
    METHOD,
    LinkCall,
    LinkError,
    LinkOwner,
    first_reason,
    reason_of,
)
from ringmq_gm.links.outbox import LinkOutbox
from ringmq_gm.options import GroupOptions

log = logging.getLogger(__name__)

DIAL_PAUSE_S = 0.05

# One connection for each session: it must not wait for the back-off of the one before.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 1024 * 1024),
]


class NotRegisteredError(LinkError):
    """The node's address isn't known yet."""


class OutgoingLink:
    """The link to one node. `run` dials it for as long as it is wanted."""

    def __init__(
        self, node: str, owner: LinkOwner, options: GroupOptions, next_session: Callable[[], int]
    ) -> None:
        self.node = node
        self._owner = owner
        self._options = options
        self._next_session = next_session
        self._session: _OutgoingSession | None = None
        self._kept: dict[tuple[str, type], Frame] = {}
        self._kicked = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def send(self, frame: Frame) -> None:
        if self._session is not None:
            self._session.put(frame)
        elif isinstance(frame, Gone | Pong | ViewTold):
            self._kept[frame.ring, type(frame)] = frame

    def forget(self, ring: str) -> None:
        """The ring isn't hosted here any more: nothing of it is sent."""
        if self._session is not None:
            self._session.outbox.forget(ring)

    def waiting_bytes(self, ring: str) -> int:
        return self._session.outbox.waiting_bytes(ring) if self._session is not None else 0

    def kick(self) -> None:
        """The node may have become reachable: dial now."""
        self._kicked.set()

    def beat(self) -> None:
        """To be called each `heartbeat_s`."""
        if self._session is not None:
            self._session.beat()

    def stalled(self, now: float) -> bool:
        """Whether bodies have waited for `slow_timeout_s`, and the node hasn't taken a whole window
        in that time.

        To ask whether it has taken anything at all would not do: a node that takes a little all
        the time would set the pace of its rings for ever.
        """
        return self._session is not None and self._session.stalled(now)

    def break_off(self) -> None:
        """The session is of no use any more: ends it, and dials again."""
        if self._session is not None:
            self._session.break_off("nothing was heard")

    async def run(self) -> None:
        """Until cancelled; then the stream is closed in good order."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(LinkError),
            wait=wait_random_exponential(
                multiplier=DIAL_PAUSE_S, max=self._options.dial_pause_s_max
            ),
            sleep=self._pause,
            before_sleep=self._dial_failed,
        )
        while True:
            session: _OutgoingSession = await retrying(self._dial)
            self._session = session
            self._owner.link_opened(self.node)
            for frame in self._kept.values():
                session.put(frame)
            self._kept.clear()
            try:
                reason = await session.run()
            finally:
                self._session = None
            log.info("link to %s: %s", self.node, reason)
            self._owner.link_broke(self.node)

    def _dial_failed(self, state: RetryCallState) -> None:
        assert state.outcome is not None
        error = state.outcome.exception()
        log.debug("link to %s: %s", self.node, error)
        self._kept.clear()
        # The registry's watches run apart: a ring may be seen before the node that made it a
        # moment ago. That doesn't make the node down; the detector's time-out decides.
        if not isinstance(error, NotRegisteredError):
            self._owner.dial_failed(self.node)

    async def _pause(self, pause_s: float) -> None:
        self._kicked.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._kicked.wait()

    async def _dial(self) -> _OutgoingSession:
        address = self._owner.address_of(self.node)
        if address is None:
            raise NotRegisteredError(f"node {self.node!r} isn't registered")
        channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(self._options.dial_timeout_s):
                call: LinkCall = channel.stream_stream(METHOD)()
                await self._shake_hands(call)
        except (TimeoutError, *BROKEN) as error:
            await channel.close()
            raise LinkError(f"dialling {address}: {reason_of(error)}") from error
        except BaseException:
            await channel.close()
            raise
        return _OutgoingSession(self.node, channel, call, self._owner, self._options)

    async def _shake_hands(self, call: LinkCall) -> None:
        opening = wire.Opening(
            self._owner.me, self.node, self._next_session(), self._options.window_bytes
        )
        await call.write(wire.opening_message(opening))
        data = await call.read()
        if not isinstance(data, bytes):
            raise LinkError("the stream was closed without an answer")
        peer = wire.read_answer(data)
        if peer.node != self.node:
            raise LinkError(f"node {peer.node!r} listens where {self.node!r} should")
        if peer.incarnation < self._owner.known_incarnation(self.node):
            raise LinkError(f"{peer} is a life that has ended")
        self._owner.saw(peer)


class _OutgoingSession:
    """One stream to a node, from its handshake to its end."""

    def __init__(
        self,
        node: str,
        channel: grpc.aio.Channel,
        call: LinkCall,
        owner: LinkOwner,
        options: GroupOptions,
    ) -> None:
        self.outbox = LinkOutbox(message_bytes=options.message_bytes, part_bytes=options.part_bytes)
        self._node = node
        self._channel = channel
        self._call = call
        self._owner = owner
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self._broken_off: asyncio.Future[str] = self._loop.create_future()
        self._closing = False
        self._beat_due = False
        # Something was written since the last beat.
        self._wrote = False
        self._sent_bytes = 0
        self._credited_bytes = 0
        # The moment since which bodies wait, moved on each time that a whole window was taken; and
        # how many bytes were credited then.
        self._progress_at = self._loop.time()
        self._progress_bytes = 0

    def put(self, frame: Frame) -> None:
        if not self.outbox.has_bodies:
            self._progress()
        self.outbox.put(frame)
        self._wake_writer()

    def beat(self) -> None:
        if not self._wrote:
            self._beat_due = True
            self._wake_writer()
        self._wrote = False

    def stalled(self, now: float) -> bool:
        if not self.outbox.has_bodies or now < self._progress_at + self._options.slow_timeout_s:
            return False
        self._progress()  # It is reported again after the same time.
        return True

    def _progress(self) -> None:
        self._progress_at = self._loop.time()
        self._progress_bytes = self._credited_bytes

    def break_off(self, reason: str) -> None:
        if not self._broken_off.done():
            self._broken_off.set_result(reason)

    async def run(self) -> str:
        """Returns why it ended. If cancelled, closes the stream in good order first."""
        try:
            return await first_reason(
                [self._read(), self._write()], self._broken_off, on_cancel=self._hang_up
            )
        finally:
            self._call.cancel()
            await self._channel.close()

    def _hang_up(self) -> None:
        self._closing = True
        self._wake_writer()

    def _wake_writer(self) -> None:
        # The future is done if the writer was woken already, or if the session is ending.
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _write(self) -> str | None:
        while True:
            data = self._next_message()
            if data is not None:
                self._sent_bytes += len(data)
                self._wrote = True
                await self._call.write(data)
            elif self._closing:
                await self._call.done_writing()
                return None
            else:
                self._wake = self._loop.create_future()
                await self._wake

    def _next_message(self) -> bytes | None:
        window_open = self._sent_bytes - self._credited_bytes < self._options.window_bytes
        data = self.outbox.take(bodies=window_open)
        if data is None and self._beat_due:
            data = wire.HEARTBEAT
        self._beat_due = False
        return data

    async def _read(self) -> str | None:
        while True:
            data = await self._call.read()
            if not isinstance(data, bytes):
                return "closed by the other end"
            self._owner.heard(self._node)
            credited = wire.read_credit(data)
            if credited > self._credited_bytes:
                self._credited_bytes = credited
                if credited - self._progress_bytes >= self._options.window_bytes:
                    self._progress()
                self._wake_writer()
