"""Passing calls on to the node that is master, byte for byte.

A relayed call carries `ringmq-relayed`, and is never relayed again: if the master has
moved meanwhile the client is told so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from ringmq.v1 import common_pb2 as common
from ringmq_node.errors import STATUS_DETAILS_KEY, BrokerError
from ringmq_node.services.rpc import RELAYED_KEY, Context

# The node's maximum for a unary call that comes without a deadline.
UNARY_DEADLINE_S = 30.0
METADATA = ((RELAYED_KEY, "1"),)


class Channels:
    """One channel to each other node, opened at the first use."""

    def __init__(self, message_bytes_max: int) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._options = [
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.initial_reconnect_backoff_ms", 50),
            # This one is also how long a connection may take to come about. By default it is
            # 20 s: calls would wait for one begun while the network was cut, long after it healed.
            ("grpc.min_reconnect_backoff_ms", 2000),
            # And one that was there before the cut: TCP alone would give it up after minutes.
            ("grpc.keepalive_time_ms", 5000),
            ("grpc.keepalive_timeout_ms", 2000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def to(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


async def relay_unary(
    channels: Channels, address: str, method: str, request: bytes, context: Context
) -> bytes:
    """The answer of the node at `address`; ends the call with that node's error if it fails."""
    remaining: float | None = context.time_remaining()
    call: Any = channels.to(address).unary_unary(method)
    try:
        answer: bytes = await call(
            request, timeout=min(remaining or UNARY_DEADLINE_S, 3600.0), metadata=METADATA
        )
        return answer
    except grpc.aio.AioRpcError as error:
        await _pass_on(context, error)
        raise AssertionError("abort does not return") from error


async def _pass_on(context: Context, error: grpc.aio.AioRpcError) -> None:
    details = [
        (key, value)
        for key, value in (error.trailing_metadata() or ())
        if key == STATUS_DETAILS_KEY
    ]
    if not details and error.code() is grpc.StatusCode.UNAVAILABLE:
        raise BrokerError(common.REASON_NO_MASTER, "the node of the master does not answer")
    await context.abort(error.code(), error.details() or "", tuple(details))


async def relay_stream(
    channels: Channels, address: str, method: str, first: bytes, context: Context
) -> None:
    """Pumps a stream in both directions until either side ends it."""
    call: Any = channels.to(address).stream_stream(method)(metadata=METADATA)

    async def up() -> None:
        await call.write(first)
        while True:
            data: Any = await context.read()
            if data is grpc.aio.EOF:
                await call.done_writing()
                return
            await call.write(data)

    async def down() -> None:
        while True:
            data: Any = await call.read()
            if data is grpc.aio.EOF:
                return
            await context.write(data)

    upward = asyncio.create_task(up(), name="relay up")
    try:
        await down()
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise await _error_of(call)
    except grpc.aio.AioRpcError as error:
        await _pass_on(context, error)
    finally:
        upward.cancel()
        call.cancel()
        await asyncio.gather(upward, return_exceptions=True)


async def _error_of(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(),
        await call.initial_metadata(),
        await call.trailing_metadata(),
        await call.details(),
    )
