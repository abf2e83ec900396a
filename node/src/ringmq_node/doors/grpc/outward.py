"""This node as a client: streams to masters on other nodes, by the client's own shell.

A way of a publisher (`broker.routing.ways`) or a subscription (`broker.consuming`) decides what is
sent and when a stream is begun; here that becomes wire messages, and answers become its events.
Heartbeats, time-outs and the end of a stream are those of `ringmq.streams.conversation`. The
connections are those that the node has to its peers.
"""

from __future__ import annotations

from functools import partial

from ringmq.calls.node_channel import answers
from ringmq.errors import RingMQError
from ringmq.publishing.requests import batch_request
from ringmq.streams.conversation import Conversation
from ringmq.streams.speaker import Request, Response, Speaker
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.consuming.feed import ConsumeFeed
from ringmq_node.broker.consuming.outgoing import (
    CancelWord,
    PrefetchWord,
    PullWord,
    SettleWord,
    ShareWord,
    Word,
)
from ringmq_node.broker.peers import Got
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Feed
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.status import from_call, reason_from_wire
from ringmq_node.doors.grpc.wire import (
    block_reasons_from_wire,
    ranges_from_wire,
    ranges_to_wire,
    run_from_wire,
)
from ringmq_node.model.names import shown, split_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import RpcError, WireMessage

_PATH = "/ringmq.v1.Broker/Publish"
_CONSUME_PATH = "/ringmq.v1.Broker/Consume"


class OutwardSpeaker(Speaker[broker.PublishRequest, broker.PublishResponse]):
    """Of one stream to one queue."""

    path = _PATH
    response = broker.PublishResponse

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        # Why the node has refused a batch that may be sent again, on another stream.
        self.refusal: BrokerError | None = None
        self._is_moved = False
        # That the producer has ended.
        self.said_end = False

    def open_request(self) -> broker.PublishRequest:
        vhost, queue = split_name(self._feed.queue)
        opening = broker.PublishOpen(
            queue=queue, vhost=vhost, producer_id=self._feed.producer_id, with_gaps=True
        )
        return broker.PublishRequest(open=opening)

    def opened(self, response: broker.PublishResponse) -> int:
        kind = response.WhichOneof("response")
        if kind != "opened":
            raise RingMQError(f"the node answered a publisher's Open with {kind}")
        return response.opened.heartbeat_ms

    def received(self, response: broker.PublishResponse) -> bool:
        if response.HasField("confirmed"):
            sequences = response.confirmed.sequences
            self._feed.confirmed([(each.first, each.last) for each in sequences])
            return True
        if response.HasField("rejected"):
            rejected = response.rejected
            error = BrokerError(reason_from_wire(rejected.reason), rejected.message)
            if error.retryable:
                self.refusal = self.refusal or error
            else:
                self._feed.refused(rejected.sequences.first, rejected.sequences.last, error)
                return True
        elif response.HasField("blocked"):
            self._feed.held(block_reasons_from_wire(response.blocked.reasons))
        elif response.HasField("unblocked"):
            self._feed.held(())
        return False

    def next_request(self) -> WireMessage | None:
        # What came behind a batch that was refused would overtake it.
        if not self.finishing:
            batch = self._feed.next()
            return None if batch is None else _request_of(batch)
        if self._feed.ends_producer and not self.said_end:
            self.said_end = True
            return broker.PublishRequest(end=broker.PublishEnd()).SerializeToString()
        return None

    def heartbeat(self) -> broker.PublishRequest:
        return broker.PublishRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        self._is_moved = True

    @property
    def waiting(self) -> bool:
        return self._feed.has_sent

    @property
    def finishing(self) -> bool:
        return self._is_moved or self.refusal is not None or self._feed.is_over

    def ended(self, trouble: RingMQError | None) -> float:
        return 0.0

    def refused(self, error: RingMQError) -> None:
        pass


class OutwardConsumer(Speaker[broker.ConsumeRequest, broker.ConsumeResponse]):
    """Of one stream from one queue."""

    path = _CONSUME_PATH
    response = broker.ConsumeResponse

    def __init__(self, feed: ConsumeFeed) -> None:
        self._feed = feed
        # Why the node has ended this consumer.
        self.end_reason: Reason | None = None
        self._is_moved = False

    def open_request(self) -> broker.ConsumeRequest:
        vhost, queue = split_name(self._feed.queue)
        terms = self._feed.terms
        opening = broker.ConsumeOpen(
            queue=queue,
            vhost=vhost,
            prefetch_messages=terms.prefetch_messages,
            prefetch_bytes=terms.prefetch_bytes,
            priority=terms.priority,
            exclusive=terms.exclusive,
            consumer_id=terms.identity,
            shares_window=terms.shares_window,
            pulls=terms.pulls,
        )
        return broker.ConsumeRequest(open=opening)

    def opened(self, response: broker.ConsumeResponse) -> int:
        kind = response.WhichOneof("response")
        if kind == "cancelled":
            self.end_reason = reason_from_wire(response.cancelled.reason)
        if kind != "opened":
            raise RingMQError(f"the node answered a consumer's Open with {kind}")
        self._feed.stream_opened()
        return response.opened.heartbeat_ms

    def received(self, response: broker.ConsumeResponse) -> bool:
        feed = self._feed
        match response.WhichOneof("response"):
            case "deliveries" if not self._is_moved:
                feed.delivered([run_from_wire(each) for each in response.deliveries.deliveries])
            case "settled":
                feed.settled(ranges_from_wire(response.settled.positions))
            case "share":
                feed.share_answered()
            case "short":
                feed.share_short(short=response.short.short, needs_bytes=response.short.bytes)
            case "active":
                feed.active_changed(active=response.active.active)
            case "pulled" if not self._is_moved:
                feed.pulled(_got_of(response.pulled))
            case "cancelled" if response.cancelled.reason:
                self.end_reason = reason_from_wire(response.cancelled.reason)
                feed.work.set()
        return True

    def next_request(self) -> bytes | None:
        if self._is_moved or self.end_reason is not None:
            return None
        word = self._feed.next()
        return None if word is None else _request_of_word(word).SerializeToString()

    def heartbeat(self) -> broker.ConsumeRequest:
        return broker.ConsumeRequest(heartbeat=broker.Heartbeat())

    def moved(self) -> None:
        self._is_moved = True

    @property
    def waiting(self) -> bool:
        return self._feed.is_awaiting

    @property
    def finishing(self) -> bool:
        return self._is_moved or self.end_reason is not None or self._feed.is_over

    def ended(self, trouble: RingMQError | None) -> float:
        return 0.0

    def refused(self, error: RingMQError) -> None:
        pass


