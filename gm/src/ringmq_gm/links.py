"""The links to other nodes: one gRPC stream each way for all rings.

An `OutgoingLink` carries all frames from here to one node in its requests, and
gets credit and heartbeats back in the responses. It is dialled again whenever it
breaks; each time is a session with a number. What waited in a session that broke
is dropped: the cores send again what matters (`LinkUp`). Only Pong and Stale wait
for a link that is not open, as they are answers that no core sends again.

An `IncomingLinks` answers the calls of the others. Of each node it listens to one
session, the newest of its newest life: what an older one still brings is dropped,
or an op could come twice around, behind its handshake.

Bounds. Bodies are sent while less than `window_bytes` are not yet credited; control
and heartbeats always go (only the newest of each kind and ring waits). The receiver
gives credit when its cores have taken the frames, a quarter of a window at a time,
and with each heartbeat. A receiver holds one message, or one frame that comes in
parts, of at most `frame_bytes_max`.

A frame is written in the turn of the event loop after the one that produced it;
what is produced while a write is under way goes out with the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import grpc
import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ringmq_gm import wire
from ringmq_gm.frames import Frame, FrameError, Pong, Stale, decode
from ringmq_gm.options import GroupOptions
from ringmq_gm.outbox import Outbox
from ringmq_gm.views import MemberId

log = logging.getLogger(__name__)

METHOD = "/ringmq.v1.Ring/Link"
# How long the other end may take to end a stream that is closed in good order.
HANG_UP_S = 0.25
DIAL_PAUSE_S = 0.05

# One connection for each session: it must not wait for the back-off of the one before.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 1024 * 1024),
]

Call = grpc.aio.StreamStreamCall[bytes, bytes]
Context = grpc.aio.ServicerContext[bytes, bytes]


class LinkError(Exception):
    """A link can't be opened, or has broken. It is dialled again."""


class Owner(Protocol):
    """What links want of their group."""

    @property
    def me(self) -> MemberId: ...

    @property
    def running(self) -> bool: ...

    def address_of(self, node: str) -> str | None:
        """Where it listens; None if it isn't registered."""
        ...

    def known_incarnation(self, node: str) -> int:
        """The highest that was seen of it; 0 if none was."""
        ...

    def saw(self, member_id: MemberId) -> None: ...

    def heard(self, node: str) -> None: ...

    def link_opened(self, node: str) -> None: ...

    def link_broke(self, node: str) -> None: ...

    def dial_failed(self, node: str) -> None: ...

    def received(self, sender: MemberId, frames: Iterable[Frame]) -> None: ...


class OutgoingLink:
    """The link to one node. `run` dials it for as long as it is wanted."""

    def __init__(
        self, node: str, owner: Owner, options: GroupOptions, next_session: Callable[[], int]
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
        elif isinstance(frame, Pong | Stale):
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
        """Whether bodies wait, and the node has taken none for `slow_timeout_s`."""
        return self._session is not None and self._session.stalled(now)

    def break_off(self) -> None:
        """The session is of no use any more: end it, and dial again."""
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
        log.debug("link to %s: %s", self.node, state.outcome.exception())
        self._kept.clear()
        self._owner.dial_failed(self.node)

    async def _pause(self, pause_s: float) -> None:
        self._kicked.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._kicked.wait()

    async def _dial(self) -> _OutgoingSession:
        address = self._owner.address_of(self.node)
        if address is None:
            raise LinkError("the node isn't registered")
        channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(self._options.dial_timeout_s):
                call: Call = channel.stream_stream(METHOD)()
                await self._shake_hands(call)
        except (TimeoutError, *BROKEN) as error:
            await channel.close()
            raise LinkError(f"dialling {address}: {_reason(error)}") from error
        except BaseException:
            await channel.close()
            raise
        return _OutgoingSession(self.node, channel, call, self._owner, self._options)

    async def _shake_hands(self, call: Call) -> None:
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
        call: Call,
        owner: Owner,
        options: GroupOptions,
    ) -> None:
        self.outbox = Outbox(message_bytes=options.message_bytes, part_bytes=options.part_bytes)
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
        # When bodies last moved, or began to wait.
        self._progress_at = self._loop.time()

    def put(self, frame: Frame) -> None:
        if not self.outbox.has_bodies and self._credited_bytes == self._sent_bytes:
            self._progress_at = self._loop.time()
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
        self._progress_at = now  # Said again after as long.
        return True

    def break_off(self, reason: str) -> None:
        if not self._broken_off.done():
            self._broken_off.set_result(reason)

    async def run(self) -> str:
        """Returns why it ended. If cancelled, closes the stream in good order first."""
        try:
            return await _first_reason(
                [self._read(), self._write()], self._broken_off, on_cancel=self._hang_up
            )
        finally:
            self._call.cancel()
            await self._channel.close()

    def _hang_up(self) -> None:
        self._closing = True
        self._wake_writer()

    def _wake_writer(self) -> None:
        # Done already: it was woken, or its session is ending and has cancelled it.
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
                self._progress_at = self._loop.time()
                self._wake_writer()


