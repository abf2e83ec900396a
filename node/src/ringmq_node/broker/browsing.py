"""Readers by position: where a call is served, its limits, and the clock for leases.

A browse reads one piece at a time, and the next one when the reader has taken it: it holds the
loop and memory for one piece, however large its range is. The number of browses of a node is
bounded, as a reader that doesn't read on keeps its piece.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from enum import Enum

from ringmq_gm import MemberId
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.locating import Locator
from ringmq_node.model.names import shown
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import check_queue_name
from ringmq_node.queue.leases import (
    INSTANCE_BYTES_MAX,
    LEASE_TEXT_BYTES_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
    ChangeLease,
    LeaseAction,
    QueueLease,
)
from ringmq_node.replica.positions import (
    AcknowledgedBelow,
    BrowsedPiece,
    CountedRange,
    Numbering,
    Positions,
    PositionStat,
)

# Browses under way on one node. Each holds a piece (1 MiB, or one message), and pieces that the
# connection has not sent.
BROWSES_MAX = 64
# Positions are below it (`storage.format.tables.NUMBER_MAX`).
POSITION_MAX = 1 << 62


class BrowseSource(Enum):
    """Which replica answers."""

    MASTER = "master"
    MIRROR = "mirror"
    # The one of the node that was asked; else the master.
    ANY = "any"


class Browsing:
    """Methods raise `BrokerError`, and `TimeoutError` when the caller's deadline passes."""

    def __init__(
        self,
        catalogue: QueueCatalogue,
        cluster: Cluster,
        locator: Locator,
        gate: NodeGate,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._catalogue = catalogue
        self._cluster = cluster
        self._locator = locator
        self._gate = gate
        # Milliseconds since 1970.
        self.now_ms = now_ms
        self._browses = 0

    async def route(
        self, queue: str, caller: Caller, *, source: BrowseSource = BrowseSource.MASTER
    ) -> str:
        """The address to which the call is to be relayed; empty: it is served here."""
        address = await self._route(queue, source, forwarded=caller.forwarded)
        # Here, as the node to which it is relayed doesn't know the caller.
        self._check_usable(queue, caller)
        return address

    async def _route(self, queue: str, source: BrowseSource, *, forwarded: bool) -> str:
        self._gate.check()
        if source is BrowseSource.MASTER:
            return await self._locator.route(queue, forwarded=forwarded)
        check_queue_name(queue)
        await self._catalogue.ensure_known(queue)
        view, me = self._locator.view_of(queue), self._cluster.me
        if me in view.synced and (source is BrowseSource.ANY or me != view.master):
            return ""
        if source is BrowseSource.ANY:
            return await self._locator.route(queue, forwarded=forwarded)
        if forwarded:
            raise BrokerError(
                Reason.NOT_MASTER,
                f"queue {shown(queue)!r}: {me} is no synchronised mirror of it",
                queue=shown(queue),
            )
        return self._cluster.address_of(self._some_mirror(queue, view.synced, view.master))

    def _some_mirror(self, queue: str, synced: tuple[MemberId, ...], master: MemberId) -> MemberId:
        up = [each for each in synced if each != master and self._cluster.is_alive(each)]
        if not up:
            raise BrokerError(
                Reason.NOT_SYNCHRONISED,
                f"queue {shown(queue)!r} has no synchronised mirror that is up: read from its "
                "master, or from any replica",
                queue=shown(queue),
            )
        # Readers of a range in parallel are spread over the mirrors.
        return random.choice(up)

    # --- reading ---

    async def stat(self, queue: str, caller: Caller) -> PositionStat:
        """On the master's node only, as everything here but `browse` (see `route`)."""
        async with asyncio.timeout(caller.deadline_s):
            return (await self._at_master(queue, caller)).stat()

    async def range_end(
        self,
        queue: str,
        caller: Caller,
        numbering: Numbering | None,
        first: int,
        *,
        messages_max: int,
        bytes_max: int,
    ) -> CountedRange:
        """Where a range from `first` ends; a limit of 0 is none."""
        _check_position(first, "first")
        async with asyncio.timeout(caller.deadline_s):
            positions = await self._at_master(queue, caller)
            return await positions.range_end(
                numbering, first, messages_max=messages_max, bytes_max=bytes_max
            )

    async def browse(
        self,
        queue: str,
        caller: Caller,
        numbering: Numbering | None,
        first: int,
        end: int | None,
    ) -> AsyncIterator[BrowsedPiece]:
        """The messages of `first` to before `end`, or as far as they are known to be safe here."""
        self._check_usable(queue, caller)
        _check_position(first, "first")
        if end is not None:
            _check_position(end, "end")
            if end < first:
                raise bad_request(f"the range from {first} has the end {end}", field="end")
        if self._browses >= BROWSES_MAX:
            raise BrokerError(
                Reason.BUSY,
                f"node {self._cluster.me.node} has {BROWSES_MAX} browses under way, the most that "
                "it takes",
                limit="browses",
            )
        self._browses += 1
        try:
            async for piece in self._pieces(queue, numbering, first, end):
                yield piece
        finally:
            self._browses -= 1

    async def _pieces(
        self, queue: str, numbering: Numbering | None, first: int, end: int | None
    ) -> AsyncIterator[BrowsedPiece]:
        replica = self._locator.replica_of(queue)
        if self._locator.view_of(queue).master == self._cluster.me:
            # A master that is just taking over is waited for.
            await self._locator.serving(queue)
        positions = Positions(replica)
        if end is None:
            await positions.check(numbering, first, first)
            end = max(first, replica.safe_end)
        while True:
            piece = await positions.read_piece(numbering, first, end)
            yield piece
            first = piece.end
            if first >= end:
                return
            self._gate.check()
            # The queue may have been deleted, or this replica replaced, since the piece before.
            if self._locator.replica_of(queue) is not replica:
                raise BrokerError(
                    Reason.NOT_MASTER,
                    f"queue {shown(queue)!r}: its replica here was replaced",
                    queue=shown(queue),
                )
            # However fast the reader is, the loop's other work has a turn between the pieces.
            await asyncio.sleep(0)

    # --- at the master ---

    async def acknowledge_below(
        self,
        queue: str,
        caller: Caller,
        numbering: Numbering | None,
        end: int,
        *,
        lease: str,
        token: int,
    ) -> AcknowledgedBelow:
        """Removes the ready messages before `end`; returns when that is safe."""
        _check_position(end, "end")
        async with asyncio.timeout(caller.deadline_s):
            positions = await self._at_master(queue, caller)
            return await positions.acknowledge_below(
                numbering, end, lease=lease, token=token, now_ms=self.now_ms()
            )

    async def acquire_lease(
        self,
        queue: str,
        caller: Caller,
        numbering: Numbering | None,
        *,
        lease: str,
        holder: str,
        instance: bytes,
        ttl_ms: int,
    ) -> QueueLease:
        _check_text(lease, "lease")
        _check_text(holder, "holder")
        _check_ttl(ttl_ms)
        if not 1 <= len(instance) <= INSTANCE_BYTES_MAX:
            raise bad_request(
                f"an instance has 1 to {INSTANCE_BYTES_MAX} bytes, not {len(instance)}",
                field="instance",
            )
        async with asyncio.timeout(caller.deadline_s):
            positions = await self._at_master(queue, caller)
            op = ChangeLease(
                LeaseAction.ACQUIRE, lease, self.now_ms(), holder, instance, ttl_ms=ttl_ms
            )
            return await positions.change_lease(op, numbering)

    async def renew_lease(
        self, queue: str, caller: Caller, *, lease: str, token: int, ttl_ms: int
    ) -> QueueLease:
        _check_text(lease, "lease")
        _check_ttl(ttl_ms)
        async with asyncio.timeout(caller.deadline_s):
            positions = await self._at_master(queue, caller)
            op = ChangeLease(LeaseAction.RENEW, lease, self.now_ms(), token=token, ttl_ms=ttl_ms)
            return await positions.change_lease(op)

    async def release_lease(self, queue: str, caller: Caller, *, lease: str, token: int) -> None:
        """Does nothing if somebody else has it."""
        _check_text(lease, "lease")
        async with asyncio.timeout(caller.deadline_s):
            positions = await self._at_master(queue, caller)
            op = ChangeLease(LeaseAction.RELEASE, lease, self.now_ms(), token=token)
            await positions.release_lease(op)

    async def _at_master(self, queue: str, caller: Caller) -> Positions:
        await self._locator.serving(queue)
        self._check_usable(queue, caller)
        return Positions(self._locator.replica_of(queue))

    def _check_usable(self, queue: str, caller: Caller) -> None:
        """Raises `BrokerError` if the queue, which is known, is another connection's."""
        caller.check_may_use(self._catalogue.dependent.get(queue))


def _check_position(position: int, field: str) -> None:
    if position >= POSITION_MAX:
        raise bad_request(f"{position} is beyond any position", field=field)


def _check_text(text: str, field: str) -> None:
    size = len(text.encode())
    if not 1 <= size <= LEASE_TEXT_BYTES_MAX or not text.isprintable():
        raise bad_request(
            f"a {field} has 1 to {LEASE_TEXT_BYTES_MAX} printable bytes; this one has {size}",
            field=field,
        )


def _check_ttl(ttl_ms: int) -> None:
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise bad_request(
            f"a lease lives for {TTL_MS_MIN} to {TTL_MS_MAX} ms, not {ttl_ms}", field="ttl_ms"
        )
