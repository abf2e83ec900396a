"""From the options and the queues' positions now to offsets and ranges."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from pyspark.sql.datasource import InputPartition

import ringmq
from ringmq_pipeline.connecting import named_queues, reader_for
from ringmq_pipeline.offsets import (
    DataLoss,
    DataLossError,
    QueueBounds,
    QueueOffset,
    QueueRange,
    after_loss,
    loss_of,
    partitions,
)
from ringmq_pipeline.options import Offsets, SourceOptions, StartingOffsets

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The messages that one task reads. None: Spark wants a partition also where there is nothing
    to read."""

    def __init__(self, whole: QueueRange | None) -> None:
        super().__init__(whole)
        self.range = whole


class NoQueueError(LookupError):
    """A queue that the options name isn't there."""


def bounds_of(stat: ringmq.PositionStat) -> QueueBounds:
    return QueueBounds(
        queue_id=stat.numbering.queue_id,
        epoch=stat.numbering.epoch,
        first=stat.first,
        end=stat.end,
        acked_end=stat.acked_end,
        purged_end=stat.purged_end,
    )


def bounds_now(options: SourceOptions, known: Iterable[str] = ()) -> dict[str, QueueBounds | None]:
    """Of the queues that the options name and those that are `known`, by name; None: deleted.

    Raises `NoQueueError` for a queue that the options name and that was never known. Of a pattern
    there is none: what isn't there any more has gone since the queues were listed."""
    found: dict[str, QueueBounds | None] = {}
    for name in sorted(named_queues(options).union(known)):
        try:
            found[name] = bounds_of(reader_for(options, name).stat())
        except ringmq.QueueNotFoundError as error:
            if name in known:
                found[name] = None
            elif not options.queue_pattern:
                raise NoQueueError(f"there is no queue {name!r}: declare it first") from error
    return found


def check_offsets(options: SourceOptions, found: Collection[str]) -> None:
    """Raises `NoQueueError` for a position in a queue of the pattern that isn't `found`."""
    named = {"startingOffsets": options.starting_offsets, "endingOffsets": options.ending_offsets}
    for option, offsets in named.items():
        if isinstance(offsets, Mapping) and (strange := offsets.keys() - {*found}):
            raise NoQueueError(f"there is no queue {min(strange)!r}, which {option} names")


def position_in(bounds: QueueBounds, queue: str, offsets: Offsets) -> int:
    """Where `offsets` says that a range of the queue begins, or ends."""
    # A purge leaves what consumers have, which nobody else can read: behind that.
    earliest = max(bounds.first, bounds.readable_from)
    if isinstance(offsets, Mapping):
        return offsets.get(queue, earliest)
    return earliest if offsets is StartingOffsets.EARLIEST else bounds.end


def begin_in(options: SourceOptions, queue: str, bounds: QueueBounds) -> QueueOffset:
    """Where a query without a checkpoint begins. Raises `DataLossError` for a position that is
    gone or was never there, unless the query may skip it."""
    at = bounds.offset(position_in(bounds, queue, options.starting_offsets))
    loss = loss_of(queue, at, bounds)
    if loss is not None:
        report(options, loss)
        return after_loss(loss, bounds)
    if at.position > bounds.end:
        try:
            # A new master says less for a moment, but it refuses what its queue doesn't have.
            reader_for(options, queue, at).range_end(at.position, messages_max=1, bytes_max=1)
        except ringmq.PositionsGoneError as error:
            report(options, DataLoss(queue, error.first, error.last + 1, error.message))
            return bounds.offset(bounds.end)
    return at


def report(options: SourceOptions, loss: DataLoss) -> None:
    """Raises `DataLossError`, or logs it if the query may go on without the messages."""
    if options.fail_on_data_loss:
        raise DataLossError(loss)
    log.warning("%s; the query goes on, as failOnDataLoss is false", loss)


def task_partitions(options: SourceOptions, whole: list[QueueRange]) -> list[RangePartition]:
    cut = partitions(
        whole,
        partitions_min=options.min_partitions,
        positions_max=options.max_records_per_partition,
    )
    return [RangePartition(each) for each in cut] or [RangePartition(None)]
