"""A stream that is kept open: the shell that publisher and consumer share.

`Keeper.run` opens the stream at the node that `Route` picks, hands each response to
its owner, writes whatever the owner has to send, and opens it again when it
breaks, with tenacity's jittered backoff until there was progress. What goes over
the stream, and what a break means, is the owner's business (`Owner`).

Facts of grpc.aio behind the shape: one write at a time per call, so one writer
task takes whatever has gathered; cancelling a `read` or `write` cancels the call,
so neither has a timeout of its own: a timer looks at the silence and cancels the
call; cancelled streams leak in grpc (grpc#43360), so a stream is ended by
`done_writing` and read to its end, and cancelled only when that takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import Generic, TypeVar, cast

import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception

from ringmq.calls.channels import SUCCESSOR_S, Node, Route, is_nodes_own, is_retryable, retry_wait_s
from ringmq.calls.status import from_call
from ringmq.errors import ProtocolError, RetryableError, RingMQError, UnavailableError
from ringmq.v1.broker_pb2 import ConsumeRequest, ConsumeResponse, PublishRequest, PublishResponse
from ringmq_base.limits import HEARTBEATS_MISSED_MAX

#: A node that takes longer to answer an Open is passed over for the moment.
OPEN_S = 5.0
LOCATE_S = 5.0
#: How long the end of a half-closed stream is awaited before it is cancelled.
FINISH_S = 2.0
#: This many redirects in a row without progress, and we take a breath between them.
REDIRECTS_MAX = 3

Request = TypeVar("Request", PublishRequest, ConsumeRequest)
Response = TypeVar("Response", PublishResponse, ConsumeResponse)


def may_reopen(error: BaseException) -> bool:
    """Whether the stream may be opened again after `error`.

    More than `is_retryable`: grpc.aio turns the status of a call into a bare INTERNAL
    when the break is first noticed by a write. What the node meant, the next Open tells.
    """
    return is_retryable(error) or (isinstance(error, ProtocolError) and not error.reason)


class EndedError(RetryableError):
    """The stream ended and is to be opened again. Stays inside this package."""


class Owner(ABC, Generic[Request, Response]):
    """What goes over the stream. All of it is called on the loop, none of it blocks."""

    @abstractmethod
    def start_call(self, node: Node) -> grpc.aio.StreamStreamCall[Request, Response]: ...

    @abstractmethod
    def open_request(self) -> Request:
        """The first request."""

    @abstractmethod
    def opened(self, response: Response) -> int:
        """The first response has come; returns its `heartbeat_ms`."""

    @abstractmethod
    def received(self, response: Response) -> bool:
        """Another one (no heartbeat, no Moved) has come; returns whether that is progress.

        Raises a `RingMQError` to end the stream."""

    @abstractmethod
    def next_request(self) -> Request | None:
        """What is to be written now, if anything."""

    @abstractmethod
    def heartbeat(self) -> Request:
        """What is sent when there has been nothing else for a while."""

    @abstractmethod
    def moved(self) -> None:
        """The node will end the stream: nothing new is to go out on it."""

    @property
    @abstractmethod
    def finishing(self) -> bool:
        """Whether to half-close once `next_request` has nothing left."""

    @abstractmethod
    def ended(self, trouble: RingMQError | None) -> float:
        """The stream is over, or could not be opened; returns a pause (s) before the next one."""

    @abstractmethod
    def refused(self, error: RingMQError) -> None:
        """No node will have this stream; the keeper waits for `retry` or `stop`."""


class Keeper(Generic[Request, Response]):
    """Keeps one stream open for `owner` until `stop`."""

    def __init__(self, owner: Owner[Request, Response], route: Route, name: str) -> None:
        self._owner: Owner[Request, Response] = owner
        self._route = route
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._peer = ""
        # Why we cancelled the call ourselves; empty while we have not.
        self._given_up = ""
        self._idle: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._wrote_at = 0.0
        self._heartbeat_s = 0.0
        self._heartbeat_due = False
        self._stopping = False
        self._progress = self._moved = False  # of the present stream
        self._redirects = 0
        # Since when only nodes with failed disks have been met.
        self._failed_disk_at: float | None = None
        self._retry = asyncio.Event()

    @property
    def peer(self) -> str:
        """The address of the node that has, or last had, the stream."""
        return self._peer

    def wake(self) -> None:
        """There is something to write."""
        idle = self._idle
        if idle is not None and not idle.done():
            idle.set_result(None)

    def retry(self) -> None:
        """After a refusal: try again."""
        self._retry.set()

    def stop(self) -> None:
        """No new stream after this one. The owner makes it end by `finishing`."""
        self._stopping = True
        self._retry.set()
        self.wake()

    async def run(self) -> None:
        """Until `stop` and the end of the stream. Raises only what is a bug."""
        while not self._stopping:
            # A new one after each progress, so that the backoff begins anew.
            retrying = AsyncRetrying(
                wait=retry_wait_s,
                retry=retry_if_exception(lambda e: may_reopen(e) and not self._stopping),
                sleep=self._sleep,
                reraise=True,
            )
            try:
                async for trial in retrying:
                    with trial:
                        await self._one_stream()
            except RingMQError as error:
                if not self._stopping:
                    self._retry.clear()
                    self._owner.refused(error)
                    await self._retry.wait()

    async def _sleep(self, seconds: float) -> None:
        """Ends early when `stop` is called."""
        self._retry.clear()
        if not self._stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._retry.wait(), seconds)

    async def _one_stream(self) -> None:
        """Returns after progress or a redirect; raises why there was none, or a refusal."""
        self._progress = self._moved = False
        trouble: RingMQError | None = None
        try:
            node = await self._route.pick(LOCATE_S)
            self._peer = node.address
            await self._converse(self._owner.start_call(node))
        except RingMQError as error:
            trouble = error
        pause_s = self._owner.ended(trouble)
        if self._stopping:
            return
        if trouble is not None and not self._may_go_on(trouble):
            raise trouble
        if self._progress:
            self._redirects = 0
            self._route.worked()
        elif self._moved:
            self._redirects += 1
        elif trouble is not None:
            self._route.failed(self._peer)
        followed = self._moved and self._redirects <= REDIRECTS_MAX
        if pause_s > 0 or not (self._progress or followed):
            why = trouble.message if trouble is not None else f"{self._peer}: the stream ended"
            hint_s = max(pause_s, trouble.retry_after_s if trouble is not None else 0.0)
            raise EndedError(why, retry_after_s=hint_s)

    def _may_go_on(self, trouble: RingMQError) -> bool:
        """A node whose disk failed will be replaced, unless it takes too long."""
        if not is_nodes_own(trouble):
            self._failed_disk_at = None
            return may_reopen(trouble)
        now = self._loop.time()
        if self._failed_disk_at is None or self._progress:
            self._failed_disk_at = now
        return now < self._failed_disk_at + SUCCESSOR_S

    async def _converse(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        """One stream from Open to its end; raises if that is not a good one."""
        self._given_up = ""
        writer: asyncio.Task[None] | None = None
        self._arm(OPEN_S, call, "no answer to Open")
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # If it fails, the read below says why.
                await call.write(self._owner.open_request())
            first = await self._read(call)
            if first is None:
                raise UnavailableError(f"{self._peer}: ended the stream before it was open")
            if first.WhichOneof("response") == "moved":
                await call.done_writing()
                await self._follow(call, first)
                return
            self._heartbeat_s = self._owner.opened(first) / 1000
            self._disarm()
            self._heard_at = self._wrote_at = self._loop.time()
            if self._heartbeat_s:
                self._watch(call, self._heard_at)
            writer = self._loop.create_task(self._write_all(call), name=f"{self._name}-writer")
            writer.add_done_callback(lambda task: self._writer_done(call, task))
            while (response := await self._read(call)) is not None:
                self._heard_at = self._loop.time()
                kind = response.WhichOneof("response")
                if kind == "moved":
                    await self._follow(call, response)
                    return
                if kind != "heartbeat" and self._owner.received(response):
                    self._progress = True
        finally:
            self._disarm()
            await self._put_away(call, writer)

    async def _follow(
        self, call: grpc.aio.StreamStreamCall[Request, Response], response: Response
    ) -> None:
        """The queue is elsewhere. What this node still has to say is heard to the end."""
        self._moved = True
        self._route.moved(response.moved.address)
        self._owner.moved()
        self.wake()
        self._arm(FINISH_S, call, "no end after Moved")
        with contextlib.suppress(RingMQError):
            # However it ends, the next stream is opened elsewhere.
            while (late := await self._read(call)) is not None:
                if late.WhichOneof("response") not in ("moved", "heartbeat"):
                    self._progress |= self._owner.received(late)

    async def _read(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> Response | None:
        """The next response, None at a good end."""
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as failure:
            raise from_call(failure, self._peer) from failure
        except asyncio.CancelledError:
            # grpc.aio says it with this, too, when it was we who cancelled the call.
            task = asyncio.current_task()
            if not self._given_up or (task is not None and task.cancelling()):
                raise
            raise UnavailableError(f"{self._peer}: {self._given_up}") from None
        return None if response is grpc.aio.EOF else cast("Response", response)

    async def _write_all(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        """Writes what the owner has, as long as the stream takes it."""
        owner = self._owner
        # If the call is over, the reader gets the reason.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                request = owner.next_request()
                if request is None:
                    if owner.finishing:
                        break
                    if self._heartbeat_due:
                        request = owner.heartbeat()
                if request is None:
                    self._idle = self._loop.create_future()
                    await self._idle
                    continue
                self._heartbeat_due = False
                await call.write(request)
                self._wrote_at = self._loop.time()
            await call.done_writing()
            self._arm(FINISH_S, call, "no end after our half-close")

    def _writer_done(
        self, call: grpc.aio.StreamStreamCall[Request, Response], task: asyncio.Task[None]
    ) -> None:
        """A bug in the writer must not leave the reader waiting: `_put_away` raises it."""
        if not task.cancelled() and task.exception() is not None:
            self._give_up(call, "the writer failed")

    async def _put_away(
        self, call: grpc.aio.StreamStreamCall[Request, Response], writer: asyncio.Task[None] | None
    ) -> None:
        # Does nothing to a call that has ended, which is the rule.
        call.cancel()
        if writer is not None:
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer

    # --- time ---

    def _arm(
        self, delay_s: float, call: grpc.aio.StreamStreamCall[Request, Response], why: str
    ) -> None:
        """Gives the call up after `delay_s`, unless disarmed. One timer: the newest counts."""
        self._disarm()
        self._timer = self._loop.call_later(delay_s, self._give_up, call, why)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, call: grpc.aio.StreamStreamCall[Request, Response], why: str) -> None:
        self._given_up = why
        call.cancel()

    def _watch(self, call: grpc.aio.StreamStreamCall[Request, Response], due: float) -> None:
        """Sends a heartbeat when it is time, and gives up when the node's have stopped."""
        now = self._loop.time()
        if now > due + self._heartbeat_s:
            # It was this loop that was away. What the node sent meanwhile is not read yet.
            self._heard_at = now
        silence_s = HEARTBEATS_MISSED_MAX * self._heartbeat_s
        if now >= self._heard_at + silence_s:
            self._give_up(call, f"silent for {silence_s:g} s")
            return
        if now >= self._wrote_at + self._heartbeat_s:
            self._heartbeat_due = True
            self._wrote_at = now
            self.wake()
        due = min(self._heard_at + silence_s, self._wrote_at + self._heartbeat_s)
        self._timer = self._loop.call_at(due, self._watch, call, due)
