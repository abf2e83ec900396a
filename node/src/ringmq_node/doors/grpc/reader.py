"""`ringmq.v1.Reader`: reading by positions, acknowledging, leases.

A call whose queue is served elsewhere is relayed byte for byte, as streams are. All of these calls
may be repeated: what a lost answer has done, its repeat finds done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from ringmq.v1 import reader_pb2 as wire
from ringmq_base.protobuf import bytes_head
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.browsing import BrowseSource
from ringmq_node.doors.grpc import arrow
from ringmq_node.doors.grpc.arrow_ipc import Part
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.relay import relay_stream
from ringmq_node.doors.grpc.service import (
    TAKING_S,
    Context,
    caller_of,
    parse_request,
    routes,
)
from ringmq_node.doors.grpc.wire import lease_to_wire, ranges_to_wire
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.queue.run import Run
from ringmq_node.replica.positions import PIECE_BYTES_MAX, BrowsedPiece, Numbering
from ringmq_wire import Accept, WireMessage, message_of

READER = "ringmq.v1.Reader"

_SOURCES = {
    wire.BROWSE_SOURCE_UNSPECIFIED: BrowseSource.MASTER,
    wire.BROWSE_SOURCE_MASTER: BrowseSource.MASTER,
    wire.BROWSE_SOURCE_MIRROR: BrowseSource.MIRROR,
    wire.BROWSE_SOURCE_ANY: BrowseSource.ANY,
}


class ReaderService:
    """Translates between `ringmq.v1.Reader` and `broker.browsing`."""

    def __init__(self, door: Broker, channels: PeerChannels) -> None:
        self._broker = door
        self._browsing = door.browsing
        self._channels = channels
        self._node = door.node

    def routes(self) -> dict[str, Accept]:
        return routes(
            READER,
            unary={},
            unary_stream={
                "QueueStat": self._stat,
                "RangeEnd": self._range_end,
                "Browse": self._browse,
                "AckUpTo": self._acknowledge,
                "AcquireLease": self._acquire,
                "RenewLease": self._renew,
                "ReleaseLease": self._release,
            },
        )

    async def _relayed(
        self,
        queue: str,
        method: str,
        data: bytes,
        context: Context,
        source: BrowseSource = BrowseSource.MASTER,
    ) -> bool:
        """Relays the call, to its end; False if it is served here."""
        address = await self._browsing.route(queue, caller_of(context), source=source)
        if address:
            await relay_stream(self._channels, address, f"/{READER}/{method}", data, context)
        return bool(address)

    # --- reading ---

    async def _stat(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.QueueStatRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        if await self._relayed(queue, "QueueStat", data, context):
            return
        stat = await self._browsing.stat(queue, caller_of(context))
        answer = wire.QueueStatResponse(
            numbering=_numbering_to_wire(stat.numbering),
            first=stat.first,
            end=stat.end,
            next_position=stat.next_position,
            acked_end=stat.acked_end,
            purged_end=stat.purged_end,
            messages=stat.messages,
            bytes=stat.bytes,
            messages_ready=stat.messages_ready,
            messages_unacknowledged=stat.messages_unacknowledged,
            messages_damaged=stat.messages_damaged,
            leases=map(lease_to_wire, stat.leases),
            node=self._node,
            time_ms=self._browsing.now_ms(),
        )
        await context.write(answer.SerializeToString())

    async def _range_end(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.RangeEndRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        if await self._relayed(queue, "RangeEnd", data, context):
            return
        counted = await self._browsing.range_end(
            queue,
            caller_of(context),
            _numbering_of(request),
            request.first,
            messages_max=request.messages_max,
            bytes_max=request.bytes_max,
        )
        answer = wire.RangeEndResponse(
            end=counted.end, messages=counted.messages, bytes=counted.bytes
        )
        await context.write(answer.SerializeToString())

    async def _browse(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.BrowseRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        source = _SOURCES.get(request.source)
        if source is None:
            raise bad_request(f"there is no source {request.source}", field="source")
        if request.encoding not in wire.BrowseEncoding.values():
            raise bad_request(f"there is no encoding {request.encoding}", field="encoding")
        if await self._relayed(queue, "Browse", data, context, source):
            return
        encode: Callable[[BrowsedPiece, int | None], WireMessage] = piece_to_wire
        if request.encoding == wire.BROWSE_ENCODING_ARROW:
            encode = partial(piece_as_arrow, await arrow.load(self._node))
        elif request.encoding == wire.BROWSE_ENCODING_JOINED:
            encode = piece_joined
        body_bytes_max = request.body_bytes_max if request.HasField("body_bytes_max") else None
        pieces = self._browsing.browse(
            queue,
            caller_of(context),
            _numbering_of(request),
            request.first,
            request.end if request.HasField("end") else None,
        )
        budget = self._broker.buffers.gets
        async with aclosing(cast(AsyncGenerator[BrowsedPiece, None], pieces)):
            while True:
                try:
                    # Of one piece, from its look at the messages to the reader's taking it.
                    async with asyncio.timeout(TAKING_S), budget.reserved(PIECE_BYTES_MAX):
                        piece = await anext(pieces, None)
                        if piece is None:
                            return
                        await context.write(encode(piece, body_bytes_max))
                except TimeoutError:
                    raise BrokerError(
                        Reason.TIMEOUT, f"the reader took nothing for {TAKING_S:.0f} s"
                    ) from None

    # --- at the master ---

    async def _acknowledge(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.AckUpToRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        if await self._relayed(queue, "AckUpTo", data, context):
            return
        done = await self._browsing.acknowledge_below(
            queue,
            caller_of(context),
            _numbering_of(request),
            request.end,
            lease=request.lease,
            token=request.token,
        )
        answer = wire.AckUpToResponse(messages=done.messages, acked_end=done.acked_end)
        await context.write(answer.SerializeToString())

    async def _acquire(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.AcquireLeaseRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        if await self._relayed(queue, "AcquireLease", data, context):
            return
        lease = await self._browsing.acquire_lease(
            queue,
            caller_of(context),
            _numbering_of(request),
            lease=request.lease,
            holder=request.holder,
            instance=request.instance,
            ttl_ms=request.ttl_ms,
        )
        answer = wire.LeaseResponse(lease=lease_to_wire(lease), time_ms=self._browsing.now_ms())
        await context.write(answer.SerializeToString())

    async def _renew(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.RenewLeaseRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        if await self._relayed(queue, "RenewLease", data, context):
            return
        lease = await self._browsing.renew_lease(
            queue,
            caller_of(context),
            lease=request.lease,
            token=request.token,
            ttl_ms=request.ttl_ms,
        )
        answer = wire.LeaseResponse(lease=lease_to_wire(lease), time_ms=self._browsing.now_ms())
        await context.write(answer.SerializeToString())

    async def _release(self, data: bytes, context: Context) -> None:
        request = parse_request(wire.ReleaseLeaseRequest, data)
        queue = await self._broker.topology.internal_name(request.vhost, request.queue)
        if await self._relayed(queue, "ReleaseLease", data, context):
            return
        await self._browsing.release_lease(
            queue, caller_of(context), lease=request.lease, token=request.token
        )
        await context.write(wire.ReleaseLeaseResponse().SerializeToString())


def _numbering_of(request: Any) -> Numbering | None:
    if not request.HasField("numbering"):
        return None
    return Numbering(request.numbering.queue_id, request.numbering.epoch)


def _numbering_to_wire(numbering: Numbering) -> wire.Numbering:
    return wire.Numbering(queue_id=numbering.queue_id, epoch=numbering.epoch)


def _answer(piece: BrowsedPiece, runs: Iterable[wire.BrowsedRun] = ()) -> wire.BrowseResponse:
    return wire.BrowseResponse(
        first=piece.first,
        end=piece.end,
        runs=runs,
        damaged=ranges_to_wire(piece.damaged),
        numbering=_numbering_to_wire(piece.numbering),
    )


def piece_to_wire(piece: BrowsedPiece, body_bytes_max: int | None) -> bytes:
    """A `BrowseResponse` of messages; so are the two below."""
    runs = []
    for run in piece.runs:
        bodies = [] if body_bytes_max == 0 else run.block.bodies()
        if body_bytes_max:
            bodies = [body[:body_bytes_max] for body in bodies]
        runs.append(_run_to_wire(run, bodies, sized=body_bytes_max is not None))
    return _answer(piece, runs).SerializeToString()


def piece_joined(piece: BrowsedPiece, body_bytes_max: int | None) -> WireMessage:
    """Nothing of it is done for each message by Python, but for bodies that are cut."""
    head = _answer(piece, [_run_to_wire(run, (), sized=False) for run in piece.runs])
    head.body_sizes = b"".join([run.block.encoded_body_sizes() for run in piece.runs])
    bodies: list[Part] = []
    if body_bytes_max is None:
        bodies += [run.block.joined_bodies() for run in piece.runs]
    elif body_bytes_max:
        bodies += [body[:body_bytes_max] for run in piece.runs for body in run.block.bodies()]
    return _with_large_field(head, wire.BrowseResponse.BODIES_FIELD_NUMBER, bodies)


def piece_as_arrow(pyarrow: Any, piece: BrowsedPiece, body_bytes_max: int | None) -> WireMessage:
    return _with_large_field(
        _answer(piece),
        wire.BrowseResponse.ARROW_FIELD_NUMBER,
        arrow.encode(pyarrow, piece, body_bytes_max),
    )


def _with_large_field(head: wire.BrowseResponse, number: int, parts: Sequence[Part]) -> WireMessage:
    """The message with one more field of bytes. By protobuf it would be copied twice; here, the
    bodies are sent from where the store has read them."""
    field = [memoryview(part).cast("B") for part in parts]
    size = sum(map(len, field))
    if not size:
        return head.SerializeToString()
    return message_of((head.SerializeToString(), bytes_head(number, size), *field))


def _run_to_wire(run: Run, bodies: Sequence[bytes], *, sized: bool) -> wire.BrowsedRun:
    block = run.block
    return wire.BrowsedRun(
        first_position=run.first_position,
        count=block.count,
        bodies=bodies,
        body_sizes=block.body_sizes() if sized else None,
        properties=block.properties(),
        redelivered=run.redelivered,
        transient=run.transient,
    )
