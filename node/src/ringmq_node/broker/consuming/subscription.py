"""A subscription: one consumer of one queue, whose master may be on any node, and may change.

A door on any node asks for it (`subscribing`). It reaches the queue by streams to its master, one
after the other, as a way of a publisher does (`routing.ways`): a master on this node is called
directly, another one through a stream to its node (`RemoteConsumers`; the gRPC door implements it
on our client). When a stream ends, the next one goes to the node that is master then.

Each stream is a *generation*. Nothing of one survives into the next: messages that were delivered
and aren't settled are delivered again, and settlements of an older generation are dropped. A
position alone would not do: the same message has it again, and may be another consumer's by now.

A client that doesn't read is bounded by the prefetch, also with `auto_ack`: these messages are
acknowledged from here when the door says that they were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ringmq_base.ranges import Range, RangeSet
from ringmq_base.window import Share
from ringmq_base.window_members import WindowMember
from ringmq_gm import RingClosedError
from ringmq_node.broker.attempts import Attempts, may_pass
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.broker.consuming.feed import Subscriber, SubscriptionHost
from ringmq_node.broker.consuming.outgoing import (
    CancelWord,
    OutgoingWords,
    PrefetchWord,
    PullWord,
    SettleWord,
    ShareWord,
    Word,
)
from ringmq_node.broker.peers import Got
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run
from ringmq_node.replica.hosting import Spawn


class _HereSession:
    """A stream that stays on this node: the master's session."""

    def __init__(self, feed: QueueSubscription) -> None:
        self._feed = feed
        # Why it is over, and whether that is for this consumer alone.
        self.reason: Reason | None = None
        self.is_ended = False

    def delivered(self, runs: Sequence[Run]) -> None:
        self._feed.delivered(runs)

    def settled(self, positions: Sequence[Range]) -> None:
        self._feed.settled(positions)

    def active_changed(self, *, active: bool) -> None:
        self._feed.active_changed(active=active)

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        self._feed.share_short(short=short, needs_bytes=needs_bytes)

    def moved(self, reason: Reason) -> None:
        self.reason = reason
        self._feed.work.set()

    def ended(self, reason: Reason) -> None:
        self.is_ended = True
        self.moved(reason)


