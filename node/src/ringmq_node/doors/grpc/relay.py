"""Passing a client's stream on to the master's node, byte for byte.

The node in the middle neither parses nor checks the messages: the master's node does. It only adds
the mark `ringmq-relayed`, which keeps the master's node from relaying the stream once more.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.service import RELAYED_METADATA, Context
from ringmq_node.doors.grpc.status import from_call


async def relay_stream(
    channels: PeerChannels, address: str, method: str, first: bytes, context: Context
) -> None:
    """Pumps a stream in both directions until either side ends it.

    Raises `BrokerError` if the other side ends it with an error. A stream is repeatable: its
    messages carry sequences or positions, and the client takes it up again at the new master.
    """
    call: Any = channels.to(address).stream_stream(method)(metadata=RELAYED_METADATA)

    async def up() -> None:
        await call.write(first)
        while True:
            data = await context.read()
            if data is None:
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
        raise from_call(error, repeatable=True) from error
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
