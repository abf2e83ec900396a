"""Publish streams to exchanges, which any node serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.ranges import Range
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.locating import NOWHERE, Location
from ringmq_node.broker.routing.batch import RoutedBatch
from ringmq_node.broker.routing.core import Answer, AnswerConfirmed, AnswerRefused, AnswerReturned
from ringmq_node.broker.routing.session import RoutedSession
from ringmq_node.doors.grpc.batches import encoded_properties, parse_publish
from ringmq_node.doors.grpc.blocked import BlockTeller
from ringmq_node.doors.grpc.fields import fields_from_wire
from ringmq_node.doors.grpc.service import Context
from ringmq_node.doors.grpc.status import reason_to_wire
from ringmq_node.doors.grpc.streams import HEARTBEAT_BYTES, Stream, check_clients, rejection
from ringmq_node.doors.grpc.wire import ranges_to_wire
from ringmq_node.model.fields import Headers
from ringmq_node.model.reasons import BrokerError, bad_request
from ringmq_node.model.settings import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from ringmq_node.resources.connection_states import PeerStream

# Of the field `cc` of properties, which only the broker sets.
_CC_TAG = b"\xa2\x01"


class RoutedStream(Stream):
    """Batches in, confirms out. Made by `open`."""

    session: RoutedSession
    teller: BlockTeller
    # Messages that are neither confirmed nor rejected; and the end of waiting for them.
    _unanswered = 0
    _answered: asyncio.Future[None] | None = None
    _last_sequence = 0
    _producer_ended = False

    @classmethod
    async def open(
        cls, context: Context, door: Broker, opening: broker.PublishOpen, peer: PeerStream
    ) -> RoutedStream:
        """Raises `BrokerError` if the exchange can't be published to."""
        if opening.queue:
            raise bad_request("a stream is opened on a queue or an exchange", field="queue")
        stream = cls(context, door.settings.heartbeat_s)
        stream._door = door
        # At once: each of its batches would hear it.
        await door.topology.check_publish(opening.vhost, opening.exchange)
        stream._exchange = opening.exchange
        stream.session = await door.open_routed(
            opening.vhost, stream, producer_id=opening.producer_id
        )
        tell = partial(stream.writer.put, answer=False)
        stream.teller = BlockTeller(stream.session.block_reasons, tell, peer)
        opened = broker.PublishOpened(
            message_bytes_max=door.settings.message_bytes_max,
            properties_bytes_max=door.settings.properties_bytes_max,
            batch_bytes_max=BATCH_BYTES_MAX,
            batch_messages_max=BATCH_MESSAGES_MAX,
            heartbeat_ms=round(door.settings.heartbeat_s * 1000),
            node=door.node,
        )
        stream.writer.put(broker.PublishResponse(opened=opened))
        return stream

    _door: Broker
    # Of batches that name none.
    _exchange = ""

    async def wait_readable(self) -> None:
        if not self._door.budget.is_readable():
            with self.teller.held():
                await self._door.budget.wait_readable()

    async def wait_room(self, size_bytes: int) -> None:
        if not self.session.has_room and size_bytes > HEARTBEAT_BYTES:
            with self.teller.held():
                await self.session.wait_room()

    def received(self, data: bytes) -> None:
        request = parse_publish(data)
        match request.WhichOneof("request"):
            case "batch":
                self._batch(request.batch)
            case "end":
                self._producer_ended = True
            case "heartbeat":
                pass
            case _:
                raise bad_request("after Open come batches", field="request")

    def _batch(self, batch: broker.PublishBatch) -> None:
        count = len(batch.bodies)
        try:
            routed = self._routed(batch)
        except BrokerError as error:
            # Nothing of it is counted yet: a repeat, too, may end with the last sequence.
            self.writer.put(rejection(batch.first_sequence, max(count, 1), error))
            return
        self._unanswered += count
        try:
            self.session.publish(routed)
        except BrokerError as error:
            self._unanswered -= count
            self.writer.put(rejection(batch.first_sequence, max(count, 1), error))
            return
        self._last_sequence = batch.first_sequence + count - 1

    def _routed(self, batch: broker.PublishBatch) -> RoutedBatch:
        bodies = list(batch.bodies)
        properties = encoded_properties(batch.properties)
        if 0 < batch.first_sequence <= self._last_sequence:
            raise bad_request(
                f"the batch begins with {batch.first_sequence}, and this stream has had "
                f"{self._last_sequence}: sequences rise",
                field="first_sequence",
            )
        check_clients(batch)
        # The join is a look at all of them at once: few have these bytes.
        if _CC_TAG in b"".join(properties) and any(entry.cc for entry in batch.properties):
            raise bad_request("the broker says which keys there are", field="properties")

        def headers() -> Sequence[Headers]:
            return [fields_from_wire(entry.headers) for entry in batch.properties]

        return RoutedBatch(
            first_sequence=batch.first_sequence,
            bodies=bodies,
            properties=properties,
            headers=headers,
            exchange=batch.exchange if batch.HasField("exchange") else self._exchange,
            routing_keys=(batch.routing_key, *batch.cc),
            hidden_keys=tuple(batch.bcc),
            mandatory=batch.mandatory,
            transient=batch.transient,
            ttl_ms=batch.ttl_ms if batch.HasField("ttl_ms") else None,
            priority=batch.priority,
        )

    # --- answers (`SessionClient`) ---

    def answered(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            match answer:
                case AnswerConfirmed(sequences):
                    self.writer.put_ranges(sequences)
                    self._count(sequences)
                case AnswerReturned(sequences, reason):
                    returned = broker.Returned(
                        sequences=ranges_to_wire(sequences), reason=reason_to_wire(reason)
                    )
                    self.writer.put(broker.PublishResponse(returned=returned))
                case AnswerRefused((first, last), error):
                    self.writer.put(rejection(first, last - first + 1, error))
                    self._count([(first, last)])

    def held(self, *, is_held: bool) -> None:
        if is_held:
            self.teller.hold()
        else:
            self.teller.release()

    def _count(self, sequences: Sequence[Range]) -> None:
        for first, last in sequences:
            self._unanswered -= last - first + 1
        if self._unanswered <= 0 and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def wait_answered(self) -> None:
        if self._unanswered > 0:
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered

    @staticmethod
    def ranges_response(ranges: Sequence[Range]) -> broker.PublishResponse:
        return broker.PublishResponse(confirmed=broker.Confirmed(sequences=ranges_to_wire(ranges)))

    def successor(self) -> Location:
        # Any other node will do, and the client knows them.
        return NOWHERE

    def closed(self) -> None:
        self.teller.close()
        self.session.close(has_ended=self._producer_ended)

    def heartbeat(self) -> broker.PublishResponse:
        return broker.PublishResponse(heartbeat=broker.Heartbeat())

    def moved_response(self, moved: broker.Moved) -> broker.PublishResponse:
        return broker.PublishResponse(moved=moved)
