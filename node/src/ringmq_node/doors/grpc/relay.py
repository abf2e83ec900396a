"""Passing a client's stream on to the master's node, byte for byte.

The node in the middle neither parses nor checks the messages: the master's node does. It only adds
the mark `ringmq-relayed`, which keeps the master's node from relaying the stream once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.service import RELAYED_METADATA, Context
from ringmq_node.doors.grpc.status import from_call
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import RpcError

# How long the old master has to end a stream itself, once the queue has another one: only it can
# say what has become of the messages under way.
MOVED_GRACE_S = 1.0


async def relay_stream(
    channels: PeerChannels,
    address: str,
    method: str,
    first: bytes,
    context: Context,
    moved: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Pumps a stream in both directions until either side ends it, or a while after `moved` has
    returned: the one to be talked to isn't at `address` any more.

    Raises `BrokerError` if the other side ends it with an error. A stream is repeatable: its
    messages carry sequences or positions, and the client takes it up again at the new master.
    """
    if moved is None:
        await _pump(channels, address, method, first, context)
        return
    pumping = asyncio.create_task(_pump(channels, address, method, first, context), name="relay")
    watching = asyncio.create_task(moved, name="relay's master")
    try:
        await asyncio.wait({pumping, watching}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({pumping}, timeout=MOVED_GRACE_S)
        if not pumping.done():
            raise BrokerError(
                Reason.NO_MASTER,
                f"the stream's master at {address} is cut off, and another follows",
            )
        pumping.result()
    finally:
        for task in (pumping, watching):
            task.cancel()
        await asyncio.gather(pumping, watching, return_exceptions=True)


async def _pump(
    channels: PeerChannels, address: str, method: str, first: bytes, context: Context
) -> None:
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
