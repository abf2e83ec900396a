"""The links to other nodes: one gRPC stream each way for all rings.

An `OutgoingLink` (outgoing.py) carries all frames from here to one node in its requests, and
gets credit and heartbeats back in the responses. It is dialled again whenever it breaks; each
time is a session with a number. Frames that waited in a session that broke are dropped: after
`LinkUp` the cores shake hands and send the missing ops again. Only Pong, ViewTold
and Gone wait for a link that is not open, as nobody sends such an answer a second time.

`IncomingLinks` (incoming.py) answers the calls of the other nodes. Of each node it listens to one
session, the newest of its newest life, and drops the frames that an older session still brings.
Otherwise an op of the old session could arrive behind the handshake of the new one, and be taken
twice.

Bounds. Bodies are sent while less than `window_bytes` are not yet credited; control and
heartbeats always go (only the newest of each kind and ring waits). The receiver gives credit once
its cores have taken the frames, a quarter of a window at a time, and with each heartbeat; none
while its application asks so (`Group.hold_credit`). A receiver holds one message, or one frame
that comes in parts, of at most `frame_bytes_max`.

A frame is written in the turn of the event loop after the one that produced it; frames that are
produced during a write go out with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import grpc.aio

from ringmq_gm.core.frames import Frame
from ringmq_gm.core.views import MemberId
from ringmq_gm.links import wire

METHOD = "/ringmq.v1.Ring/Link"
# How long the other end may take to end a stream that is closed in good order.
HANG_UP_S = 0.25

LinkCall = grpc.aio.StreamStreamCall[bytes, bytes]
LinkContext = grpc.aio.ServicerContext[bytes, bytes]


class LinkError(Exception):
    """A link can't be opened, or has broken. It is dialled again."""


class LinkOwner(Protocol):
    """The keeper of the links, as far as a link needs it."""

    @property
    def me(self) -> MemberId: ...

    @property
    def running(self) -> bool: ...

    def address_of(self, node: str) -> str | None:
        """The address of the node; None if it was never seen registered."""
        ...

    def known_incarnation(self, node: str) -> int:
        """The highest incarnation of the node that was seen; 0 if none was."""
        ...

    def saw(self, member_id: MemberId) -> None: ...

    def heard(self, node: str) -> None: ...

    def link_opened(self, node: str) -> None: ...

    def link_broke(self, node: str) -> None: ...

    def dial_failed(self, node: str) -> None: ...

    def received(self, sender: MemberId, frames: Iterable[Frame]) -> None: ...


# gRPC raises one of these when a stream has ended under a read or a write.
BROKEN = (
    grpc.aio.AioRpcError,
    grpc.aio.AbortError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
    wire.WireError,
)


async def first_reason(
    parts: list[Coroutine[Any, Any, str | None]],
    ended: asyncio.Future[str],
    *,
    on_cancel: Callable[[], None] | None = None,
) -> str:
    """Runs the two halves of a stream until one of them ends, or `ended` is set.

    Returns the reason, which may be an error of gRPC. Any other exception is a bug, and raised.
    If cancelled, `on_cancel` may bring the first part to its end within `HANG_UP_S`.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    ends: list[asyncio.Future[Any]] = [*tasks, ended]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
            await asyncio.wait(tasks[:1], timeout=HANG_UP_S)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    reasons = [ended.result()] if ended.done() else []
    for task in tasks:
        if task.cancelled():
            continue
        error = task.exception()
        if error is None:
            reasons.append(task.result() or "")
        elif isinstance(error, BROKEN):
            reasons.append(reason_of(error))
        else:
            raise error
    return next((reason for reason in reasons if reason), "cancelled")


def reason_of(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)
