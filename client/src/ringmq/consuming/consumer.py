"""Consuming from one queue: batches in, acks out as ranges.

A delivery belongs to the stream that it came on. Each stream that this consumer opens is a
*generation*; after a break (a failover, a restart) the unsettled messages come again on the next
one, with `redelivered` set, and an ack of a batch of an older generation does nothing but return
False. Batches that the user hadn't taken yet when the stream broke are dropped: they come again
anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TypedDict

from ringmq.calls.arguments import check_argument, checked
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.route import Route
from ringmq.consuming.pulling import Pulling
from ringmq.consuming.reception import Reception
from ringmq.consuming.settling import Settling, Verb
from ringmq.consuming.shared_prefetch import SharedPrefetch
from ringmq.consuming.stream import ConsumerSpeaker, opening_of
from ringmq.errors import (
    BadRequestError,
    ClosedError,
    RingMQError,
    TimedOutError,
    UnknownDeliveryError,
)
from ringmq.model.messages import Batch, Message
from ringmq.streams.keeper import Keeper
from ringmq.streams.lifetime import Lifetime
from ringmq_base.ranges import Range

# What settles may name.
SETTLED = Batch | Message | int
INT_OR_NONE = int | None
FLOAT_OR_NONE = float | None


class ConsumerOptions(TypedDict, total=False):
    """What else a consumer may ask for; none of it by default."""

    #: Consumers of a higher one are given messages first, as long as they have room.
    priority: int
    #: Alone, or `ExclusiveUseError`; others are refused meanwhile.
    exclusive: bool
    #: The node acknowledges each message when it has written it; a break then loses it.
    auto_ack: bool
    #: Called when this consumer becomes, or ceases to be, the single active one of its queue.
    on_active: Callable[[bool], None] | None
    #: A prefetch that this consumer shares with others, beside its own. Not with `auto_ack`.
    shared_prefetch: SharedPrefetch | None
    #: Messages come only when `pull` asks for them; not with any of the above. Such a consumer
    #: keeps nobody out, and isn't counted as one of the queue's.
    pulls: bool
    #: Called with the number of each generation whose stream has ended, unless `close` has ended
    #: it: its unsettled messages go back to the queue, so drop the work on them.
    on_interrupted: Callable[[int], None] | None


class Consumer:
    """Made by `Client.consumer`; an async context manager and an async iterator of `Batch`.

    `prefetch`, `prefetch_bytes`: how much may be unsettled at a time; 0: the node's default.
    `deadline_s`: for the first opening, and for waits for acks; after a break the stream is opened
    again for as long as it takes. The rest: `ConsumerOptions`.

    Leaving the context sends the acks that are waiting and ends the stream; unsettled messages go
    back to the queue.
    """

    def __init__(
        self,
        nodes: KnownNodes,
        queue: str,
        *,
        prefetch: int,
        prefetch_bytes: int,
        consumer_tag: str,
        deadline_s: float,
        on_open: Callable[[Consumer], None],
        on_close: Callable[[Consumer], None],
        priority: int = 0,
        exclusive: bool = False,
        auto_ack: bool = False,
        on_active: Callable[[bool], None] | None = None,
        shared_prefetch: SharedPrefetch | None = None,
        pulls: bool = False,
        on_interrupted: Callable[[int], None] | None = None,
    ) -> None:
        _check_prefetch(prefetch, prefetch_bytes)
        self.queue = queue
        self.deadline_s = deadline_s
        self._on_open, self._on_close = on_open, on_close
        self._name = f"ringmq-consumer-{queue}"
        self._settling = Settling()
        self._pulls = pulls
        self._pulling = Pulling(queue, self._settling)
        self._lifetime = Lifetime(f"consumer of queue {queue!r}", self._failed)
        self._auto_ack = auto_ack
        self._reception = Reception(
            queue, self._lifetime, self._settling, consumer_tag, auto_ack=auto_ack
        )
        self._reception.on_active = on_active
        self._reception.on_interrupted = on_interrupted
        if shared_prefetch is not None and auto_ack:
            raise BadRequestError("an auto-ack consumer has nothing unsettled to share a prefetch")
        opening = opening_of(
            queue,
            nodes.vhost,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            consumer_tag=consumer_tag,
            priority=priority,
            exclusive=exclusive,
            auto_ack=auto_ack,
            shares_window=shared_prefetch is not None,
            pulls=pulls,
        )
        self._speaker = ConsumerSpeaker(
            opening,
            self._reception,
            self._settling,
            self._lifetime,
            on_refusal=self._refused,
            pulling=self._pulling,
            shared=shared_prefetch,
            wake=lambda: self._keeper.wake(),
        )
        self._keeper = Keeper(self._speaker, Route(nodes, queue), self._name)

    # --- life ---

    async def __aenter__(self) -> Consumer:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Opens the stream; raises why it can't be within the deadline."""
        self._on_open(self)
        self._lifetime.start(self._keeper, self._name)
        try:
            await self._lifetime.wait_opened(self.deadline_s)
        except TimeoutError:
            await self.close()
            raise self._reception.trouble or TimedOutError(
                f"queue {self.queue!r}: no stream within {self.deadline_s:g} s"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Sends the noted acks and ends the stream. Iteration ends. Idempotent."""
        if self._lifetime.close():
            self._reception.end_iteration()
            self._pulling.end(self._lifetime.reason)
            await self._lifetime.end(self._keeper)
            if self._speaker.member is not None:
                self._speaker.member.ended()
            self._on_close(self)

    def _failed(self, error: RingMQError) -> None:
        """The keeper is gone, and so can't say that the stream is over."""
        self._reception.end_iteration()
        self._pulling.end(error)
        self._reception.stream_ended(error)
        if self._speaker.member is not None:
            self._speaker.member.ended()

    def _refused(self, error: RingMQError) -> None:
        """No node will have the stream. Without a queue to consume from there is no way on."""
        self._lifetime.fail(error)
        self._reception.end_iteration()
        self._pulling.end(error)
        self._keeper.stop()

    # --- batches ---

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """The next batch; None when the consumer is closed, or nothing came in `timeout_s`."""
        if timeout_s is not None:
            check_argument("timeout_s", timeout_s, float)
        if self._pulls:
            raise BadRequestError("this consumer is given messages only when it asks: `pull`")
        if not (self._lifetime.usable or self._lifetime.over):
            raise self._lifetime.reason.copy()
        if not self._reception.has_batches:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._reception.wait_batch()
            except TimeoutError:
                return None
        if self._lifetime.over:
            if isinstance(self._lifetime.reason, ClosedError):
                return None
            raise self._lifetime.reason.copy()
        return self._reception.take_batch()

    @checked
    async def pull(
        self, messages_max: int = 1, *, bytes_max: int = 0, deadline_s: float | None = None
    ) -> Batch:
        """The first ready messages, unsettled from now on; an empty batch if there are none.

        For a consumer with `pulls`. At most 1000 messages and 4 MiB come at a time (`bytes_max` 0),
        and no more than its prefetch has room for: `LimitExceededError` if that is used up. After a
        break it is asked again, and the messages of a lost answer go back to the queue. Without an
        answer within `deadline_s` (default: the consumer's) it raises `TimedOutError`.
        """
        if not self._pulls:
            raise BadRequestError("this consumer is given messages unasked: `pulls` is for others")
        if not self._lifetime.usable:
            raise self._lifetime.reason.copy()
        wait_s = self.deadline_s if deadline_s is None else deadline_s
        answer = self._pulling.ask(messages_max, bytes_max)
        self._keeper.wake()
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except (TimeoutError, asyncio.CancelledError) as error:
            self._pulling.leave(answer)
            self._keeper.wake()
            if isinstance(error, TimeoutError):
                raise TimedOutError(
                    f"queue {self.queue!r}: no answer to a pull within {wait_s:g} s"
                ) from self._reception.trouble
            raise

    # --- settling ---

    async def ack(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        """Takes messages off the queue: a batch, a slice of one, a message, or `first, last`.

        Returns True if the acks go out on the stream that the messages came on, and False if
        that stream has ended: then the messages are delivered again. With `wait`, True means
        that the acks are as safe as a confirmed message, and False that the stream ended before
        that was known: the messages may be delivered again. If it isn't known within
        `deadline_s` (default: the consumer's) it raises `TimedOutError`, although the acks have
        gone out. That is the rule while fewer replicas than `min_insync` are synchronised.

        Bare positions mean messages of the present stream. Raises `UnknownDeliveryError` for
        positions that were settled before or never handed out.
        """
        return await self._settle(Verb.ACK, what, last, wait, deadline_s)

    async def nack(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        requeue: bool = True,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        """Puts messages back in their places, or with `requeue=False` rejects them.

        As `ack` otherwise. Requeues can't be waited for: nodes don't report them.
        """
        if requeue is not True or wait is not False:
            check_argument("requeue", requeue, bool)
            check_argument("wait", wait, bool)
        if requeue and wait:
            raise BadRequestError("a requeue is not reported, so it can't be waited for")
        verb = Verb.REQUEUE if requeue else Verb.DISCARD
        return await self._settle(verb, what, last, wait, deadline_s)

    async def reject(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        """Refuses messages for good: `nack` with `requeue=False`. They go to the queue's
        dead-letter exchange, if it has one, and are dropped otherwise."""
        return await self._settle(Verb.DISCARD, what, last, wait, deadline_s)

    async def _settle(
        self,
        verb: Verb,
        what: Batch | Message | int,
        last: int | None,
        wait: bool,
        deadline_s: float | None,
    ) -> bool:
        # Seldom given: most acks are of a batch or a message, and don't wait.
        if last is not None or wait is not False or deadline_s is not None:
            check_argument("last", last, INT_OR_NONE)
            check_argument("wait", wait, bool)
            check_argument("deadline_s", deadline_s, FLOAT_OR_NONE)
        if self._auto_ack:
            raise BadRequestError("the node acknowledges the messages of an auto-ack consumer")
        generation = self.generation
        ranges: Sequence[Range]
        if isinstance(what, Batch):
            ranges = what.positions
            generation = what.generation
        elif isinstance(what, Message):
            ranges = [(what.position, what.position)]
            generation = what.generation
        else:
            check_argument("what", what, SETTLED)
            ranges = [(what, what if last is None else last)]
        if self._lifetime.closing or generation != self.generation or not self._reception.live:
            return False
        unknown = self._settling.unknown(ranges)
        if unknown:
            first, end = unknown[0]
            raise UnknownDeliveryError(
                f"queue {self.queue!r}: positions {first}..{end} are settled already, "
                f"or not of this stream (generation {self.generation})"
            )
        self._settling.note(verb, ranges)
        if self._speaker.member is not None:
            self._speaker.member.settled(ranges)
        self._keeper.wake()
        if not wait or not ranges:
            return True
        wait_s = self.deadline_s if deadline_s is None else deadline_s
        return await self._wait_settled(verb, ranges, wait_s)

    async def _wait_settled(self, verb: Verb, ranges: Sequence[Range], wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                return await self._reception.wait_settled(ranges)
        except TimeoutError:
            raise TimedOutError(
                f"queue {self.queue!r}: not known after {wait_s:g} s whether the {verb.value} is "
                "safe: these messages may be delivered again"
            ) from None

    # --- its terms ---

    @checked
    async def set_prefetch(self, prefetch: int, prefetch_bytes: int = 0) -> None:
        """How much may be unsettled at a time, from now on; 0: the node's default. More that is out
        already stays out. `prefetch` says what the node has made of it."""
        _check_prefetch(prefetch, prefetch_bytes)
        self._speaker.change_prefetch(prefetch, prefetch_bytes)
        self._keeper.wake()

    @property
    def prefetch(self) -> tuple[int, int]:
        """How much the node lets be unsettled at a time: messages, bytes."""
        return self._reception.prefetch

    @property
    def active(self) -> bool:
        """False while another consumer is the single active one of the queue."""
        return self._reception.active

    # --- its state ---

    @property
    def consumer_tag(self) -> str:
        """The user's, or the one that the node has chosen."""
        return self._reception.consumer_tag

    @property
    def generation(self) -> int:
        """The number of the present stream, or the last one; the first is 1."""
        return self._reception.generation

    @property
    def unsettled_messages(self) -> int:
        """Handed out on the present stream, and neither acked nor nacked; with `auto_ack` none."""
        return self._settling.held_messages

    @property
    def node_address(self) -> str:
        """The node that the stream goes to."""
        return self._keeper.peer


def _check_prefetch(prefetch: int, prefetch_bytes: int) -> None:
    if prefetch < 0 or prefetch_bytes < 0:
        raise BadRequestError(
            f"a prefetch of {prefetch} messages and {prefetch_bytes} bytes: both are 0 (the "
            "node's default) or more"
        )
