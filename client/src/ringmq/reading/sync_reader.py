"""`Reader` without asyncio: the same names, arguments, results and errors; each call waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from types import TracebackType
from typing import TypeVar, cast

from ringmq.calls.arguments import checked
from ringmq.calls.loop_thread import OnLoop, run_on_loop
from ringmq.model.positions import (
    AcknowledgedBelow,
    BrowsedBatch,
    BrowsedRows,
    BrowseSource,
    CountedRange,
    Numbering,
    PositionStat,
)
from ringmq.reading.lease import HeldLease
from ringmq.reading.read_ahead import read_ahead
from ringmq.reading.reader import LEASE_TTL_S, Reader

T = TypeVar("T")


class SyncReader(OnLoop[Reader]):
    @property
    def queue(self) -> str:
        return self.calls.queue

    @property
    def numbering(self) -> Numbering | None:
        return self.calls.numbering

    def stat(self, *, deadline_s: float | None = None) -> PositionStat:
        return run_on_loop(self.calls.stat(deadline_s=deadline_s))

    def range_end(
        self,
        first: int,
        *,
        messages_max: int = 0,
        bytes_max: int = 0,
        deadline_s: float | None = None,
    ) -> CountedRange:
        return run_on_loop(
            self.calls.range_end(
                first, messages_max=messages_max, bytes_max=bytes_max, deadline_s=deadline_s
            )
        )

    def browse(
        self,
        first: int,
        end: int | None = None,
        *,
        source: BrowseSource = BrowseSource.MASTER,
        body_bytes_max: int | None = None,
        deadline_s: float | None = None,
    ) -> Iterator[BrowsedBatch]:
        pieces = self.calls.browse(
            first, end, source=source, body_bytes_max=body_bytes_max, deadline_s=deadline_s
        )
        return read_ahead(_generator(pieces), _batch_bytes)

    def browse_arrow(
        self,
        first: int,
        end: int | None = None,
        *,
        source: BrowseSource = BrowseSource.MASTER,
        body_bytes_max: int | None = None,
        deadline_s: float | None = None,
        columns_by_node: bool = False,
    ) -> Iterator[BrowsedRows]:
        pieces = self.calls.browse_arrow(
            first,
            end,
            source=source,
            body_bytes_max=body_bytes_max,
            deadline_s=deadline_s,
            columns_by_node=columns_by_node,
        )
        return read_ahead(_generator(pieces), _rows_bytes)

    @checked
    def ack_up_to(
        self, end: int, *, lease: SyncLease | None = None, deadline_s: float | None = None
    ) -> AcknowledgedBelow:
        held = None if lease is None else lease.calls
        return run_on_loop(self.calls.ack_up_to(end, lease=held, deadline_s=deadline_s))

    def acquire_lease(
        self,
        name: str,
        *,
        ttl_s: float = LEASE_TTL_S,
        holder: str = "",
        instance: bytes | None = None,
        deadline_s: float | None = None,
    ) -> SyncLease:
        return SyncLease(
            run_on_loop(
                self.calls.acquire_lease(
                    name, ttl_s=ttl_s, holder=holder, instance=instance, deadline_s=deadline_s
                )
            )
        )


class SyncLease(OnLoop[HeldLease]):
    """Made by `SyncReader.acquire_lease`."""

    @property
    def token(self) -> int:
        return self.calls.token

    @property
    def expires_in_s(self) -> float:
        return self.calls.expires_in_s

    def renew(self, *, deadline_s: float | None = None) -> None:
        run_on_loop(self.calls.renew(deadline_s=deadline_s))

    def release(self, *, deadline_s: float | None = None) -> None:
        run_on_loop(self.calls.release(deadline_s=deadline_s))

    def __enter__(self) -> SyncLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_inherited:
            self.release()


def _generator(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """What `Reader` has is one."""
    return cast("AsyncGenerator[T, None]", items)


def _batch_bytes(batch: BrowsedBatch) -> int:
    return sum(batch.body_sizes)


def _rows_bytes(piece: BrowsedRows) -> int:
    return 0 if piece.rows is None else int(piece.rows.nbytes)
