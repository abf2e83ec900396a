"""What is left to do when a streaming query has ended: Spark tells its source nothing.

A job that knows which offset its query has committed last, calls `end_query`: the messages before
it leave the queue, also those of the last batch of a query that was stopped, and the leases end at
once rather than after their time, also those of a query that has failed in its first batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import ringmq
from ringmq_pipeline.connecting import is_named, named_queues, reader_for
from ringmq_pipeline.leases import Leases, instance_of, running_lease
from ringmq_pipeline.offsets import QueueOffset, SourceOffset
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.options import AckMode, SourceOptions


def end_query(options: SourceOptions, committed: SourceOffset) -> Mapping[str, int]:
    """The end of what is acknowledged, by queue. `options`: the query's own, with the `leaseHolder`
    that makes its leases this process's, too; `committed`: from the newest batch in the commit log.

    Raises `SourceLeasedError` if another query has a queue by now."""
    if not options.lease_holder:
        raise OptionError(
            "leaseHolder", "only a query that was given one can be ended from outside"
        )
    found: dict[str, int] = {}
    if options.ack_mode is AckMode.NEVER:
        return found
    leases = Leases(options)
    try:
        for queue, at in committed.items():
            if not is_named(options, queue):
                # The query hasn't read it, or has acknowledged what it had planned before.
                continue
            # A queue that is gone, or is another one, has no messages of this query.
            with contextlib.suppress(ringmq.QueueNotFoundError, ringmq.PositionsMovedError):
                lease = leases.hold(queue, at)
                reader = reader_for(options, queue, at)
                found[queue] = reader.ack_up_to(at.position, lease=lease).acked_end
        _hold_the_rest(options, leases, committed)
    finally:
        leases.release()
    return found


def _hold_the_rest(options: SourceOptions, leases: Leases, done: SourceOffset) -> None:
    """The query's leases of queues of which it has committed nothing yet."""
    for queue in named_queues(options).difference(done):
        with contextlib.suppress(ringmq.QueueNotFoundError, ringmq.PositionsMovedError):
            stat = reader_for(options, queue).stat()
            lease = running_lease(stat, options.lease)
            if lease is not None and lease.instance == instance_of(options):
                at = QueueOffset(stat.numbering.queue_id, stat.numbering.epoch, 0)
                leases.hold(queue, at)
