"""Ends connections at once, whether or not their peers read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from ringmq_wire.transport import WireProtocol

# From closing to abandoning. Shorter than `CLOSE_TIMEOUT_S`, as somebody waits for it: a link to a
# node that hangs is dialled again at once.
DROP_TIMEOUT_S = 0.1


async def drop(connections: Collection[WireProtocol], reason: str) -> None:
    """Ends these connections. Peers that don't read wait for nobody: their calls break off."""
    lost = [connection.lost for connection in connections]
    for connection in list(connections):
        connection.abort(reason)
    if lost:
        await asyncio.wait(lost, timeout=DROP_TIMEOUT_S)
        for connection in list(connections):
            connection.abandon()
        await asyncio.wait(lost)
