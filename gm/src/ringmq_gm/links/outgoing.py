"""The calling end of the links: dials a node, and sends it the frames that wait. See link.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ringmq_gm.core.frames import Frame, Gone, Pong, ViewTold
from ringmq_gm.links import wire
from ringmq_gm.links.link import METHOD, LinkError, LinkOwner
from ringmq_gm.links.outbox import BODIES, LinkOutbox
from ringmq_gm.links.window import LinkWindow
from ringmq_gm.options import GroupOptions
from ringmq_wire import (
    CallClosedError,
    CallHandler,
    Code,
    RpcError,
    RpcStatus,
    WireCall,
    WireChannel,
    WireOptions,
)

log = logging.getLogger(__name__)

DIAL_PAUSE_S = 0.05

# How long a stream that is closed in good order may take to bring away what waits.
HANG_UP_S = 0.25

# Bytes that a stream has taken can't be overtaken any more: frames wait in the outbox, which knows
# their order. So a message that the kernel or the other end's window doesn't take at once pauses
# the link: there is never another one outside the outbox. The other end sends credit only.
WIRE_OPTIONS = WireOptions(message_bytes_max=64 * 1024, send_bytes_high=2, unsent_bytes_high=0)

# A message of large bodies may be so much larger, as far as the kernel is sure to take that at
# once. Of such a message no more waits outside the outbox than of another one. It is less than a
# frame of HTTP/2 may have.
LARGE_BYTES_MORE = 32 * 1024


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
            try:
                session: _OutgoingSession = await retrying(self._dial)
            except asyncio.CancelledError as error:
                # Its frames have tenacity's state, which has the error: a dial would stay in
                # memory with its connection.
                error.__traceback__ = None
                raise
            self._session = session
            self._owner.link_opened(self.node)
            for frame in self._kept.values():
                session.put(frame)
            self._kept.clear()
            try:
                reason = await session.run()
                given_up = session.timed_out
            finally:
                # Nor by its name here: the next one may be a long time coming.
                self._session = None
                del session
            log.info("link to %s: %s", self.node, reason)
            self._owner.link_broke(self.node, given_up=given_up)

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
        session = _OutgoingSession(self.node, self._owner, self._options)
        try:
            # One connection for each session: it must not wait for the back-off of the one before.
            channel = WireChannel(address, replace(WIRE_OPTIONS, metadata=self._options.metadata))
        except ValueError as error:
            raise LinkError(str(error)) from error
        try:
            async with asyncio.timeout(self._options.dial_timeout_s):
                session.begin(channel, await channel.open(METHOD, session))
                await self._shake_hands(session)
        except (TimeoutError, RpcError, CallClosedError, wire.WireError) as error:
            await channel.close()
            reason = str(error) or "no answer in time"
            raise LinkError(f"dialling {address}: {reason}") from error
        except BaseException:
            await channel.close()
            raise
        return session

    async def _shake_hands(self, session: _OutgoingSession) -> None:
        opening = wire.Opening(
            self._owner.me, self.node, self._next_session(), self._options.window_bytes
        )
        peer = wire.read_answer(await session.shake_hands(wire.opening_message(opening)))
        if peer.node != self.node:
            raise LinkError(f"node {peer.node!r} listens where {self.node!r} should")
        if peer.incarnation < self._owner.known_incarnation(self.node):
            raise LinkError(f"{peer} is a life that has ended")
        self._owner.saw(peer)


class _OutgoingSession(CallHandler):
    """One stream to a node: its handshake, then frames there and credit back, to its end.

    What is put goes out in the loop's next turn (`_pump`), together: as messages of up to
    `message_bytes`, while the stream takes them and, for bodies, the window is open. While it
    isn't, each ring may send a little (`LinkWindow`). While only large bodies wait, a message may
    have `LARGE_BYTES_MORE` more, if the kernel takes it at once.

    A small frame waits behind two messages at most: one that the kernel hasn't taken, and one of
    large bodies that has its turn first (outbox.py). That is less than 64 KiB. The kernel may have
    `UNSENT_BYTES_MAX`, and the message that has passed it, before the network takes them.
    """

    def __init__(self, node: str, owner: LinkOwner, options: GroupOptions) -> None:
        self.outbox = LinkOutbox(message_bytes=options.message_bytes)
        self._node = node
        self._owner = owner
        self._options = options
        self._channel: WireChannel | None = None
        self._call: WireCall | None = None
        self._loop = asyncio.get_running_loop()
        # The other end's first message; None once it is there, and the rest is credit.
        self._answer: asyncio.Future[bytes] | None = self._loop.create_future()
        # Why the stream is of no use any more.
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._closing = False
        self._half_closed = False
        self._pump_is_due = False
        # The stream has more to send than it should hold.
        self._paused = False
        self._beat_due = False
        # Something was written since the last beat.
        self._wrote = False
        self._window = LinkWindow(options.window_bytes)
        # The moment since which bodies wait, moved on each time that a whole window was taken; and
        # how many bytes were credited then.
        self._progress_at = self._loop.time()
        self._progress_bytes = 0

    def begin(self, channel: WireChannel, call: WireCall) -> None:
        self._channel = channel
        self._call = call
        # Heartbeats don't show a connection that brings nothing: those that the other node sends
        # come on its own connection too, which may be well. See link.py.
        call.give_up_after(self._options.unacknowledged_s)

    async def shake_hands(self, opening: bytes) -> bytes:
        """Returns the other end's answer; raises `LinkError` or `RpcError` if there is none."""
        assert self._call is not None
        assert self._answer is not None
        self._call.send((opening,))
        try:
            return await self._answer
        finally:
            # A future that has failed has the error, and the error this frame.
            self._answer = None

    def put(self, frame: Frame) -> None:
        if isinstance(frame, BODIES) and not self.outbox.has_bodies:
            self._progress()
        self.outbox.put(frame)
        if not self._pump_is_due and not self._paused:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def beat(self) -> None:
        if not self._wrote:
            self._beat_due = True
            self._pump_soon()
        self._wrote = False

    @property
    def timed_out(self) -> bool:
        """Whether its connection brought nothing any more."""
        return self._call is not None and self._call.timed_out

    def stalled(self, now: float) -> bool:
        if not self.outbox.has_bodies or now < self._progress_at + self._options.slow_timeout_s:
            return False
        self._progress()  # It is reported again after the same time.
        return True

    def _progress(self) -> None:
        self._progress_at = self._loop.time()
        self._progress_bytes = self._window.credited_bytes

    def break_off(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    async def run(self) -> str:
        """Returns why it ended. If cancelled, closes the stream in good order first."""
        assert self._channel is not None
        grace_s = 0.0
        try:
            # Shielded: what ends the stream still sets it.
            return await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            # What waits goes out, then the end of the stream, which the other end answers.
            self._closing = True
            self._pump_soon()
            grace_s = HANG_UP_S
            raise
        finally:
            await self._channel.close(grace_s)

    # --- out ---

    def _pump_soon(self) -> None:
        if not self._pump_is_due and not self._paused:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        call = self._call
        if self._ended.done() or self._half_closed or call is None or call.has_ended:
            return
        self._send_waiting(call)
        if self._closing and not self._paused:
            call.half_close()
            self._half_closed = True

    def _send_waiting(self, call: WireCall) -> None:
        corked = False
        try:
            while not self._paused and (self.outbox or self._beat_due):
                data = self._next_message(call)
                if data is None:
                    break
                self._window.sent(len(data))
                self._wrote = True
                if not corked and self.outbox:
                    # Else the other end is woken for each message, takes and syncs it alone.
                    call.cork(True)
                    corked = True
                call.send_now((data,))
        finally:
            if corked:
                call.cork(False)

    def _next_message(self, call: WireCall) -> bytes | None:
        window, more_bytes = self._window, 0
        is_open = window.is_open
        if is_open and self.outbox.is_large:
            more_bytes = min(call.taken_at_once(), LARGE_BYTES_MORE)
        data = self.outbox.take(bodies=is_open, more_bytes=more_bytes, window=window)
        if data is None and self._beat_due:
            data = wire.HEARTBEAT
        self._beat_due = False
        return data

    # --- CallHandler ---

    def pause_sending(self) -> None:
        self._paused = True

    def resume_sending(self) -> None:
        # Also called for a message that has left at once, which has paused nothing.
        if self._paused:
            self._paused = False
            self._pump_soon()

    def received(self, messages: list[bytes]) -> None:
        if self._answer is not None:
            if not self._answer.done():
                self._answer.set_result(messages[0])
            self._answer = None
            del messages[0]
        if not messages or self._ended.done():
            return
        self._owner.heard(self._node)
        try:
            credited, notice = wire.read_credit(messages[-1])
        except wire.WireError as error:
            self.break_off(repr(error))
            return
        self._owner.noticed(self._node, notice)
        if credited > self._window.credited_bytes:
            self._window.credited(credited)
            if credited - self._progress_bytes >= self._options.window_bytes:
                self._progress()
            self._pump_soon()

    def ended(self, status: RpcStatus) -> None:
        reason = "closed by the other end"
        if status.code is not Code.OK:
            reason = f"{status.code.name}: {status.message}"
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LinkError(f"the stream was closed: {reason}"))
        self.break_off(reason)
