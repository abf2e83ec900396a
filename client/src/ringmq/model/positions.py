"""The answers to readers by position, as plain values.

Ranges have a `first`, which is included, and an `end`, which is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ringmq.calls.arguments import check_fields
from ringmq.model.messages import Batch, Part
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import reader_pb2 as wire


class BrowseSource(Enum):
    """Which replica answers a browse."""

    MASTER = "master"
    #: A synchronised mirror: it spares the master.
    MIRROR = "mirror"
    #: The node that is asked, if it has a synchronised replica; else the master.
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Numbering:
    """The meaning of positions. They stand for the same messages as long as this is the same."""

    queue_id: str
    epoch: int

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_wire(cls, numbering: wire.Numbering) -> Numbering:
        return cls(numbering.queue_id, numbering.epoch)

    def to_wire(self) -> wire.Numbering:
        return wire.Numbering(queue_id=self.queue_id, epoch=self.epoch)


@dataclass(frozen=True, slots=True)
class QueueLease:
    """One reader's right to read and acknowledge the queue. Times in milliseconds; `until_ms` since
    1970, by the clock of the queue's master."""

    name: str
    holder: str
    instance: bytes
    token: int
    ttl_ms: int
    until_ms: int

    @classmethod
    def from_wire(cls, lease: common.Lease) -> QueueLease:
        return cls(
            lease.name, lease.holder, lease.instance, lease.token, lease.ttl_ms, lease.until_ms
        )


@dataclass(frozen=True, slots=True)
class PositionStat:
    """A queue's positions and counts. `first` is the first live position; all below `end` can be
    read."""

    numbering: Numbering
    first: int
    end: int
    next_position: int
    #: Below these, a reader has acknowledged, and a purge has removed messages.
    acked_end: int
    purged_end: int
    messages: int
    bytes: int
    messages_ready: int
    messages_unacknowledged: int
    messages_damaged: int
    leases: tuple[QueueLease, ...]
    node: str
    time_ms: int

    @classmethod
    def from_wire(cls, stat: wire.QueueStatResponse) -> PositionStat:
        return cls(
            numbering=Numbering.from_wire(stat.numbering),
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
            leases=tuple(map(QueueLease.from_wire, stat.leases)),
            node=stat.node,
            time_ms=stat.time_ms,
        )


@dataclass(frozen=True, slots=True)
class CountedRange:
    """A range that ends before `end`, and the messages and bytes of bodies in it."""

    end: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AcknowledgedBelow:
    """`messages` were removed by the call; all below `acked_end` are acknowledged."""

    messages: int
    acked_end: int


@dataclass(frozen=True, slots=True)
class BrowsedBatch:
    """All messages of `first` to before `end`; positions that it lacks are holes.

    `body_sizes`: of the whole bodies, which `messages` may have cut short. `persistent`: as many.
    `damaged`: live messages whose bodies every replica has lost, as (first, last), both included.
    """

    first: int
    end: int
    messages: Batch
    body_sizes: list[int]
    persistent: list[bool]
    damaged: tuple[tuple[int, int], ...]

    @classmethod
    def from_wire(cls, piece: wire.BrowseResponse, queue: str) -> BrowsedBatch:
        parts: list[Part] = []
        sizes: list[int] = []
        persistent: list[bool] = []
        for run in piece.runs:
            bodies = [*run.bodies] or [b""] * run.count
            properties = [common.Properties.FromString(data) for data in run.properties]
            part = Part(run.first_position, bodies, properties, run.redelivered, queue=queue)
            parts.append(part)
            sizes += run.body_sizes or map(len, bodies)
            persistent += [not run.transient] * run.count
        return cls(
            piece.first,
            piece.end,
            Batch(parts),
            sizes,
            persistent,
            tuple((pair.first, pair.last) for pair in piece.damaged),
        )


@dataclass(frozen=True, slots=True)
class BrowsedRows:
    """As `BrowsedBatch`. `rows`: a `pyarrow.RecordBatch`; None without messages."""

    first: int
    end: int
    rows: Any
    damaged: tuple[tuple[int, int], ...]
