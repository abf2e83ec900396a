"""A stream that is kept open: the shell that publisher and consumer share.

`Keeper.run` opens a stream at the node that `Route` picks, lets the speaker talk over it
(`Conversation`), and opens the next one when it breaks, with tenacity's jittered backoff until
there was progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic

from tenacity import AsyncRetrying, retry_if_exception

from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.retrying import SUCCESSOR_S, is_nodes_own, is_retryable, retry_wait_s
from ringmq.calls.route import Route
from ringmq.calls.status import from_call
from ringmq.errors import ProtocolError, RetryableError, RingMQError
from ringmq.streams.conversation import Conversation
from ringmq.streams.speaker import Request, Response, Speaker
from ringmq_wire import CallStream, RpcError

log = logging.getLogger(__name__)

LOCATE_S = 5.0
#: How long after `stop` another stream may be begun for the speaker's last word. Once there is a
#: new master, the next attempt or the one after it finds it.
LAST_WORD_S = 2.0
#: After this many redirects in a row without progress there is a pause between them.
REDIRECTS_MAX = 3


def may_reopen(error: BaseException) -> bool:
    """Whether the stream may be opened again after `error`.

    More than `is_retryable`: a connection that breaks may end a stream with a bare INTERNAL. If
    the node refused, it will refuse the next Open too, and that answer has the reason.
    """
    return is_retryable(error) or (isinstance(error, ProtocolError) and not error.reason)


class EndedError(RetryableError):
    """The stream ended and is to be opened again. Stays inside this module."""


class KeeperPhase(Enum):
    #: A stream is open, or on its way.
    KEEPING = auto()
    #: Between two attempts.
    BACKING_OFF = auto()
    #: No node would have the stream: the next attempt waits for something to write.
    REFUSED = auto()
    #: No new stream after this one, but for the speaker's last word.
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended, or why it could not be opened."""

    trouble: RingMQError | None
    progress: bool = False
    moved: bool = False
    out_of_touch: bool = False


