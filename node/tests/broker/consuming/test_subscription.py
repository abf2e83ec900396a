"""A subscription over streams that break, as a played master tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from loops import run
from waiting import until

from ringmq_base.ranges import Range
from ringmq_node.broker.consuming.channel import ConsumeChannel
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.broker.consuming.feed import ConsumeFeed, RemoteConsumers, Subscriber
from ringmq_node.broker.consuming.outgoing import (
    CancelWord,
    PrefetchWord,
    PullWord,
    SettleWord,
    ShareWord,
    Word,
)
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.broker.peers import Got
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run
from ringmq_node.replica.sessions import ConsumerSession

TERMS = ConsumerTerms(10, 1000)


def run_of(first: int, *bodies: bytes) -> Run:
    return Run(first, Block.of(list(bodies), []), transient=False, redelivered=False)


class PlayedStream:
    """One stream at the played master."""

    def __init__(self, address: str, feed: ConsumeFeed) -> None:
        self.address = address
        self.feed = feed
        self.words: list[Word] = []
        self.terms = feed.terms
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def breaks(self, reason: Reason | None = None) -> None:
        if reason is None:
            self.end.set_result(None)
        else:
            self.end.set_exception(BrokerError(reason, "played"))


class PlayedNodes:
    """A `SubscriptionHost` whose queues are all elsewhere, and the other nodes."""

    def __init__(self) -> None:
        self.streams: list[PlayedStream] = []
        # Of the streams that are opened next: a reason refuses one.
        self.refusals: list[Reason] = []
        self.failed: list[frozenset[str]] = []
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def remotes(self) -> RemoteConsumers:
        return self

    async def address_of(self, queue: str, failed: frozenset[str]) -> str:
        self.failed.append(failed)
        return f"node-{len(self.failed)}"

    def master_of(self, queue: str) -> tuple[str, int] | None:
        return None

    def newer_master(self, queue: str, node: str, epoch: int) -> str:
        return ""

    async def open_here(
        self, queue: str, session: ConsumerSession, terms: ConsumerTerms
    ) -> Consuming:
        raise AssertionError("no queue is here")

    async def consume(self, address: str, feed: ConsumeFeed) -> None:
        if self.refusals:
            raise BrokerError(self.refusals.pop(0), "played")
        stream = PlayedStream(address, feed)
        feed.stream_opened()
        self.streams.append(stream)
        while not stream.end.done():
            while (word := feed.next()) is not None:
                stream.words.append(word)
            if feed.is_over:
                return
            feed.work.clear()
            stream.end.add_done_callback(lambda _: feed.work.set())
            await feed.work.wait()
        stream.end.result()

    # --- `OpensSubscriptions` ---

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        return task

    def open(
        self, queue: str, subscriber: Subscriber, terms: ConsumerTerms, *, auto_ack: bool
    ) -> QueueSubscription:
        return QueueSubscription(queue, subscriber, terms, self, self.spawn, auto_ack=auto_ack)

    async def stream(self, number: int) -> PlayedStream:
        """The one that is opened as the `number`-th, from 1 on."""
        await until(lambda: len(self.streams) >= number)
        return self.streams[number - 1]


class PlayedSubscriber:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def opened(self, generation: int) -> None:
        self.heard.append(generation)

    def delivered(self, runs: Sequence[Run]) -> None:
        self.heard += [run.positions for run in runs]

    def settled(self, positions: Sequence[Range]) -> None:
        self.heard.append(("settled", *positions))

    def active_changed(self, *, active: bool) -> None:
        self.heard.append(("active", active))

    def interrupted(self) -> None:
        self.heard.append("interrupted")

    def ended(self, error: BrokerError) -> None:
        self.heard.append(error.reason)


Story = Callable[[PlayedNodes, PlayedSubscriber], Awaitable[None]]


def play(story: Story) -> None:
    async def told() -> None:
        nodes, subscriber = PlayedNodes(), PlayedSubscriber()
        async with asyncio.timeout(20):
            await story(nodes, subscriber)
        for task in nodes.tasks:
            task.cancel()
        for result in await asyncio.gather(*nodes.tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result

    run(told())


def test_a_stream_that_breaks_is_followed_by_one_whose_generation_settles() -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        one = nodes.open("q", subscriber, TERMS, auto_ack=False)
        await one.open(5)
        stream = await nodes.stream(1)
        stream.feed.delivered([run_of(1, b"a", b"b", b"c")])
        assert one.settle(1, acked=[(1, 1)], rejected=[(2, 2)])
        with pytest.raises(BrokerError) as caught:
            one.settle(1, acked=[(3, 3), (2, 2)])
        assert caught.value.reason is Reason.UNKNOWN_DELIVERY
        await until(lambda: stream.words == [SettleWord([(1, 1)], [(2, 2)], [])])
        stream.feed.settled([(1, 2)])
        one.change_prefetch(3, 0)
        # Noted, and not heard by the master any more.
        assert one.settle(1, acked=[(3, 3)])
        stream.breaks()
        stream = await nodes.stream(2)
        assert stream.terms.prefetch_messages == 3
        # Of an older one: dropped, also if the position is held again.
        stream.feed.delivered([run_of(3, b"c")])
        assert not one.settle(1, acked=[(3, 3)])
        assert one.settle(2, requeued=[(3, 3)])
        await until(lambda: stream.words == [SettleWord([], [], [(3, 3)])])
        assert subscriber.heard == [
            *(1, (1, 3), ("settled", (1, 2)), "interrupted"),
            *(2, (3, 3)),
        ]
        one.close()

    play(story)


@pytest.mark.parametrize("reason", [Reason.NO_MASTER, Reason.TIMEOUT, Reason.STORE_FAILED])
def test_a_node_that_refuses_is_passed_over_until_a_stream_is_open(reason: Reason) -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        nodes.refusals = [reason] * 2
        one = nodes.open("q", subscriber, TERMS, auto_ack=False)
        await one.open(10)
        assert nodes.failed == [frozenset(), {"node-1"}, {"node-1", "node-2"}]
        (await nodes.stream(1)).breaks()
        await nodes.stream(2)
        assert nodes.failed[3:] == [frozenset()]
        one.close()

    play(story)


def test_who_can_not_be_opened_hears_it_where_it_opens_and_who_is_ended_as_an_event() -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        nodes.refusals = [Reason.EXCLUSIVE_CONSUMER]
        one = nodes.open("q", subscriber, TERMS, auto_ack=False)
        with pytest.raises(BrokerError) as caught:
            await one.open(5)
        assert caught.value.reason is Reason.EXCLUSIVE_CONSUMER
        nodes.refusals = [Reason.NO_MASTER] * 1000
        late = nodes.open("q", subscriber, TERMS, auto_ack=False)
        with pytest.raises(TimeoutError):
            await late.open(0.1)
        assert subscriber.heard == []
        nodes.refusals = []
        other = nodes.open("q", subscriber, TERMS, auto_ack=False)
        await other.open(5)
        nodes.streams[-1].breaks(Reason.QUEUE_NOT_FOUND)
        await until(lambda: other.is_over)
        assert subscriber.heard == [1, "interrupted", Reason.QUEUE_NOT_FOUND]
        await asyncio.wait_for(asyncio.gather(*nodes.tasks), 5)

    play(story)


def test_pulls_without_an_answer_are_asked_again_on_the_next_stream() -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        one = nodes.open("q", subscriber, ConsumerTerms(pulls=True), auto_ack=False)
        await one.open(5)
        first, second, third = (asyncio.create_task(one.pull(n)) for n in (1, 2, 3))
        stream = await nodes.stream(1)
        await until(lambda: stream.words == [PullWord(1, 0)])
        second.cancel()
        stream.breaks()
        stream = await nodes.stream(2)
        await until(lambda: stream.words == [PullWord(1, 0)])
        first.cancel()
        await asyncio.wait([first, second])
        # It goes back, before the next one is asked.
        stream.feed.pulled(Got([run_of(1, b"a")], 1))
        await until(lambda: len(stream.words) == 3)
        assert stream.words[1:] == [SettleWord([], [], [(1, 1)]), PullWord(3, 0)]
        stream.feed.pulled(BrokerError(Reason.LIMIT_EXCEEDED, "played"))
        with pytest.raises(BrokerError):
            await third
        last = asyncio.create_task(one.pull(4))
        await until(lambda: len(stream.words) == 4)
        stream.feed.pulled(Got([run_of(2, b"b")], 0))
        assert (await last).messages_ready == 0
        assert one.settle(2, acked=[(2, 2)])
        one.close()

    play(story)


def test_what_acknowledges_by_itself_does_so_when_it_was_sent() -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        one = nodes.open("q", subscriber, TERMS, auto_ack=True)
        await one.open(5)
        stream = await nodes.stream(1)
        stream.feed.delivered([run_of(1, b"a", b"b")])
        await asyncio.sleep(0)
        assert stream.words == []
        one.sent(1, [(1, 2)])
        await until(lambda: stream.words == [SettleWord([(1, 2)], [], [])])
        one.sent(0, [(1, 2)])
        one.close()
        await until(lambda: stream.words[1:] == [CancelWord()])

    play(story)


def shares(stream: PlayedStream) -> list[int]:
    """What its master has heard, in messages."""
    return [word.share.messages for word in stream.words if isinstance(word, ShareWord)]


def test_a_channels_window_is_dealt_out_over_streams_that_break() -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        channel = ConsumeChannel(nodes)
        channel.change_window(4)
        one = channel.subscribe("p", subscriber, TERMS)
        two = channel.subscribe("q", subscriber, TERMS)
        alone = channel.subscribe("r", subscriber, TERMS, auto_ack=True)
        for each in (one, two, alone):
            await each.open(5)
        p, q, r = nodes.streams
        assert (p.terms.shares_window, r.terms.shares_window) == (True, False)
        assert len({p.terms.identity, q.terms.identity, b""}) == 3
        await until(lambda: shares(p) == [4])
        p.feed.share_answered()
        p.feed.delivered([run_of(1, b"a", b"b")])
        assert channel.unsettled == (2, 2)
        # Who has no message there gives up its part, and the other gets it with the answer.
        q.feed.share_short(short=True, needs_bytes=1)
        await until(lambda: shares(p) == [4, 0])
        assert shares(q) == []
        p.feed.share_answered()
        await until(lambda: shares(q) == [2])
        q.feed.share_answered()
        # What is settled makes room for the other.
        assert one.settle(1, acked=[(1, 1)])
        await until(lambda: shares(q) == [2, 3])
        q.feed.share_answered()
        # A stream that breaks takes its share and its messages along.
        p.breaks()
        again = await nodes.stream(4)
        assert channel.unsettled == (0, 0)
        await until(lambda: shares(q) == [2, 3, 4])
        assert shares(again) == []
        channel.change_window(1)
        one.change_prefetch(7, 0)
        await until(lambda: PrefetchWord(7, 0) in again.words)
        channel.close()
        await asyncio.wait_for(asyncio.gather(*nodes.tasks), 5)

    play(story)


def test_a_window_that_can_not_be_is_refused() -> None:
    async def story(nodes: PlayedNodes, subscriber: PlayedSubscriber) -> None:
        channel = ConsumeChannel(nodes)
        for messages in (-1, 2**32):
            with pytest.raises(BrokerError) as caught:
                channel.change_window(messages)
            assert caught.value.reason is Reason.BAD_REQUEST

    play(story)
