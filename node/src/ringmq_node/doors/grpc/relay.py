"""Passing a client's stream on to the master's node, byte for byte.

The node in the middle neither parses nor checks the messages: the master's node does. It only adds
the mark `ringmq-relayed`, which keeps the master's node from relaying the stream once more, and the
client's address, by which operators know its consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.service import RELAYED_METADATA, RELAYED_PEER_KEY, Context
from ringmq_node.doors.grpc.status import from_call
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import CallStream, RpcError

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
    returned: the one to be talked to isn't at `address` any more. If nothing was heard from there
    yet, nothing is under way, and the stream ends at once.

    Raises `BrokerError` if the other side ends it with an error. A stream is repeatable: its
    messages carry sequences or positions, and the client takes it up again at the new master.
    """
    pump = _Pump(channels, address, method, context)
    if moved is None:
        await pump.run(first)
        return
    pumping = asyncio.create_task(pump.run(first), name="relay")
    watching = asyncio.create_task(moved, name="relay's master")
    try:
        await asyncio.wait({pumping, watching}, return_when=asyncio.FIRST_COMPLETED)
        if pump.has_heard:
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
        # The error has this frame, and its task the error.
        del pumping, watching, task


class _Pump:
    """One call to the node at `address`, and the client's stream."""

    def __init__(self, channels: PeerChannels, address: str, method: str, context: Context) -> None:
        self._channels = channels
        self._address = address
        self._method = method
        self._context = context
        #: Whether that node has answered anything.
        self.has_heard = False

    async def run(self, first: bytes) -> None:
        """Raises `BrokerError`."""
        try:
            channel = self._channels.to(self._address)
            peer = (RELAYED_PEER_KEY, self._context.call.peer)
            call = await channel.stream(self._method, metadata=(*RELAYED_METADATA, peer))
        except RpcError as error:
            raise from_call(error, repeatable=True) from error
        upward = asyncio.create_task(self._up(call, first), name="relay up")
        try:
            while batch := await call.read_batch():
                self.has_heard = True
                await self._context.write_batch(batch)
        except RpcError as error:
            raise from_call(error, repeatable=True) from error
        finally:
            upward.cancel()
            call.cancel()
            await asyncio.gather(upward, return_exceptions=True)

    async def _up(self, call: CallStream, first: bytes) -> None:
        await call.write(first)
        while batch := await self._context.read_batch():
            await call.write_batch(batch)
        call.half_close()
