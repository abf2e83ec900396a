"""The pieces of a browse, in order and without a gap, over any number of failovers.

What the master answers is asked of the master itself: a node in between would take in and send each
body once more. It relays where the master can't be reached from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TypeAlias, cast

from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.retrying import is_retryable
from ringmq.calls.route import Route
from ringmq.calls.status import from_call
from ringmq.errors import ProtocolError
from ringmq.reading.split import SplitAnswer
from ringmq.v1 import reader_pb2 as wire
from ringmq_wire import Code, RpcError, RpcStatus

Piece: TypeAlias = wire.BrowseResponse | SplitAnswer
_Answers: TypeAlias = AsyncGenerator[Piece, None]
# A browse, its first piece, and the address of the node that answers.
_Begun: TypeAlias = tuple[_Answers, Piece, str]
# Nearly all of an answer is one field.
_SPLIT = (wire.BROWSE_ENCODING_ARROW, wire.BROWSE_ENCODING_JOINED)


async def browse_pieces(
    nodes: KnownNodes, request: wire.BrowseRequest, deadline_s: float
) -> AsyncIterator[Piece]:
    """The answers to `request`, which names its end; `SplitAnswer`s in the encodings that have a
    large field. A call that breaks off is made again from
    where it was. `deadline_s`: the longest wait for one piece."""
    at, end = request.first, request.end
    route = None
    if request.source == wire.BROWSE_SOURCE_MASTER:
        route = Route(nodes, request.queue, request.vhost)
    while at < end:
        rest = wire.BrowseRequest()
        rest.CopyFrom(request)
        rest.first = at

        async def attempt(
            node: NodeChannel, timeout_s: float, rest: wire.BrowseRequest = rest
        ) -> _Begun:
            return await _begin(node, rest, route, timeout_s)

        answers, piece, address = await nodes.call(attempt, deadline_s=deadline_s)
        if route is not None:
            route.worked()
        async with aclosing(answers):
            while True:
                if piece.first != at or piece.end <= at:
                    raise ProtocolError(
                        f"a piece of {piece.first} to {piece.end} where {at} comes next"
                    )
                at = piece.end
                yield piece
                if at >= end:
                    return
                try:
                    piece = await _next(answers, deadline_s)
                except RpcError as failure:
                    error = from_call(failure, address)
                    if not is_retryable(error):
                        raise error from failure
                    nodes.ask_last(address)
                    if route is not None:
                        route.failed(address)
                    break


async def _begin(
    node: NodeChannel, request: wire.BrowseRequest, route: Route | None, timeout_s: float
) -> _Begun:
    """At `node`, or at the master that it knows. Raises `RpcError`, and what `Route.pick` does."""
    end = time.monotonic() + timeout_s
    asked = node if route is None else await route.pick(timeout_s)
    browse = asked.browse_rows if request.encoding in _SPLIT else asked.reader.Browse
    answers = cast(_Answers, browse(request))
    try:
        return answers, await _next(answers, end - time.monotonic()), asked.address
    except BaseException as error:
        await answers.aclose()
        if route is not None and isinstance(error, RpcError):
            route.failed(asked.address)
        raise


async def _next(answers: _Answers, timeout_s: float) -> Piece:
    """Raises `RpcError`, also if nothing comes in time or the call ends before its range does."""
    try:
        async with asyncio.timeout(timeout_s):
            return await anext(answers)
    except TimeoutError:
        raise RpcError(RpcStatus(Code.DEADLINE_EXCEEDED, "no piece in time")) from None
    except StopAsyncIteration:
        raise RpcError(RpcStatus(Code.UNAVAILABLE, "the browse ended early")) from None