class QueueSubscription:
    """Made by `subscribing.Subscribing`. `open` once, before anything else."""

    def __init__(
        self,
        queue: str,
        subscriber: Subscriber,
        terms: ConsumerTerms,
        host: SubscriptionHost,
        spawn: Spawn,
        *,
        auto_ack: bool = False,
    ) -> None:
        self.queue = queue
        self.terms = terms
        self.work = asyncio.Event()
        self.is_over = False
        # The number of the present stream, or the last one; the first is 1.
        self.generation = 0
        self.auto_ack = auto_ack
        # Set before `open`, if it shares a window.
        self.member: WindowMember | None = None
        self._subscriber = subscriber
        self._host = host
        self._spawn = spawn
        self._words = OutgoingWords()
        # Delivered on the present stream, and not settled.
        self._held = RangeSet()
        self._is_open = False
        self._is_cancelled = False
        # Of pulls, in the order in which they are asked.
        self._answers: deque[tuple[PullWord, asyncio.Future[Got]]] = deque()
        self._attempts = Attempts(queue, host)
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- for a door ---

    async def open(self, deadline_s: float) -> None:
        """Returns when the first stream is open; deliveries may have come by then, behind `opened`.
        Raises `BrokerError` and `TimeoutError`: then it is over."""
        self._spawn(self._run(), f"consumer of {self.queue}")
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(self._opened)
        except BaseException:
            self.close()
            raise

    def settle(
        self,
        generation: int,
        *,
        acked: Sequence[Range] = (),
        rejected: Sequence[Range] = (),
        requeued: Sequence[Range] = (),
    ) -> bool:
        """Whether it counts: of an older generation nothing does, as those messages come again.

        Raises `BrokerError` for positions of this generation that aren't held; settles nothing
        then.
        """
        if generation != self.generation or not self._is_open:
            return False
        settled = (*acked, *rejected, *requeued)
        for first, last in settled:
            if not self._held.contains_all(first, last):
                raise BrokerError(
                    Reason.UNKNOWN_DELIVERY,
                    f"queue {self.queue!r}: of the messages {first} to {last} not all are held",
                    queue=self.queue,
                )
        self._held.subtract(settled)
        if self.member is not None:
            self.member.settled(settled)
        self._words.settle(acked, rejected, requeued)
        self.work.set()
        return True

    def sent(self, generation: int, positions: Sequence[Range]) -> None:
        """These have gone out to the client: with `auto_ack` they are acknowledged."""
        if self.auto_ack:
            self.settle(generation, acked=positions)

    def change_prefetch(self, messages: int, size_bytes: int) -> None:
        """From now on; 0 is the default. Messages above it stay out."""
        self.terms = replace(self.terms, prefetch_messages=messages, prefetch_bytes=size_bytes)
        self._words.change_prefetch(messages, size_bytes)
        self.work.set()

    def change_share(self, share: Share) -> None:
        """Of its window, which alone calls this."""
        self._words.change_share(share)
        self.work.set()

    async def pull(self, messages_max: int = 1, bytes_max: int = 0) -> Got:
        """As `Consuming.pull`. Asked again if the stream breaks; the messages are of the present
        generation. A caller that gives it up gets nothing: the messages go back.

        Raises `BrokerError`, also when the subscription ends meanwhile.
        """
        if not self.terms.pulls:
            raise bad_request("this consumer is given messages unasked", field="pull")
        if self.is_over or self._is_cancelled:
            raise bad_request("this consumer is cancelled", field="pull")
        answer: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        pull = PullWord(messages_max, bytes_max)
        self._answers.append((pull, answer))
        self._words.pull(pull)
        self.work.set()
        try:
            return await answer
        except asyncio.CancelledError:
            self._leave(answer)
            raise

    def _leave(self, answer: asyncio.Future[Got]) -> None:
        """Its caller is gone, and hasn't seen an answer that may have come."""
        for index, (_, each) in enumerate(self._answers):
            if each is answer:
                if self._words.drop_pull(index):
                    del self._answers[index]
                return
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            positions = [run.positions for run in answer.result().runs]
            # Those of a stream that has ended are back already.
            with suppress(BrokerError):
                self.settle(self.generation, requeued=positions)

    def cancel(self) -> None:
        """Ends the deliveries; unsettled messages stay, until the stream ends."""
        self._is_cancelled = True
        self._words.cancel()
        self.work.set()

    def close(self) -> None:
        """Unsettled messages go back to their places, behind the settlements. Nothing is heard
        any more."""
        self.is_over = True
        self._words.cancel()
        self._end_answers(BrokerError(Reason.BAD_REQUEST, "the consumer is closed"))
        self.work.set()

    # --- told by its streams (`ConsumeFeed`) ---

    @property
    def is_awaiting(self) -> bool:
        return self._words.is_awaiting

    def next(self) -> Word | None:
        return self._words.next()

    def master(self) -> tuple[str, int] | None:
        return self._host.master_of(self.queue)

    def newer_master(self, node: str, epoch: int) -> str:
        return self._host.newer_master(self.queue, node, epoch)

    def stream_opened(self) -> None:
        # Those whose callers have gone are not asked again.
        self._answers = deque(each for each in self._answers if not each[1].done())
        self._words.stream_began([pull for pull, _ in self._answers])
        self._held.clear()
        self._attempts.succeeded()
        self.generation += 1
        self._is_open = True
        if self._is_cancelled:
            self._words.cancel()
        if not self._opened.done():
            self._opened.set_result(None)
        if not self.is_over:
            self._subscriber.opened(self.generation)
        if self.member is not None:
            self.member.opened()

    def delivered(self, runs: Sequence[Run]) -> None:
        self._held.update([run.positions for run in runs])
        if self.member is not None:
            self.member.delivered((run.first_position, run.block.body_sizes()) for run in runs)
        if not self.is_over:
            self._subscriber.delivered(runs)

    def settled(self, positions: Sequence[Range]) -> None:
        self._words.settled(positions)
        if not self.auto_ack and not self.is_over:
            self._subscriber.settled(positions)

    def active_changed(self, *, active: bool) -> None:
        if not self.is_over:
            self._subscriber.active_changed(active=active)

    def share_answered(self) -> None:
        if self.member is not None:
            self.member.answered()

    def share_short(self, *, short: bool, needs_bytes: int) -> None:
        if self.member is not None:
            self.member.short(is_short=short, needs_bytes=needs_bytes)

    def pulled(self, got: Got | BrokerError) -> None:
        self._words.pulled()
        answer = self._answers.popleft()[1] if self._answers else None
        waits = answer is not None and not answer.done()
        if isinstance(got, Got):
            positions = [run.positions for run in got.runs]
            self._held.update(positions)
            if not waits:
                # Before the next pull, which would get the messages behind them.
                self.settle(self.generation, requeued=positions)
        if answer is not None and waits:
            if isinstance(got, BrokerError):
                answer.set_exception(got)
            else:
                answer.set_result(got)
        self.work.set()

    # --- its life ---

    async def _run(self) -> None:
        try:
            while not self.is_over:
                try:
                    await self._attempts.stream(self._stream_here, self._stream_there)
                except RingClosedError:
                    pass  # It is known by now where the queue went.
                except BrokerError as error:
                    if not may_pass(error):
                        self._stream_ended()
                        self._end(error)
                        return
                self._stream_ended()
                if self._is_cancelled:
                    # Its messages have gone back; there is nothing to open a stream for.
                    return
                if not self.is_over:
                    await self._attempts.pause()
        finally:
            self._stream_ended()
            over = BrokerError(
                Reason.OUTCOME_UNKNOWN, f"queue {self.queue!r}: no consumer any more"
            )
            self._end_answers(over)
            if not self._opened.done():
                self._end(over)
            self.is_over = True

    def _stream_ended(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._held.clear()
        if self.member is not None:
            self.member.ended()
        if not self.is_over:
            self._subscriber.interrupted()

    def _end(self, error: BrokerError) -> None:
        self._end_answers(error)
        if not self._opened.done():
            # The caller of `open` hears it there.
            self._opened.set_exception(error)
            # Unless they have gone.
            self._opened.exception()
        elif not self.is_over:
            self._subscriber.ended(error)

    def _end_answers(self, error: BrokerError) -> None:
        answers, self._answers = self._answers, deque()
        for _, answer in answers:
            if not answer.done():
                answer.set_exception(error)

    async def _stream_there(self, address: str) -> None:
        await self._host.remotes.consume(address, self)

    async def _stream_here(self) -> None:
        session = _HereSession(self)
        consuming = await self._host.open_here(self.queue, session, self.terms)
        pulls: set[asyncio.Task[None]] = set()
        try:
            self.stream_opened()
            consuming.begin()
            while session.reason is None:
                word = self.next()
                if word is not None:
                    # Acknowledgements are ops as well.
                    await consuming.wait_room()
                    if isinstance(word, PullWord):
                        # Other words don't wait for it.
                        task = asyncio.create_task(self._pull_here(consuming, word))
                        pulls.add(task)
                        task.add_done_callback(pulls.discard)
                    elif session.reason is None:
                        self._say_here(consuming, word)
                    continue
                if self.is_over:
                    break
                self.work.clear()
                await self.work.wait()
        finally:
            for task in [*pulls]:
                task.cancel()
            consuming.close(in_good_order=self.is_over)
        _check_reason(self.queue, session.reason, is_ended=session.is_ended)

    def _say_here(self, consuming: Consuming, word: Word) -> None:
        match word:
            case SettleWord(acked, rejected, requeued):
                consuming.settle(acked=acked, rejected=rejected, requeued=requeued)
            case PrefetchWord(messages, size_bytes):
                consuming.change_prefetch(messages, size_bytes)
            case ShareWord(share):
                consuming.change_share(share.messages, share.size_bytes)
                # Behind the messages that it made the queue deliver.
                self.share_answered()
            case CancelWord():
                consuming.cancel()

    async def _pull_here(self, consuming: Consuming, word: PullWord) -> None:
        got: Got | BrokerError
        try:
            got = await consuming.pull(word.messages_max, word.bytes_max)
        except BrokerError as error:
            got = error
        except RingClosedError:
            return
        # An ended mastership's messages are the next one's.
        if not consuming.has_moved and self._is_open:
            self.pulled(got)


def _check_reason(queue: str, reason: Reason | None, *, is_ended: bool) -> None:
    """Raises `BrokerError` if a stream that ended for this reason is the last one."""
    if reason is not None and (is_ended or reason is Reason.QUEUE_NOT_FOUND):
        raise BrokerError(
            reason, f"queue {queue!r} has ended this consumer: {reason.name}", queue=queue
        )