class IncomingLinks:
    """Answers `Link` calls; a generic handler, so that it stands beside other methods."""

    def __init__(self, owner: Owner, options: GroupOptions) -> None:
        self._owner = owner
        self._options = options
        # The newest stream of each node, also after its end: what counts as old is told by it.
        self._newest: dict[str, tuple[int, int]] = {}
        self._sessions: dict[str, _IncomingSession] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        return _LinkHandler(grpc.stream_stream_rpc_method_handler(self._serve))

    def beat(self) -> None:
        """To be called each `heartbeat_s`."""
        for session in self._sessions.values():
            session.beat()

    def close(self) -> None:
        """Ends all streams."""
        for session in self._sessions.values():
            session.end("this end has stopped")

    async def _serve(self, _: object, context: Context) -> None:
        opening = await self._opening(context)
        if opening is None:
            return
        # From here on older streams are silent; nothing has awaited since the check.
        sender = opening.sender
        self._newest[sender.node] = (sender.incarnation, opening.session)
        before = self._sessions.get(sender.node)
        if before is not None:
            before.end("a newer stream has taken its place")
        session = _IncomingSession(context, opening, self._owner, self._options)
        self._sessions[sender.node] = session
        try:
            self._owner.saw(sender)
            await context.write(wire.answer_message(self._owner.me))
            reason = await session.run()
        finally:
            if self._sessions.get(sender.node) is session:
                del self._sessions[sender.node]
        log.info("link from %s: %s", sender, reason)

    async def _opening(self, context: Context) -> wire.Opening | None:
        """The caller's opening, checked; None if it didn't come."""
        try:
            async with asyncio.timeout(self._options.dial_timeout_s):
                data = await context.read()
        except TimeoutError:
            return None
        if not isinstance(data, bytes):
            return None
        try:
            opening = wire.read_opening(data)
        except wire.WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        reason = self._refusal(opening)
        if reason:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        return opening

    def _refusal(self, opening: wire.Opening) -> str:
        me = self._owner.me
        sender = opening.sender
        if not self._owner.running:
            return f"{me} isn't ready"
        if opening.target != me.node:
            return f"this is {me}, not {opening.target!r}"
        if sender.incarnation < self._owner.known_incarnation(sender.node):
            return f"{sender} is a life that has ended"
        if (sender.incarnation, opening.session) <= self._newest.get(sender.node, (-1, -1)):
            return f"a newer stream from {sender.node} is there"
        return ""


class _LinkHandler(grpc.GenericRpcHandler):
    def __init__(self, method: grpc.RpcMethodHandler[Any, Any]) -> None:
        self._method = method

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._method if handler_call_details.method == METHOD else None


class _IncomingSession:
    """One stream from a node, from its handshake to its end."""

    def __init__(
        self, context: Context, opening: wire.Opening, owner: Owner, options: GroupOptions
    ) -> None:
        self.sender = opening.sender
        self._context = context
        self._owner = owner
        self._frame_bytes_max = options.frame_bytes_max
        self._credit_step = max(1, opening.window_bytes // 4)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._wake: asyncio.Future[None] | None = None
        self._credit_due = False
        self._taken_bytes = 0
        self._credited_bytes = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    def beat(self) -> None:
        self._give_credit()

    def end(self, reason: str) -> None:
        """No frame of it is taken from now on."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def run(self) -> str:
        return await _first_reason([self._read(), self._credit()], self._ended)

    async def _read(self) -> str | None:
        while True:
            data = await self._context.read()
            if not isinstance(data, bytes):
                return "closed by the other end"
            if self._ended.done():
                return None
            self._owner.heard(self.sender.node)
            try:
                self._take(data)
            except (wire.WireError, FrameError) as error:
                log.error("link from %s: %s", self.sender, error)
                await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            self._taken_bytes += len(data)
            if self._taken_bytes - self._credited_bytes >= self._credit_step:
                self._give_credit()

    def _take(self, data: bytes) -> None:
        kind, body = wire.read_frames(data)
        if kind != wire.WHOLE:
            self._parts_bytes += len(body)
            if self._parts_bytes > self._frame_bytes_max:
                raise FrameError(f"frame of more than {self._frame_bytes_max} bytes")
            self._parts.append(body)
            if kind == wire.PART:
                return
            body = b"".join(self._parts)
            self._parts, self._parts_bytes = [], 0
        self._owner.received(self.sender, decode(body))

    def _give_credit(self) -> None:
        self._credit_due = True
        # Done already: it was woken, or its session is ending and has cancelled it.
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _credit(self) -> str | None:
        while True:
            if self._credit_due:
                self._credit_due = False
                self._credited_bytes = self._taken_bytes
                await self._context.write(wire.credit_message(self._taken_bytes))
            else:
                self._wake = self._loop.create_future()
                await self._wake


async def _first_reason(
    parts: list[Coroutine[Any, Any, str | None]],
    ended: asyncio.Future[str],
    *,
    on_cancel: Callable[[], None] | None = None,
) -> str:
    """Runs the two halves of a stream until one of them ends, or `ended` is set.

    Returns the reason. What gRPC raises is one; anything else is a bug, and raised. If
    cancelled, `on_cancel` may bring the first part to its end within `HANG_UP_S`.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    ends: list[asyncio.Future[Any]] = [*tasks, ended]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
            await asyncio.wait(tasks[:1], timeout=HANG_UP_S)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    reasons = [ended.result()] if ended.done() else []
    for task in tasks:
        if task.cancelled():
            continue
        error = task.exception()
        if error is None:
            reasons.append(task.result() or "")
        elif isinstance(error, BROKEN):
            reasons.append(_reason(error))
        else:
            raise error
    return next((reason for reason in reasons if reason), "cancelled")


# What gRPC raises when a stream has ended under a read or a write.
BROKEN = (
    grpc.aio.AioRpcError,
    grpc.aio.AbortError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
    wire.WireError,
)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)
