"""The answering end of the links: takes the frames of other nodes. See link.py."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from ringmq_base.pieces import Pieces
from ringmq_gm.core.frames import Frame, FrameError, decode, decode_parts
from ringmq_gm.core.views import MemberId
from ringmq_gm.links import wire
from ringmq_gm.links.link import METHOD, LinkOwner
from ringmq_gm.options import GroupOptions
from ringmq_wire import OK, Accept, CallHandler, Code, RpcStatus, WireCall

log = logging.getLogger(__name__)

# What has come together is taken in one piece if it has fewer bytes. In more there may be frames of
# thousands of rings: all of them shake hands at once after a failure.
PIECE_BYTES_MIN = 8192
# Each message is counted with so many more bytes (`WireCall.consumed`).
PREFIX_BYTES = 5


class IncomingLinks:
    """Answers `Link` calls."""

    def __init__(self, owner: LinkOwner, options: GroupOptions) -> None:
        self._owner = owner
        self._options = options
        # The newest stream of each node, (incarnation, session). Kept after its end: an older one
        # that arrives late is told from a new one by this.
        self._newest: dict[str, tuple[int, int]] = {}
        self._sessions: dict[str, _IncomingSession] = {}
        self.credit_held = False
        # What the application here tells its neighbours.
        self.notice = 0

    def routes(self) -> Mapping[str, Accept]:
        return {METHOD: lambda call: _IncomingSession(self, call, self._owner, self._options)}

    def beat(self) -> None:
        """To be called each `heartbeat_s`."""
        for session in self._sessions.values():
            session.beat()

    def hold_credit(self, held: bool) -> None:
        """While `held`, frames are taken and heartbeats go out, but no credit is given."""
        self.credit_held = held
        if not held:
            self.beat()

    def set_notice(self, notice: int) -> None:
        """Told at once, and with each heartbeat."""
        self.notice = notice
        self.beat()

    def close(self) -> None:
        """Ends all streams."""
        for session in list(self._sessions.values()):
            session.end("this end has stopped")

    def take_over(self, session: _IncomingSession, opening: wire.Opening) -> str | None:
        """The stream's opening has come: from here on older streams are silent. No `await` since
        the check: two streams of one node can't both pass it.

        Returns why the stream isn't taken; None if it is.
        """
        reason = self._refusal(opening)
        if reason is None:
            sender = opening.sender
            self._newest[sender.node] = (sender.incarnation, opening.session)
            before = self._sessions.get(sender.node)
            if before is not None:
                before.end("a newer stream has taken its place")
            self._sessions[sender.node] = session
        return reason

    def forget(self, session: _IncomingSession, sender: MemberId) -> None:
        """The stream has ended."""
        if self._sessions.get(sender.node) is session:
            del self._sessions[sender.node]

    def _refusal(self, opening: wire.Opening) -> str | None:
        """For the caller's log."""
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


