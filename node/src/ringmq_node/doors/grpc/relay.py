"""Passing a client's stream on to the master's node, byte for byte.

The node in the middle neither parses nor checks the messages: the master's node does. It only adds
the mark `ringmq-relayed`, which keeps the master's node from relaying the stream once more.
"""

from __future__ import annotations

import asyncio

from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.service import RELAYED_METADATA, Context
from ringmq_node.doors.grpc.status import from_call
from ringmq_wire import RpcError


async def relay_stream(
    channels: PeerChannels, address: str, method: str, first: bytes, context: Context
) -> None:
    """Pumps a stream in both directions until either side ends it.

    Raises `BrokerError` if the other side ends it with an error. A stream is repeatable: its
    messages carry sequences or positions, and the client takes it up again at the new master.
    """
    try:
        call = await channels.to(address).stream(method, metadata=RELAYED_METADATA)
    except RpcError as error:
        raise from_call(error, repeatable=True) from error

    async def up() -> None:
        await call.write(first)
        while batch := await context.read_batch():
            await call.write_batch(batch)
        call.half_close()

    async def down() -> None:
        while batch := await call.read_batch():
            await context.write_batch(batch)

    upward = asyncio.create_task(up(), name="relay up")
    try:
        await down()
    except RpcError as error:
        raise from_call(error, repeatable=True) from error
    finally:
        upward.cancel()
        call.cancel()
        await asyncio.gather(upward, return_exceptions=True)