class OutwardStreams:
    """`RemoteStreams` and `RemoteConsumers` of the broker, over gRPC."""

    def __init__(self, channels: PeerChannels) -> None:
        self._channels = channels

    async def run(self, address: str, feed: Feed) -> None:
        """As `RemoteStreams` says."""
        speaker = OutwardSpeaker(feed)
        conversation = await self._converse(address, speaker, feed, "way to")
        if conversation.moved_reason == common.REASON_PRODUCER_FENCED:
            raise BrokerError(Reason.PRODUCER_FENCED, f"queue {shown(feed.queue)}: fenced")
        if speaker.refusal is not None:
            raise speaker.refusal
        if speaker.said_end and not conversation.moved:
            # The node has read it, as it has ended the stream in good order.
            feed.end_told()

    async def consume(self, address: str, feed: ConsumeFeed) -> None:
        """As `RemoteConsumers` says."""
        speaker = OutwardConsumer(feed)
        end_reason: Reason | None = None
        try:
            conversation = await self._converse(address, speaker, feed, "consumer of")
            if conversation.moved_reason == common.REASON_QUEUE_NOT_FOUND:
                end_reason = Reason.QUEUE_NOT_FOUND
        except BrokerError:
            if speaker.end_reason is None:
                raise
        end_reason = speaker.end_reason or end_reason
        if end_reason is not None:
            raise BrokerError(
                end_reason, f"queue {shown(feed.queue)} has ended this consumer: {end_reason.name}"
            )

    async def _converse(
        self,
        address: str,
        speaker: Speaker[Request, Response],
        feed: Feed | ConsumeFeed,
        what: str,
    ) -> Conversation[Request, Response]:
        """A stream to its end. Raises `BrokerError`."""
        # Now: while the stream begins, this node may hear of a newer master than that at `address`.
        sought = feed.master()
        wire = self._channels.to(address)
        try:
            call = await wire.stream(speaker.path)
        except RpcError as error:
            raise from_call(error, repeatable=True) from error

        async def newer_master(node: str, epoch: int) -> str:
            return feed.newer_master(node, epoch)

        conversation: Conversation[Request, Response] = Conversation(
            speaker,
            call,
            feed.work,
            peer=address,
            name=f"{what} {shown(feed.queue)}",
            newer_master=newer_master,
            answers=partial(answers, wire),
            sought=sought,
        )
        try:
            await conversation.run()
        except RingMQError as error:
            reason = Reason.__members__.get(error.reason, Reason.NO_MASTER)
            raise BrokerError(reason, error.message) from error
        return conversation


def _got_of(pulled: broker.Pulled) -> Got | BrokerError:
    if pulled.reason:
        return BrokerError(reason_from_wire(pulled.reason), pulled.message)
    return Got([run_from_wire(each) for each in pulled.deliveries], pulled.messages_ready)


def _request_of_word(word: Word) -> broker.ConsumeRequest:
    match word:
        case SettleWord(acked, rejected, requeued):
            settle = broker.Settle(
                ack=ranges_to_wire(acked),
                discard=ranges_to_wire(rejected),
                requeue=ranges_to_wire(requeued),
            )
            return broker.ConsumeRequest(settle=settle)
        case PrefetchWord(messages, size_bytes):
            prefetch = broker.ChangePrefetch(prefetch_messages=messages, prefetch_bytes=size_bytes)
            return broker.ConsumeRequest(prefetch=prefetch)
        case ShareWord(share):
            wire = broker.WindowShare(messages=share.messages, bytes=share.size_bytes)
            return broker.ConsumeRequest(share=wire)
        case PullWord(messages_max, bytes_max):
            pull = broker.Pull(messages_max=messages_max, bytes_max=bytes_max)
            return broker.ConsumeRequest(pull=pull)
        case CancelWord():
            return broker.ConsumeRequest(cancel=broker.ConsumeCancel())


def _request_of(batch: SubBatch) -> WireMessage:
    wire = broker.PublishBatch(
        first_sequence=batch.first,
        transient=batch.transient,
        ttl_ms=batch.ttl_ms,
        priority=batch.priority,
        message_id=batch.message_id,
    )
    # As they are: the publisher's node has looked at them.
    field = broker.PublishBatch.ENCODED_PROPERTIES_FIELD_NUMBER
    return batch_request(wire, batch.bodies, batch.properties, properties_field=field)
