"""One stream, from its Open to its end.

One writer task writes everything that has gathered, and waits while the connection is full. One
timer watches the silence and cancels the call. A stream is ended by a half-close and read to its
end, and cancelled only when that takes too long: the node's last answers may be confirms.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from enum import Enum, auto
from typing import Any, Generic

from google.protobuf.message import DecodeError

from ringmq.calls.status import from_call
from ringmq.errors import ProtocolError, RingMQError, UnavailableError
from ringmq.streams.speaker import Request, Response, Speaker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import HEARTBEATS_MISSED_MAX
from ringmq_base.timer import Timer
from ringmq_wire import CallClosedError, CallStream, RpcError

#: A node that takes longer to answer an Open is passed over for the moment.
OPEN_S = 5.0
#: How often all nodes are asked meanwhile whether there is another master, and this one whether it
#: answers anything. It may wait for a quorum that another one has, relay to a master from which it
#: is cut off, or be stopped.
OPEN_DOUBT_S = 1.0
#: How long a node may take for the answer to that.
ANSWER_S = 1.5
#: A node that answers nothing for so long, though it lives, may not be the master any more.
DOUBT_S = 3.0
#: After so many heartbeats in which the node's kernel has taken nothing the way there is cut. Of a
#: busy process the kernel does, unless its buffers are full: so that one has longer.
HEARTBEATS_UNACKNOWLEDGED_MAX = 2
#: How long the end of a half-closed stream is awaited before it is cancelled.
FINISH_S = 2.0


class ConversationPhase(Enum):
    OPENING = auto()
    LIVE = auto()
    #: We have said our last word.
    HALF_CLOSED = auto()
    #: The node has said that the queue is elsewhere.
    MOVED = auto()
    #: We have cancelled the call ourselves. No phase follows.
    GIVEN_UP = auto()


# The phases that must not last, and the reason that is given when one has lasted too long. LIVE
# is not among them: there the heartbeats count.
TIME_LIMITS: dict[ConversationPhase, tuple[float, str]] = {
    ConversationPhase.OPENING: (OPEN_S, "no answer to Open"),
    ConversationPhase.HALF_CLOSED: (FINISH_S, "no end after our half-close"),
    ConversationPhase.MOVED: (FINISH_S, "no end after Moved"),
}


class Conversation(Generic[Request, Response]):
    """`run` once; then `progress`, `moved` and `moved_to` tell how it went.

    `work` is set when the speaker may have a request to write. `newer_master(node, epoch)` returns
    the address of the master after that one, or nothing if there is none. `answers(timeout_s)` asks
    the node whether it answers anything. `sought`: the master that the stream is to reach, and the
    epoch of its view, if that is known.
    """

    def __init__(
        self,
        speaker: Speaker[Request, Response],
        call: CallStream,
        work: asyncio.Event,
        *,
        peer: str,
        name: str,
        newer_master: Callable[[str, int], Awaitable[str]],
        answers: Callable[[float], Awaitable[bool]],
        sought: tuple[str, int] | None = None,
    ) -> None:
        self._speaker: Speaker[Request, Response] = speaker
        self._call = call
        self._work = work
        self._peer = peer
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(self._on_timer)
        self._why_given_up = ""
        # Moments on the loop's clock; meaningful from LIVE on.
        self._heard_at = self._wrote_at = self._due_at = 0.0
        self._heartbeat_s = 0.0
        self._heartbeat_due = False
        # When the node last did anything that we wanted, or we wanted nothing.
        self._answered_at = 0.0
        self._newer_master = newer_master
        self._answers = answers
        # The master that the stream goes to, and the epoch of its view.
        self._master = sought
        # When the phase must have ended; not in LIVE.
        self._limit_at = 0.0
        # Each asks for the next master, or whether the node answers. They are bounded in time, and
        # one that waits for a stopped node delays none of those that begin later.
        self._doubts: set[asyncio.Task[None]] = set()
        #: Whether the node did anything that we wanted of it.
        self.progress = False
        #: Whether one of the two ends has given up because it heard nothing of the other.
        self.out_of_touch = False
        #: Whether the node sent us away, and to which address; empty: it knows none.
        self.moved = False
        self.moved_to = ""
        #: That master and the epoch of its view, if the node has told.
        self.moved_master: tuple[str, int] | None = None
        self.moved_reason = common.REASON_UNSPECIFIED
        self._phase = ConversationPhase.OPENING
        self._become(ConversationPhase.OPENING)

    async def run(self) -> None:
        """Raises a `RingMQError` if the stream doesn't come to a good end."""
        try:
            with contextlib.suppress(RpcError, CallClosedError):
                # If the write fails, the read below has the reason.
                await self._call.write(self._speaker.open_request().SerializeToString())
            first = await self._read()
            if first is None:
                raise UnavailableError(f"{self._peer}: ended the stream before it was open")
            if first.WhichOneof("response") == "moved":
                self._call.half_close()
                await self._hear_out(first)
                return
            self._heartbeat_s = self._speaker.opened(first) / 1000
            self._master = (first.opened.node, first.opened.epoch)
            self._become(ConversationPhase.LIVE)
            async with self._writing():
                await self._listen()
        finally:
            self._timer.cancel()
            for doubt in self._doubts:
                doubt.cancel()
            # Does nothing to a call that has ended, which is the rule.
            self._call.cancel()

    async def _listen(self) -> None:
        while (response := await self._read()) is not None:
            self._heard_at = self._loop.time()
            kind = response.WhichOneof("response")
            if kind == "moved":
                await self._hear_out(response)
                return
            if kind != "heartbeat" and self._speaker.received(response):
                self.progress = True
                self._answered_at = self._heard_at
        # Nodes end a stream with a word, and we with a half-close. This one heard nothing of us:
        # its way to us is open, and ours to it isn't.
        self.out_of_touch = self._phase is ConversationPhase.LIVE

    async def _hear_out(self, response: Response) -> None:
        """The queue is elsewhere. The answers that this node still has are heard to the end: they
        are confirms of messages that would be sent again otherwise."""
        self.moved = True
        self.moved_to = response.moved.address
        self.moved_reason = response.moved.reason
        if response.moved.epoch:
            self.moved_master = (response.moved.node, response.moved.epoch)
        self._speaker.moved()
        self._work.set()
        self._become(ConversationPhase.MOVED)
        with contextlib.suppress(RingMQError):
            # However it ends, the next stream is opened elsewhere.
            while (late := await self._read()) is not None:
                if late.WhichOneof("response") not in ("moved", "heartbeat"):
                    self.progress |= self._speaker.received(late)

    async def _read(self) -> Response | None:
        """The next response, None at a good end."""
        try:
            data = await self._call.read()
        except RpcError as failure:
            self.out_of_touch |= self._call.call.timed_out
            if self._phase is ConversationPhase.GIVEN_UP:
                raise UnavailableError(f"{self._peer}: {self._why_given_up}") from None
            raise from_call(failure, self._peer) from failure
        return None if data is None else self._response(data)

    def _response(self, data: bytes) -> Response:
        try:
            return self._speaker.response.FromString(data)
        except DecodeError as error:
            raise ProtocolError(f"{self._peer}: these bytes are no response: {error}") from error

    # --- writing ---

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Runs the writer meanwhile. At the end a bug of the writer is raised here."""
        writer = self._loop.create_task(self._write_all(), name=f"{self._name}-writer")
        writer.add_done_callback(self._writer_done)
        try:
            yield
        finally:
            writer.cancel()
            # Not `await writer`: a cancel of this task that comes here would look like the writer's
            # own, and be lost.
            await asyncio.wait([writer])
            if not writer.cancelled() and (bug := writer.exception()) is not None:
                raise bug

    async def _write_all(self) -> None:
        """Writes the speaker's requests, as long as the stream takes them."""
        speaker = self._speaker
        # If the call is over, the reader gets the reason.
        with contextlib.suppress(RpcError, CallClosedError):
            while True:
                request = speaker.next_request()
                if request is None:
                    if speaker.finishing:
                        break
                    if self._heartbeat_due:
                        request = speaker.heartbeat().SerializeToString()
                if request is None:
                    # Nothing ran since `next_request`, so no request is missed by this.
                    self._work.clear()
                    await self._work.wait()
                    continue
                self._heartbeat_due = False
                await self._call.write(request)
                self._wrote_at = self._loop.time()
            self._call.half_close()
            self._become(ConversationPhase.HALF_CLOSED)

    def _writer_done(self, task: asyncio.Task[None]) -> None:
        """A bug in the writer must not leave the reader waiting: `_writing` raises it."""
        if not task.cancelled() and task.exception() is not None:
            self._give_up("the writer failed")

    # --- time ---

    def _become(self, phase: ConversationPhase) -> None:
        if self._phase is ConversationPhase.GIVEN_UP:
            # A cancelled call still lets us half-close it, which changes nothing.
            return
        self._phase = phase
        if phase is ConversationPhase.LIVE:
            self._timer.cancel()
            self._heard_at = self._wrote_at = self._due_at = self._loop.time()
            self._answered_at = self._heard_at
            if self._heartbeat_s:
                # A connection that was cut is of no use for the next stream either.
                self._call.call.give_up_after(HEARTBEATS_UNACKNOWLEDGED_MAX * self._heartbeat_s)
                self._watch()
        else:
            limit_s, _ = TIME_LIMITS[phase]
            self._limit_at = self._loop.time() + limit_s
            self._set_limit()

    def _set_limit(self) -> None:
        """Has the timer go off at the end of the phase, or when it is time to doubt."""
        may_doubt = self._phase is ConversationPhase.OPENING
        doubt_at = self._loop.time() + OPEN_DOUBT_S
        self._timer.set_at(min(self._limit_at, doubt_at) if may_doubt else self._limit_at)

    @property
    def _silence_s(self) -> float:
        return HEARTBEATS_MISSED_MAX * self._heartbeat_s

    def _on_timer(self) -> None:
        if self._phase is ConversationPhase.LIVE:
            self._watch()
        elif self._loop.time() < self._limit_at:
            if self._master is not None:
                self._doubt()
            self._begin(self._look_whether_it_answers())
            self._set_limit()
        else:
            self._give_up(TIME_LIMITS[self._phase][1])

    def _give_up(self, why: str) -> None:
        self._phase = ConversationPhase.GIVEN_UP
        self._why_given_up = why
        self._timer.cancel()
        self._call.cancel()

    def _watch(self) -> None:
        """Has a heartbeat written when it is time, and gives up when the node's have stopped."""
        now = self._loop.time()
        if now > self._due_at + self._heartbeat_s:
            # This loop was away, not the node. Its heartbeats since then are still unread, and
            # to count the pause as its silence would tear down every stream after one.
            self._heard_at = now
        silence_s = self._silence_s
        if now >= self._heard_at + silence_s:
            self.out_of_touch = True
            self._give_up(f"silent for {silence_s:g} s")
            return
        if now >= self._wrote_at + self._heartbeat_s:
            self._heartbeat_due = True
            self._wrote_at = now
            self._work.set()
        if not self._speaker.waiting:
            self._answered_at = now
        elif now >= self._answered_at + DOUBT_S:
            self._answered_at = now
            self._doubt()
        self._due_at = min(
            self._heard_at + silence_s,
            self._wrote_at + self._heartbeat_s,
            self._answered_at + DOUBT_S,
        )
        self._timer.set_at(self._due_at)

    def _doubt(self) -> None:
        """Asks all nodes whether there is another master, while this one may yet answer."""
        assert self._master is not None
        self._begin(self._look_for_newer(self._master))

    def _begin(self, doubt: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(doubt, name=f"{self._name}-doubt")
        self._doubts.add(task)
        task.add_done_callback(self._doubts.discard)

    async def _look_for_newer(self, master: tuple[str, int]) -> None:
        address = await self._newer_master(*master)
        if self._master != master:
            return  # The stream was opened meanwhile, by the master that has followed.
        if address and self._phase in (ConversationPhase.OPENING, ConversationPhase.LIVE):
            self.moved = True
            self.moved_to = address
            self._give_up(f"no answer yet, and {address} is master by now")

    async def _look_whether_it_answers(self) -> None:
        """A node that opens nothing for a while may have a reason, unless it is stopped: then any
        other one is better."""
        if not await self._answers(ANSWER_S) and self._phase is ConversationPhase.OPENING:
            self._give_up(f"no answer to anything in {ANSWER_S:g} s")