class _IncomingSession(CallHandler):
    """One stream from a node: its opening, then frames here and credit back, to its end.

    What has come together is taken at once, or in pieces by a task if it is much. Until then the
    transport gives the caller no credit for it.
    """

    def __init__(
        self, links: IncomingLinks, call: WireCall, owner: LinkOwner, options: GroupOptions
    ) -> None:
        call.credit_by_hand = True
        self._call = call
        self._links = links
        self._owner = owner
        self._frame_bytes_max = options.frame_bytes_max
        self._unacknowledged_s = options.unacknowledged_s
        self._loop = asyncio.get_running_loop()
        # None until the opening has come.
        self._sender: MemberId | None = None
        self._opening_timer: asyncio.TimerHandle | None = self._loop.call_later(
            options.dial_timeout_s, self.end, "no opening in time"
        )
        self._over = False
        # Messages that a task takes in pieces.
        self._waiting: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None
        # The caller doesn't read its credit.
        self._paused = False
        self._credit_is_due = False
        self._credit_step = 1
        self._taken_bytes = 0
        self._credited_bytes = 0
        self._parts: list[memoryview] = []
        self._parts_bytes = 0

    def beat(self) -> None:
        self._give_credit()

    def end(self, reason: str, status: RpcStatus = OK) -> None:
        """No frame of this stream is taken from now on."""
        if self._over:
            return
        self._over = True
        if self._opening_timer is not None:
            self._opening_timer.cancel()
        if self._task is not None:
            # It forgets itself, unless it hasn't begun: it keeps its error, which has this session.
            self._task.cancel()
            self._task = None
        self._waiting.clear()
        self._parts.clear()
        if self._sender is not None:
            self._links.forget(self, self._sender)
            log.info("link from %s: %s", self._sender, reason)
        self._call.finish(status)

    # --- CallHandler ---

    def received(self, messages: list[bytes]) -> None:
        if self._over:
            return
        if self._sender is None:
            self._open(messages.pop(0))
        elif self._task is None and sum(map(len, messages)) < PIECE_BYTES_MIN:
            self._owner.heard(self._sender.node)
            self._take_at_once(messages)
            return
        if messages and not self._over:
            self._waiting.extend(messages)
            if self._task is None:
                self._task = self._loop.create_task(self._take_waiting(), name="frames of a link")

    def half_closed(self) -> None:
        if self._task is None:
            self.end("closed by the other end")
        else:
            # Behind the frames that wait.
            self._task.add_done_callback(lambda _: self.end("closed by the other end"))

    def ended(self, status: RpcStatus) -> None:
        self.end(f"{status.code.name}: {status.message}")

    def pause_sending(self) -> None:
        self._paused = True

    def resume_sending(self) -> None:
        self._paused = False
        if self._credit_is_due:
            self._give_credit()

    # --- opening ---

    def _open(self, data: bytes) -> None:
        assert self._opening_timer is not None
        self._opening_timer.cancel()
        self._call.consumed(len(data) + PREFIX_BYTES)
        try:
            opening = wire.read_opening(data)
        except wire.WireError as error:
            self.end(str(error), RpcStatus(Code.INVALID_ARGUMENT, str(error)))
            return
        reason = self._links.take_over(self, opening)
        if reason is not None:
            self.end(reason, RpcStatus(Code.FAILED_PRECONDITION, reason))
            return
        self._sender = opening.sender
        # For what goes back here: without credit and heartbeats the other end may not send, either.
        self._call.give_up_after(self._unacknowledged_s)
        self._credit_step = max(1, opening.window_bytes // 4)
        self._owner.saw(opening.sender)
        self._call.send((wire.answer_message(self._owner.me),))

    # --- frames ---

    def _take_at_once(self, messages: list[bytes]) -> None:
        try:
            for data in messages:
                frames = self._frames(data)
                if frames is not None:
                    self._owner.received(self._sender_known(), frames)
                self._taken(data)
                if self._over:
                    return
        except (wire.WireError, FrameError) as error:
            self._refuse(error)
        except BaseException:
            # A bug of ours; whoever has called tells it, and ends the call.
            self.end("taking a frame has failed", RpcStatus(Code.INTERNAL, "taking it has failed"))
            raise

    async def _take_waiting(self) -> None:
        pieces = Pieces()
        try:
            while self._waiting and not self._over:
                self._owner.heard(self._sender_known().node)
                data = self._waiting.popleft()
                frames = self._frames(data)
                if frames is not None:
                    left = _Left(frames)
                    while not left.ended and not self._over:
                        self._owner.received(self._sender_known(), left.until(pieces))
                        await pieces.step()
                self._taken(data)
        except (wire.WireError, FrameError) as error:
            self._refuse(error)
        except Exception as error:
            log.error("link from %s: taking frames: %r", self._sender, error, exc_info=error)
            self.end("taking a frame has failed", RpcStatus(Code.INTERNAL, "taking it has failed"))
        finally:
            self._task = None

    def _sender_known(self) -> MemberId:
        assert self._sender is not None
        return self._sender

    def _frames(self, data: bytes) -> Iterator[Frame] | None:
        """The frames of a message, or of the last of several parts; None before that."""
        kind, begin = wire.frames_in(data)
        if kind == wire.WHOLE:
            return decode(data, begin)
        # Copied once, when all parts are there.
        body = memoryview(data)[begin:]
        self._parts_bytes += len(body)
        if self._parts_bytes > self._frame_bytes_max:
            raise FrameError(f"frame of more than {self._frame_bytes_max} bytes")
        self._parts.append(body)
        if kind == wire.PART:
            return None
        parts, self._parts, self._parts_bytes = self._parts, [], 0
        return decode_parts(parts)

    def _refuse(self, error: Exception) -> None:
        log.error("link from %s: %s", self._sender, error)
        self.end(str(error), RpcStatus(Code.INVALID_ARGUMENT, str(error)))

    # --- credit ---

    def _taken(self, data: bytes) -> None:
        self._taken_bytes += len(data)
        self._call.consumed(len(data) + PREFIX_BYTES)
        owed = self._taken_bytes - self._credited_bytes
        if owed >= self._credit_step and not self._links.credit_held:
            self._give_credit()

    def _give_credit(self) -> None:
        if self._over or self._paused:
            self._credit_is_due = True
            return
        self._credit_is_due = False
        if not self._links.credit_held:
            self._credited_bytes = self._taken_bytes
        self._call.send((wire.credit_message(self._credited_bytes, self._links.notice),))
