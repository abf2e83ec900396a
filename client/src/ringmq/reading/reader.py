"""Reading a queue by positions, without consuming it.

    reader = client.reader("orders")
    async with await reader.acquire_lease("ingest", ttl_s=30) as lease:
        stat = await reader.stat()
        upto = await reader.range_end(stat.first, bytes_max=64 * 1024 * 1024)
        async for batch in reader.browse(stat.first, upto.end):
            store(batch.messages)
        await reader.ack_up_to(upto.end, lease=lease)

Ranges have a `first`, which is included, and an `end`, which is not. The same range gives the same
messages again, whichever replica answers and however often the master has changed, less those that
have been consumed, expired or dropped meanwhile. Positions that a reader can't have are an error
that names them, never a shorter answer: `PositionsGoneError` (acknowledged, purged), and
`PositionsMovedError` (the queue is another one). For the latter a reader keeps the `numbering` of
its first answer; one that comes back with noted positions passes the numbering noted with them.

Every call may be repeated, and is, at another node, as long as its deadline allows.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

from ringmq.calls.arguments import checked_calls
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.errors import BadRequestError, NotSupportedError, PositionsMovedError
from ringmq.model.positions import (
    AcknowledgedBelow,
    BrowsedBatch,
    BrowsedRows,
    BrowseSource,
    CountedRange,
    Numbering,
    PositionStat,
    QueueLease,
)
from ringmq.reading.columns import rows_of
from ringmq.reading.lease import HeldLease
from ringmq.reading.pieces import Piece, browse_pieces
from ringmq.reading.split import SplitAnswer
from ringmq.v1 import reader_pb2 as wire

LEASE_TTL_S = 30.0


@checked_calls
class Reader:
    """Made by `Client.reader`. It holds nothing at the cluster."""

    def __init__(
        self,
        nodes: KnownNodes,
        queue: str,
        *,
        vhost: str = "",
        numbering: Numbering | None = None,
        deadline_s: float,
    ) -> None:
        self._nodes = nodes
        self.queue = queue
        self.vhost = vhost
        self._numbering = numbering
        self._deadline_s = deadline_s

    @property
    def numbering(self) -> Numbering | None:
        """The meaning of this reader's positions; None before the first answer."""
        return self._numbering

    def _request(self, kind: Any, **fields: Any) -> Any:
        return request_of(kind, queue=self.queue, vhost=self.vhost, **fields)

    def _numbering_to_wire(self) -> wire.Numbering | None:
        return None if self._numbering is None else self._numbering.to_wire()

    def _deadline(self, deadline_s: float | None) -> float:
        return self._deadline_s if deadline_s is None else deadline_s

    # --- reading ---

    async def stat(self, *, deadline_s: float | None = None) -> PositionStat:
        """The queue's positions and counts now, at the master."""
        request = self._request(wire.QueueStatRequest)

        async def attempt(node: NodeChannel, timeout_s: float) -> PositionStat:
            return PositionStat.from_wire(await node.reader.QueueStat(request, timeout=timeout_s))

        stat = await self._nodes.call(attempt, deadline_s=self._deadline(deadline_s))
        self._learn(stat.numbering, stat.next_position)
        return stat

    def _learn(self, numbering: Numbering, next_position: int) -> None:
        if self._numbering is None:
            self._numbering = numbering
        elif self._numbering != numbering:
            raise PositionsMovedError(
                f"queue {self.queue!r}: its positions belong to other messages now: it was "
                f"{self._numbering}, and is {numbering}, with positions below {next_position}",
                reason="POSITIONS_MOVED",
                metadata={
                    "queue": self.queue,
                    "first": "0",
                    "last": str(max(next_position, 1) - 1),
                },
            )

    async def range_end(
        self,
        first: int,
        *,
        messages_max: int = 0,
        bytes_max: int = 0,
        deadline_s: float | None = None,
    ) -> CountedRange:
        """The largest range from `first` on with at most so many messages and bytes of bodies.

        0: any number. One message always passes, however large it is.
        """
        request = self._request(
            wire.RangeEndRequest,
            numbering=self._numbering_to_wire(),
            first=first,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> CountedRange:
            answer = await node.reader.RangeEnd(request, timeout=timeout_s)
            return CountedRange(answer.end, answer.messages, answer.bytes)

        return await self._nodes.call(attempt, deadline_s=self._deadline(deadline_s))

    async def browse(
        self,
        first: int,
        end: int | None = None,
        *,
        source: BrowseSource = BrowseSource.MASTER,
        body_bytes_max: int | None = None,
        deadline_s: float | None = None,
    ) -> AsyncIterator[BrowsedBatch]:
        """The messages of `first` to before `end` (None: all that can be read now), in batches that
        follow each other without a gap, up to `end`.

        `body_bytes_max`: so many bytes of each body; 0: none; None: all. `deadline_s`: for each
        batch.
        """
        messages = wire.BROWSE_ENCODING_MESSAGES
        async for piece in self._pieces(first, end, messages, source, body_bytes_max, deadline_s):
            assert isinstance(piece, wire.BrowseResponse)
            yield BrowsedBatch.from_wire(piece, self.queue)

    async def browse_arrow(
        self,
        first: int,
        end: int | None = None,
        *,
        source: BrowseSource = BrowseSource.MASTER,
        body_bytes_max: int | None = None,
        deadline_s: float | None = None,
        columns_by_node: bool = False,
    ) -> AsyncIterator[BrowsedRows]:
        """As `browse`, with the messages of each piece as a `pyarrow.RecordBatch`.

        The columns are position, body, body_size, redelivered, persistent and properties (encoded
        `ringmq.v1.Properties`, or null). They are made here, of messages as they are stored,
        which takes the least processor time of both sides; `columns_by_node`: by the node. Raises
        `NotSupportedError` where pyarrow isn't installed: here, or at the node that makes them.
        """
        try:
            import_module("pyarrow.compute")
            pyarrow = import_module("pyarrow")
        except ImportError as error:
            raise NotSupportedError(
                "browse_arrow needs pyarrow here: install 'ringmq[arrow]'",
                metadata={"missing": "pyarrow"},
            ) from error
        encoding = wire.BROWSE_ENCODING_ARROW if columns_by_node else wire.BROWSE_ENCODING_JOINED
        async for piece in self._pieces(first, end, encoding, source, body_bytes_max, deadline_s):
            assert isinstance(piece, SplitAnswer)
            rows = None
            if not columns_by_node:
                rows = rows_of(pyarrow, piece.head, piece.bodies, body_bytes_max)
            elif piece.arrow:
                # The field begins wherever the message's head has ended.
                aligned = pyarrow.ipc.Alignment.DataTypeSpecific
                options = pyarrow.ipc.IpcReadOptions(ensure_alignment=aligned)
                with pyarrow.ipc.open_stream(piece.arrow, options=options) as stream:
                    rows = stream.read_next_batch()
            damaged = tuple((pair.first, pair.last) for pair in piece.head.damaged)
            yield BrowsedRows(piece.first, piece.end, rows, damaged)

    async def _pieces(
        self,
        first: int,
        end: int | None,
        encoding: wire.BrowseEncoding.ValueType,
        source: BrowseSource,
        body_bytes_max: int | None,
        deadline_s: float | None,
    ) -> AsyncIterator[Piece]:
        if end is None:
            # Of the master: a mirror may not know of the newest yet, and would end before them.
            end = max(first, (await self.stat(deadline_s=deadline_s)).end)
        request = self._request(
            wire.BrowseRequest,
            numbering=self._numbering_to_wire(),
            first=first,
            end=end,
            source=wire.BrowseSource.Value(f"BROWSE_SOURCE_{source.name}"),
            encoding=encoding,
            body_bytes_max=body_bytes_max,
        )
        if end < first:
            raise BadRequestError(
                f"the range from {first} has the end {end}", metadata={"field": "end"}
            )
        async for piece in browse_pieces(self._nodes, request, self._deadline(deadline_s)):
            if self._numbering is None:
                self._learn(Numbering.from_wire(piece.numbering), 0)
                request.numbering.CopyFrom(piece.numbering)
            yield piece

    # --- acknowledging ---

    async def ack_up_to(
        self, end: int, *, lease: HeldLease | None = None, deadline_s: float | None = None
    ) -> AcknowledgedBelow:
        """Removes the ready messages before `end`; returns when no failover brings them back.

        Idempotent. Refused above the last confirmed message, where consumers have messages
        (`PositionsHeldError`), and without the `lease` that somebody has (`LeaseHeldError`), or
        with one that was lost (`LeaseLostError`).
        """
        request = self._request(
            wire.AckUpToRequest,
            numbering=self._numbering_to_wire(),
            end=end,
            lease="" if lease is None else lease.name,
            token=0 if lease is None else lease.token,
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> AcknowledgedBelow:
            answer = await node.reader.AckUpTo(request, timeout=timeout_s)
            return AcknowledgedBelow(answer.messages, answer.acked_end)

        return await self._nodes.call(attempt, deadline_s=self._deadline(deadline_s), changes=True)

    # --- leases ---

    async def acquire_lease(
        self,
        name: str,
        *,
        ttl_s: float = LEASE_TTL_S,
        holder: str = "",
        instance: bytes | None = None,
        deadline_s: float | None = None,
    ) -> HeldLease:
        """The lease of this name on the queue, if it is free or has expired; else at once
        `LeaseHeldError`. `holder`: for people; by default this host and process. `instance`: 1 to
        64 bytes; who has them has the same lease, with the same token. By default random ones."""
        request = self._request(
            wire.AcquireLeaseRequest,
            numbering=self._numbering_to_wire(),
            lease=name,
            holder=holder or f"{socket.gethostname()}:{os.getpid()}",
            instance=os.urandom(16) if instance is None else instance,
            ttl_ms=round(ttl_s * 1000),
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> tuple[QueueLease, float]:
            asked_at = time.monotonic()
            answer = await node.reader.AcquireLease(request, timeout=timeout_s)
            return QueueLease.from_wire(answer.lease), asked_at

        lease, asked_at = await self._nodes.call(
            attempt, deadline_s=self._deadline(deadline_s), changes=True
        )
        return HeldLease(lease, asked_at=asked_at, renew=self._renew, release=self._release)

    async def _renew(self, held: HeldLease, deadline_s: float | None) -> QueueLease:
        request = self._request(
            wire.RenewLeaseRequest, lease=held.name, token=held.token, ttl_ms=held.ttl_ms
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> QueueLease:
            answer = await node.reader.RenewLease(request, timeout=timeout_s)
            return QueueLease.from_wire(answer.lease)

        return await self._nodes.call(attempt, deadline_s=self._deadline(deadline_s), changes=True)

    async def _release(self, held: HeldLease, deadline_s: float | None) -> None:
        request = self._request(wire.ReleaseLeaseRequest, lease=held.name, token=held.token)

        async def attempt(node: NodeChannel, timeout_s: float) -> None:
            await node.reader.ReleaseLease(request, timeout=timeout_s)

        await self._nodes.call(attempt, deadline_s=self._deadline(deadline_s), changes=True)
