"""The answering end of the links: takes the frames of other nodes. See link.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import grpc.aio

from ringmq_base.pieces import Pieces
from ringmq_gm.core.frames import Frame, FrameError, decode
from ringmq_gm.links import wire
from ringmq_gm.links.link import METHOD, LinkContext, LinkOwner, first_reason
from ringmq_gm.options import GroupOptions

log = logging.getLogger(__name__)

# A message of fewer bytes is taken in one piece. Of a larger one the frames of thousands of rings
# may be: all of them shake hands at once after a failure.
PIECE_BYTES_MIN = 8192


class IncomingLinks:
    """Answers `Link` calls; a generic handler, so that it stands beside other methods."""

    def __init__(self, owner: LinkOwner, options: GroupOptions) -> None:
        self._owner = owner
        self._options = options
        # The newest stream of each node, (incarnation, session). Kept after its end: an older one
        # that arrives late is told from a new one by this.
        self._newest: dict[str, tuple[int, int]] = {}
        self._sessions: dict[str, _IncomingSession] = {}
        self.credit_held = False

    def handler(self) -> grpc.GenericRpcHandler:
        return _LinkHandler(grpc.stream_stream_rpc_method_handler(self._serve))

    def beat(self) -> None:
        """To be called each `heartbeat_s`."""
        for session in self._sessions.values():
            session.beat()

    def hold_credit(self, held: bool) -> None:
        """While `held`, frames are taken and heartbeats go out, but no credit is given."""
        self.credit_held = held
        if not held:
            self.beat()

    def close(self) -> None:
        """Ends all streams."""
        for session in self._sessions.values():
            session.end("this end has stopped")

    async def _serve(self, _: object, context: LinkContext) -> None:
        opening = await self._opening(context)
        if opening is None:
            return
        # From here on older streams are silent. No `await` since the check: two streams of one
        # node can't both pass it.
        sender = opening.sender
        self._newest[sender.node] = (sender.incarnation, opening.session)
        before = self._sessions.get(sender.node)
        if before is not None:
            before.end("a newer stream has taken its place")
        session = _IncomingSession(self, context, opening, self._owner, self._options)
        self._sessions[sender.node] = session
        try:
            self._owner.saw(sender)
            await context.write(wire.answer_message(self._owner.me))
            reason = await session.run()
        finally:
            if self._sessions.get(sender.node) is session:
                del self._sessions[sender.node]
        log.info("link from %s: %s", sender, reason)

    async def _opening(self, context: LinkContext) -> wire.Opening | None:
        """The caller's opening, checked; None if it didn't come in time."""
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
        if reason is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        return opening

    def _refusal(self, opening: wire.Opening) -> str | None:
        """Why this stream isn't taken, for the caller's log; None if it is."""
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
        return None


class _LinkHandler(grpc.GenericRpcHandler):
    def __init__(self, method: grpc.RpcMethodHandler[Any, Any]) -> None:
        self._method = method

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._method if handler_call_details.method == METHOD else None


class _Left:
    """The frames of a message that haven't been taken yet."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        self.ended = False
        self._frames = iter(frames)

    def until(self, pieces: Pieces) -> Iterator[Frame]:
        """The next frames, up to the end of a piece."""
        for frame in self._frames:
            yield frame
            if pieces.is_over:
                return
        self.ended = True


class _IncomingSession:
    """One stream from a node, from its handshake to its end."""

    def __init__(
        self,
        links: IncomingLinks,
        context: LinkContext,
        opening: wire.Opening,
        owner: LinkOwner,
        options: GroupOptions,
    ) -> None:
        self.sender = opening.sender
        self._links = links
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
        """No frame of this stream is taken from now on."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def run(self) -> str:
        return await first_reason([self._read(), self._credit()], self._ended)

    async def _read(self) -> str | None:
        while True:
            data = await self._context.read()
            if not isinstance(data, bytes):
                return "closed by the other end"
            if self._ended.done():
                return None
            self._owner.heard(self.sender.node)
            try:
                await self._take(data)
            except (wire.WireError, FrameError) as error:
                log.error("link from %s: %s", self.sender, error)
                await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            self._taken_bytes += len(data)
            owed = self._taken_bytes - self._credited_bytes
            if owed >= self._credit_step and not self._links.credit_held:
                self._give_credit()

    async def _take(self, data: bytes) -> None:
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
        if len(body) < PIECE_BYTES_MIN:
            self._owner.received(self.sender, decode(body))
            return
        pieces = Pieces()
        frames = _Left(decode(body))
        while not frames.ended and not self._ended.done():
            self._owner.received(self.sender, frames.until(pieces))
            await pieces.step()

    def _give_credit(self) -> None:
        self._credit_due = True
        # The future is done if the writer was woken already, or if the session is ending.
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _credit(self) -> str | None:
        while True:
            if self._credit_due:
                self._credit_due = False
                if not self._links.credit_held:
                    self._credited_bytes = self._taken_bytes
                await self._context.write(wire.credit_message(self._credited_bytes))
            else:
                self._wake = self._loop.create_future()
                await self._wake
