"""Calls as a stranger would make them: raw bytes and single messages, no client library."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from ringmq.v1 import broker_pb2 as broker
from ringmq_wire import Metadata

REPLY_S_MAX = 10.0
DETAILS_KEY = "grpc-status-details-bin"


class Refusal(Exception):
    """A call that ended with an error: the gRPC code and the parts of its ErrorInfo."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(error.details())
        self.code = error.code()
        self.reason = ""
        self.domain = ""
        self.metadata: dict[str, str] = {}
        for key, value in error.trailing_metadata() or ():
            if key == DETAILS_KEY:
                for detail in status_pb2.Status.FromString(value).details:
                    info = error_details_pb2.ErrorInfo()
                    if detail.Unpack(info):
                        self.reason, self.domain = info.reason, info.domain
                        self.metadata = dict(info.metadata)


async def call(
    address: str, method: str, request: Message | bytes, metadata: Metadata = ()
) -> bytes:
    """A unary call; `method` as in `Broker/GetQueue`. Raises `Refusal`."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    async with grpc.aio.insecure_channel(address) as channel:
        unary: Any = channel.unary_unary(f"/ringmq.v1.{method}")
        try:
            answer: bytes = await unary(data, timeout=REPLY_S_MAX, metadata=metadata)
            return answer
        except grpc.aio.AioRpcError as error:
            raise Refusal(error) from error


class RawStream:
    """`async with RawStream(address, "Publish") as stream`: bytes or messages, one by one."""

    def __init__(self, address: str, method: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            address, options=[("grpc.max_send_message_length", -1)]
        )
        self._call: Any = self._channel.stream_stream(f"/ringmq.v1.Broker/{method}")()
        self._kind: Any = broker.PublishResponse if method == "Publish" else broker.ConsumeResponse

    async def __aenter__(self) -> RawStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.cancel()
        await self._channel.close()

    async def send(self, request: Message | bytes) -> None:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            await self._call.write(data)
        except grpc.aio.AioRpcError as error:
            raise Refusal(error) from error

    async def receive(self) -> Any:
        """The next response that is not a heartbeat, None at the end. Raises `Refusal`."""
        while True:
            try:
                async with asyncio.timeout(REPLY_S_MAX):
                    data = await self._call.read()
                    if data is grpc.aio.EOF:
                        code = await self._call.code()
                        if code is grpc.StatusCode.OK:
                            return None
                        raise Refusal(
                            grpc.aio.AioRpcError(
                                code,
                                await self._call.initial_metadata(),
                                await self._call.trailing_metadata(),
                                await self._call.details(),
                            )
                        )
            except grpc.aio.AioRpcError as error:
                raise Refusal(error) from error
            response = self._kind.FromString(data)
            if not response.HasField("heartbeat"):
                return response

    async def sent(self, *requests: Message | bytes) -> None:
        """Sends them all, and reads until the node ends the stream. Raises `Refusal`."""
        for request in requests:
            await self.send(request)
        while await self.receive() is not None:
            continue

    # --- publishing ---

    async def open_publisher(self, queue: str, producer_id: bytes) -> broker.PublishOpened:
        opening = broker.PublishOpen(queue=queue, producer_id=producer_id)
        await self.send(broker.PublishRequest(open=opening))
        opened: broker.PublishOpened = (await self.receive()).opened
        return opened

    async def send_batch(self, first_sequence: int, bodies: list[bytes]) -> None:
        batch = broker.PublishBatch(first_sequence=first_sequence, bodies=bodies)
        await self.send(broker.PublishRequest(batch=batch))

    async def confirmed_up_to(self, sequence: int) -> None:
        """Until everything up to `sequence` has been confirmed on this stream."""
        while True:
            response = await self.receive()
            assert response is not None, "the stream ended"
            if response.WhichOneof("response") in ("blocked", "unblocked"):
                continue
            assert response.HasField("confirmed"), response
            if any(each.last >= sequence for each in response.confirmed.sequences):
                return

    # --- consuming ---

    async def open_consumer(self, queue: str, prefetch: int = 0) -> broker.ConsumeOpened:
        opening = broker.ConsumeOpen(queue=queue, prefetch_messages=prefetch)
        await self.send(broker.ConsumeRequest(open=opening))
        opened: broker.ConsumeOpened = (await self.receive()).opened
        return opened