class Keeper(Generic[Request, Response]):
    """Keeps one stream open for `speaker` until `stop`."""

    def __init__(self, speaker: Speaker[Request, Response], route: Route, name: str) -> None:
        self._speaker: Speaker[Request, Response] = speaker
        self._route = route
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._peer = ""
        self._phase = KeeperPhase.KEEPING
        # Ends BACKING_OFF early, and REFUSED.
        self._go_on = asyncio.Event()
        # The writer's: there may be a request.
        self._work = asyncio.Event()
        self._redirects = 0
        # After `stop`, until when another stream may be begun.
        self._last_word_until = math.inf
        # Since when only nodes with failed disks were met; infinite: another one was the last.
        self._failed_disks_since = math.inf

    @property
    def peer(self) -> str:
        """The address of the node that has, or last had, the stream; empty before the first."""
        return self._peer

    def wake(self) -> None:
        """There is something to write. After a refusal this is the reason to try again."""
        self._work.set()
        if self._phase is KeeperPhase.REFUSED:
            self._go_on.set()

    def stop(self) -> None:
        """No new stream after this one, which the speaker makes end by `finishing`. If the speaker
        owes a word then, others may follow for a while, until a node has heard it."""
        self._last_word_until = self._loop.time() + LAST_WORD_S
        self._phase = KeeperPhase.STOPPING
        self._go_on.set()
        self._work.set()

    @property
    def _stopping(self) -> bool:
        return self._phase is KeeperPhase.STOPPING

    @property
    def _is_over(self) -> bool:
        """Whether no stream follows."""
        has_time = self._loop.time() < self._last_word_until
        return self._stopping and not (self._speaker.owes_word and has_time)

    async def run(self) -> None:
        """Until `stop` and the end of the stream. Raises only bugs."""
        while not self._is_over:
            # A new one after each progress, so that the backoff begins anew.
            retrying = AsyncRetrying(
                wait=retry_wait_s,
                retry=retry_if_exception(lambda e: may_reopen(e) and not self._is_over),
                sleep=self._back_off,
                reraise=True,
            )
            try:
                async for trial in retrying:
                    with trial:
                        self._judge(await self._one_stream())
            except RingMQError as error:
                if self._stopping:
                    return
                self._rest(KeeperPhase.REFUSED)
                self._speaker.refused(error)
                await self._go_on.wait()
                self._resume()

    def _rest(self, phase: KeeperPhase) -> None:
        self._phase = phase
        self._go_on.clear()

    def _resume(self) -> None:
        if not self._stopping:
            self._phase = KeeperPhase.KEEPING

    async def _back_off(self, seconds: float) -> None:
        """Ends early when `stop` is called."""
        if self._stopping:
            left_s = max(self._last_word_until - self._loop.time(), 0.0)
            await asyncio.sleep(min(seconds, left_s))
            return
        self._rest(KeeperPhase.BACKING_OFF)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._go_on.wait(), seconds)
        self._resume()

    async def _one_stream(self) -> Ending:
        progress = moved = out_of_touch = False
        trouble: RingMQError | None = None
        try:
            node = await self._route.pick(LOCATE_S)
            self._peer = node.address
            log.debug("%s: opens a stream at %s", self._name, node.address)
            conversation = Conversation(
                self._speaker,
                await self._start_call(node),
                self._work,
                peer=node.address,
                name=self._name,
                newer_master=self._route.newer_master,
                answers=node.answers,
                sought=self._route.sought,
            )
            try:
                await conversation.run()
            finally:
                progress, moved = conversation.progress, conversation.moved
                out_of_touch = conversation.out_of_touch
                if moved:
                    # Also if the stream broke after it had said so.
                    self._route.moved(conversation.moved_to, conversation.moved_master)
        except RingMQError as error:
            trouble = error
        return Ending(trouble, progress, moved, out_of_touch)

    async def _start_call(self, node: NodeChannel) -> CallStream:
        try:
            return await node.wire.stream(self._speaker.path, metadata=node.identity.metadata)
        except RpcError as failure:
            raise from_call(failure, node.address) from failure

    def _judge(self, ending: Ending) -> None:
        """Returns after progress or a redirect; raises why there was none, or a refusal."""
        trouble = ending.trouble
        pause_s = self._speaker.ended(trouble)
        if self._is_over:
            return
        # Of a cluster that is away, the first one only: attempts follow each other quickly.
        level = logging.INFO if ending.progress or ending.moved else logging.DEBUG
        log.log(level, "%s: %s", self._name, self._told(ending))
        if trouble is not None and not self._may_go_on(ending, trouble):
            raise trouble
        if ending.progress:
            # The route was right, however the stream ended: earlier failures count no more.
            self._redirects = 0
            self._route.worked()
        elif ending.moved:
            self._redirects += 1
        if ending.out_of_touch or (trouble is not None and not (ending.progress or ending.moved)):
            # Out of touch, it may be master yet, and well but for the way between us. Opened there,
            # the next stream would get no answer for `OPEN_S`; another node relays at once.
            answered = trouble is not None and bool(trouble.reason)
            self._route.failed(self._peer, answered=answered)
        # A redirect is followed at once. But two nodes that each take the other for the master
        # would have this client go to and fro as fast as it can, so that has a limit.
        followed = ending.moved and self._redirects <= REDIRECTS_MAX
        if pause_s > 0 or not (ending.progress or followed):
            why = trouble.message if trouble is not None else f"{self._peer}: the stream ended"
            hint_s = max(pause_s, trouble.retry_after_s if trouble is not None else 0.0)
            raise EndedError(why, retry_after_s=hint_s)

    def _told(self, ending: Ending) -> str:
        """Of a log: how a stream ended that is followed by another."""
        if ending.moved:
            return f"{self._peer} has sent the stream away"
        why = "" if ending.trouble is None else f": {ending.trouble.message}"
        return f"the stream at {self._peer or 'no node'} has ended{why}"

    def _may_go_on(self, ending: Ending, trouble: RingMQError) -> bool:
        """A node whose disk failed will be replaced, unless it takes too long."""
        if not is_nodes_own(trouble):
            self._failed_disks_since = math.inf
            return may_reopen(trouble)
        now = self._loop.time()
        if math.isinf(self._failed_disks_since) or ending.progress:
            self._failed_disks_since = now
        return now < self._failed_disks_since + SUCCESSOR_S
