"""This node as a publisher: streams to masters on other nodes, by the client's own shell.

`broker.routing.ways` decides what is sent and when a stream is begun; here batches become wire
messages and answers become its events. Heartbeats, time-outs and the end of a stream are those of
`ringmq.streams.conversation`. The connections are those that the node has to its peers.
"""

from __future__ import annotations

from ringmq.errors import RingMQError
from ringmq.streams.conversation import Conversation
from ringmq.streams.speaker import Speaker
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Feed
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.status import from_call, reason_from_wire
from ringmq_node.doors.grpc.wire import block_reasons_from_wire
from ringmq_node.model.names import shown, split_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import RpcError

_PATH = "/ringmq.v1.Broker/Publish"


class OutwardSpeaker(Speaker[broker.PublishRequest, broker.PublishResponse]):
    """Of one stream to one queue."""

    path = _PATH
    response = broker.PublishResponse

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        # Why the node has refused a batch that may be sent again, on another stream.
        self.refusal: BrokerError | None = None
        self._is_moved = False
        self._said_end = False

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

    def next_request(self) -> broker.PublishRequest | None:
        # What came behind a batch that was refused would overtake it.
        if not self.finishing:
            batch = self._feed.next()
            return None if batch is None else _request_of(batch)
        if self._feed.ends_producer and not self._said_end:
            self._said_end = True
            return broker.PublishRequest(end=broker.PublishEnd())
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


class OutwardStreams:
    """`broker.routing.ways.RemoteStreams` over gRPC."""

    def __init__(self, channels: PeerChannels) -> None:
        self._channels = channels

    async def run(self, address: str, feed: Feed) -> None:
        """As `RemoteStreams` says."""
        try:
            call = await self._channels.to(address).stream(_PATH)
        except RpcError as error:
            raise from_call(error, repeatable=True) from error

        async def newer_master(node: str, epoch: int) -> str:
            return feed.newer_master(node, epoch)

        speaker = OutwardSpeaker(feed)
        conversation = Conversation(
            speaker,
            call,
            feed.work,
            peer=address,
            name=f"way to {shown(feed.queue)}",
            newer_master=newer_master,
        )
        try:
            await conversation.run()
        except RingMQError as error:
            reason = Reason.__members__.get(error.reason, Reason.NO_MASTER)
            raise BrokerError(reason, error.message) from error
        if conversation.moved_reason == common.REASON_PRODUCER_FENCED:
            raise BrokerError(Reason.PRODUCER_FENCED, f"queue {shown(feed.queue)}: fenced")
        if speaker.refusal is not None:
            raise speaker.refusal


def _request_of(batch: SubBatch) -> broker.PublishRequest:
    wire = broker.PublishBatch(
        first_sequence=batch.first,
        bodies=batch.bodies,
        encoded_properties=batch.properties,
        transient=batch.transient,
        ttl_ms=batch.ttl_ms,
        priority=batch.priority,
        message_id=batch.message_id,
    )
    return broker.PublishRequest(batch=wire)
