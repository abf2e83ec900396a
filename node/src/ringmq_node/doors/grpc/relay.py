"""Passing calls on to the node that is master, byte for byte.

A relayed call carries `ringmq-relayed`, and is never relayed again: if the master has
moved meanwhile the client is told so.

NO_MASTER means that the call surely had no effect: clients repeat it, whatever it was. A call
that changes something is sent only on a connection that is there; if there is no answer to
it then, its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc.service import RELAYED_KEY, Context
from ringmq_node.model.reasons import STATUS_DETAILS_KEY, BrokerError

# The node's maximum for a unary call that comes without a deadline.
UNARY_DEADLINE_S = 30.0
# How long a connection that is coming about is waited for.
CONNECT_S = 2.0
METADATA = ((RELAYED_KEY, "1"),)
_UNREACHABLE = (
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)


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
    channels: Channels,
    address: str,
    method: str,
    request: bytes,
    context: Context,
    *,
    repeatable: bool = True,
) -> bytes:
    """The answer of the node at `address`; ends the call with that node's error if it fails.

    `repeatable`: it does no harm if it is made twice.
    """
    remaining: float | None = context.time_remaining()
    channel = channels.to(address)
    call: Any = channel.unary_unary(method)
    if not repeatable:
        await _wait_connected(channel)
    try:
        answer: bytes = await call(
            request, timeout=min(remaining or UNARY_DEADLINE_S, 3600.0), metadata=METADATA
        )
        return answer
    except grpc.aio.AioRpcError as error:
        await _pass_on(context, error, repeatable=repeatable)
        raise AssertionError("abort does not return") from error


async def _wait_connected(channel: grpc.aio.Channel) -> None:
    """Raises NO_MASTER if the other end can't be reached."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            state = channel.get_state(try_to_connect=True)
            while state not in _UNREACHABLE:
                if state is grpc.ChannelConnectivity.READY:
                    return
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    raise _no_answer()


def _no_answer() -> BrokerError:
    return BrokerError(common.REASON_NO_MASTER, "the node of the master does not answer")


async def _pass_on(
    context: Context, error: grpc.aio.AioRpcError, *, repeatable: bool = True
) -> None:
    details = [
        (key, value)
        for key, value in (error.trailing_metadata() or ())
        if key == STATUS_DETAILS_KEY
    ]
    if not details and error.code() is grpc.StatusCode.UNAVAILABLE:
        if repeatable:
            raise _no_answer()
        raise BrokerError(
            common.REASON_OUTCOME_UNKNOWN,
            "the node of the master does not answer any more: it may have been done",
        )
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
