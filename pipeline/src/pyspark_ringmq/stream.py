"""The reader of a streaming query.

When may messages leave the queue? Spark calls `commit(end)` only while it plans the batch after
the next one, so the last batch before a queue falls idle would stay there. And whatever a job does
at the end of its own batch happens before Spark has noted the batch as done: if it acknowledged
there and died, Spark would ask for a range that is gone. But the `start` that Spark gives to
`latestOffset` is always the end of a batch that it has committed, and it asks on every trigger,
also when there is nothing new. So messages before `start` are acknowledged there, and nowhere else.
(`pipeline/tests/spark/test_queries.py` has a guard that `start` is committed.)

One such reader lives beside the driver for the whole query and has the offsets and the leases.
Another one was pickled to the workers and has `read` alone: they share nothing but the options.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import ringmq
from pyspark_ringmq.planning import (
    RangePartition,
    begin_in,
    bounds_now,
    check_offsets,
    report,
    task_partitions,
)
from pyspark_ringmq.rows import read_range
from ringmq_pipeline.connecting import is_named, reader_for
from ringmq_pipeline.leases import Leases, SourceLeasedError
from ringmq_pipeline.offsets import (
    DataLoss,
    QueueBounds,
    QueueOffset,
    after_loss,
    begin_of,
    ends_first_batch,
    from_json,
    in_turn,
    loss_of,
    ranges,
    shares,
    to_json,
)
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.options import AckMode, SourceOptions, StartingOffsets

if TYPE_CHECKING:
    import pyarrow


log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @functools.cached_property
    def _driver(self) -> _Driver:
        return _Driver(self._options)

    # --- beside the driver ---

    def initialOffset(self) -> dict[str, Any]:
        """Spark asks twice, and once more in each life of the query until the first batch is done.
        That batch notes where it begins: with `latest`, or after a purge, it is elsewhere then."""
        return to_json(self._driver.begin())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.end_at_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Messages before `start` are committed; see above."""
        at = from_json(start)
        self._driver.acknowledge(at)
        end = self._driver.next_end(at, limit)
        if not ends_first_batch(start) and at == self._driver.begun:
            return to_json(end, begin=at)
        # Not another text of the same offset, for which Spark would make a batch.
        return start if end == at else to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Beside a batch's end it shows how far the query is behind."""
        return to_json(self._driver.newest) if self._driver.newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin = begin_of(start, end)
        whole = ranges(begin, from_json(end))
        # A restarted query reads again what it hadn't committed, before it asks for an offset. That
        # may be of a queue that its options don't name any more.
        read = {each.queue for each in whole}
        self._driver.hold(
            {
                queue: at
                for queue, at in begin.items()
                if queue in read or is_named(self._options, queue)
            }
        )
        return [*task_partitions(self._options, whole)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: see above."""

    def stop(self) -> None:
        self._driver.leases.release()

    # --- in the workers ---

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)


class _Driver:
    """What the reader beside the driver remembers between calls."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.leases = Leases(options)
        self._acked: dict[str, QueueOffset] = {}
        # Where a query that reads what is there, and then ends, ends.
        self._target: dict[str, QueueOffset] | None = None
        self._reported: set[DataLoss] = set()
        # The first batch doesn't wait: nobody knows when the one before it was.
        self._batch_at = -math.inf
        # The queue whose turn it was last, where a limit is too small for all.
        self._last_served = ""
        # The ends of the queues, as the last trigger saw them.
        self.newest: dict[str, QueueOffset] = {}
        # Where the query has begun, or would have, had it not been there before.
        self.begun: dict[str, QueueOffset] | None = None

    def begin(self) -> dict[str, QueueOffset]:
        if self.begun is None:
            self.begun = self._begin_now()
        return self.begun

    def _begin_now(self) -> dict[str, QueueOffset]:
        options = self._options
        if (
            options.ack_mode is AckMode.COMMITTED
            and options.starting_offsets is StartingOffsets.LATEST
        ):
            # All before a start leaves the queue, also what no query has read.
            raise OptionError(
                "startingOffsets",
                "'latest' would acknowledge all messages that are there, unread: begin at a "
                'position, {"QUEUE": POSITION}, if they are to go, or with ackMode=never',
            )
        found = {}
        now = bounds_now(options)
        check_offsets(options, now)
        for queue, bounds in now.items():
            if bounds is not None:
                found[queue] = begin_in(self._options, queue, bounds)
        self.hold(found)
        return found

    def hold(self, offset: dict[str, QueueOffset]) -> None:
        """Raises `SourceLeasedError` if another query reads one of the queues."""
        if self._options.ack_mode is AckMode.NEVER:
            return
        for queue, at in offset.items():
            # Of a queue that was deleted, or is another one: `next_end` says so.
            with contextlib.suppress(ringmq.QueueNotFoundError, ringmq.PositionsMovedError):
                self.leases.hold(queue, at)

    def end_at_what_is_there(self) -> None:
        # Whether a queue that isn't there was deleted, or never there, an offset says: `next_end`.
        self._target = {
            queue: bounds.offset(bounds.end)
            for queue, bounds in bounds_now(self._options, known=self._options.queues).items()
            if bounds is not None
        }

    # --- acknowledging ---

    def acknowledge(self, start: dict[str, QueueOffset]) -> None:
        if self._options.ack_mode is AckMode.NEVER:
            return
        for queue, at in start.items():
            if self._acked.get(queue) == at:
                continue
            named = is_named(self._options, queue)
            # One that the options don't name any more is left alone. A restarted query may have the
            # lease of one, for the batch that it had planned before: that one is done now.
            if not named and not self.leases.has(queue):
                continue
            try:
                lease = self.leases.hold(queue, at)
                reader_for(self._options, queue, at).ack_up_to(at.position, lease=lease)
            except (ringmq.QueueNotFoundError, ringmq.PositionsMovedError):
                # `next_end` says so, or skips it.
                continue
            except ringmq.PositionsHeldError as error:
                # They leave the queue with a later trigger, or with the consumer's own ack.
                log.warning("messages aren't acknowledged yet: %s", error)
                continue
            except ringmq.PositionsGoneError as error:
                loss = DataLoss(queue, error.first, error.last + 1, error.message)
                self._report(loss)
                continue
            except ringmq.LeaseLostError as error:
                raise SourceLeasedError(f"{error}; this query has to end") from error
            self._acked[queue] = at
            if not named:
                self.leases.release_one(queue)

    def _report(self, loss: DataLoss) -> None:
        """Raises `DataLossError`, or logs it, once."""
        if loss not in self._reported:
            report(self._options, loss)
            self._reported.add(loss)

    # --- how far a batch goes ---

    def next_end(self, start: dict[str, QueueOffset], limit: ReadLimit) -> dict[str, QueueOffset]:
        """The end of a batch that begins at `start`; the same if there is nothing to read. A queue
        that the options don't name any more stays where it is."""
        known = [queue for queue in start if is_named(self._options, queue)]
        now = bounds_now(self._options, known=known)
        self.newest = {queue: bounds.offset(bounds.end) for queue, bounds in now.items() if bounds}
        found = dict(start)
        begins, ends = {}, {}
        for queue, bounds in now.items():
            at = start.get(queue)
            if at is None:
                if bounds is None or not self._may_begin(queue):
                    continue
                # Of a new queue all is read (`offsets.ranges`). If its beginning is gone, that is
                # said now: a batch that is planned keeps its range.
                at = bounds.offset(0)
            loss = loss_of(queue, at, bounds)
            if loss is not None:
                self._report(loss)
            if bounds is None:
                # Deleted.
                continue
            if loss is not None and at != bounds.offset(at.position):
                # It goes over to another numbering, in a batch without rows of this queue.
                found[queue] = after_loss(loss, bounds, self._read_end(queue, at, bounds))
                continue
            # A query that may skip counts its limits from behind the loss on.
            begins[queue] = after_loss(loss, bounds) if loss else at
            ends[queue] = self._end_of(queue, begins[queue], bounds)
        self.hold({queue: at for queue, at in begins.items() if queue not in start})
        if isinstance(limit, ReadAllAvailable):
            return found | ends
        if self._waits(begins, ends):
            return found
        return found | self._limited(begins, ends, limit)

    def _read_end(self, queue: str, at: QueueOffset, bounds: QueueBounds) -> int:
        """The end of the messages before `at` that an accepted loss has left what they were."""
        if at.queue_id != bounds.queue_id:
            return 0
        try:
            reader_for(self._options, queue, at).range_end(at.position, messages_max=1, bytes_max=1)
        except ringmq.PositionsMovedError as error:
            return min(at.position, error.lost_from)
        return 0

    def _may_begin(self, queue: str) -> bool:
        """Of a queue that the query doesn't know yet. One that reads what is there, and then ends,
        leaves out what was declared since."""
        return self._target is None or queue in self._target

    def _waits(self, begins: dict[str, QueueOffset], ends: dict[str, QueueOffset]) -> bool:
        """Whether there is too little for a batch, and the last one isn't long ago. A query that
        takes what is there, and ends, never waits."""
        there = sum(ends[queue].position - begins[queue].position for queue in ends)
        now = time.monotonic()
        if (
            there < self._options.min_offsets_per_trigger
            and now - self._batch_at < self._options.max_trigger_delay_s
            and self._target is None
        ):
            return True
        if there:
            self._batch_at = now
        return False

    def _end_of(self, queue: str, begin: QueueOffset, bounds: QueueBounds) -> QueueOffset:
        end = bounds.end
        target = None if self._target is None else self._target.get(queue)
        if target is not None and target.queue_id == begin.queue_id:
            end = min(end, target.position)
        # A new master says less for a moment.
        return bounds.offset(max(begin.position, end))

    def _limited(
        self, begins: dict[str, QueueOffset], ends: dict[str, QueueOffset], limit: ReadLimit
    ) -> dict[str, QueueOffset]:
        """`ends`, with as many messages and bytes as one batch may have."""
        rows = self._options.max_messages_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        backlogs = {queue: ends[queue].position - begins[queue].position for queue in ends}
        messages = shares(backlogs, rows, after=self._last_served)
        bytes_max = self._options.max_bytes_per_trigger
        together = sum(messages.values())
        found = {}
        for queue, end in ends.items():
            begin = begins[queue]
            found[queue] = begin
            if messages[queue]:
                share = max(1, bytes_max * messages[queue] // together)
                upto = self._counted_end(queue, begin, messages[queue], share)
                found[queue] = replace(begin, position=min(end.position, upto))
        served = [queue for queue, share in messages.items() if share]
        self._last_served = in_turn(served, self._last_served)[-1] if served else ""
        return found

    def _counted_end(
        self, queue: str, begin: QueueOffset, messages_max: int, bytes_max: int
    ) -> int:
        """Where a range with so many messages and bytes ends."""
        try:
            counted = reader_for(self._options, queue, begin).range_end(
                begin.position, messages_max=messages_max, bytes_max=bytes_max
            )
        except (
            ringmq.QueueNotFoundError,
            ringmq.PositionsMovedError,
            ringmq.PositionsGoneError,
        ) as error:
            # Since its bounds were asked for. The next trigger says what that means for the query.
            log.warning("queue %r: its messages went while a batch was planned: %s", queue, error)
            return begin.position
        return max(begin.position, counted.end)
