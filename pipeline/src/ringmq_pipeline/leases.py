"""The leases of a streaming query, renewed while its process lives.

Spark ends the process of a source without a word. So nobody may rely on a release: a lease that
isn't renewed expires, and the next query takes it over.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from concurrent.futures import Future

import ringmq
from ringmq.calls.loop_thread import start_on_loop
from ringmq.reading.sync_reader import SyncLease, SyncReader
from ringmq_pipeline.connecting import named_queues, reader_for
from ringmq_pipeline.offsets import QueueOffset
from ringmq_pipeline.options import AckMode, SourceOptions

log = logging.getLogger(__name__)

# A renewal that fails has two more attempts before the lease is over.
RENEWALS_IN_A_LIFE = 3


class SourceLeasedError(RuntimeError):
    """Another query reads this queue."""


def running_lease(stat: ringmq.PositionStat, name: str) -> ringmq.QueueLease | None:
    """The lease of this name on a queue, unless it has expired, and with it its holder's right."""
    running = [each for each in stat.leases if each.until_ms > stat.time_ms and each.name == name]
    return running[0] if running else None


def check_leases(options: SourceOptions) -> None:
    """Whether a query could have its leases now; it takes none. For a job that would find out only
    when Spark has started, seconds later. Raises `SourceLeasedError`."""
    if options.ack_mode is AckMode.NEVER:
        return
    for queue in sorted(named_queues(options)):
        try:
            stat = reader_for(options, queue).stat()
        except ringmq.QueueNotFoundError:
            # The query says what that means.
            continue
        lease = running_lease(stat, options.lease)
        if lease is not None and lease.instance != instance_of(options):
            raise _leased(queue, lease.holder, (lease.until_ms - stat.time_ms) / 1000)


def instance_of(options: SourceOptions) -> bytes | None:
    """What makes sources with the same holder one; None: each is its own."""
    if not options.lease_holder:
        return None
    return hashlib.sha256(options.lease_holder.encode()).digest()


def _leased(queue: str, holder: str, expires_in_s: float) -> SourceLeasedError:
    return SourceLeasedError(
        f"queue {queue!r} is leased by {holder!r}, which reads it; its lease ends in "
        f"{expires_in_s:.0f} s unless it is renewed"
    )


class Leases:
    """One lease for each queue of the query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        # By the queue's name, with the id of the queue that it is of.
        self._held: dict[str, tuple[str, SyncLease]] = {}
        self._lost: ringmq.LeaseLostError | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        # Once for all queues: each process is one holder.
        self._instance = instance_of(options) or os.urandom(16)
        self._holder = options.lease_holder or f"{socket.gethostname()}:{os.getpid()}"

    def hold(self, queue: str, at: QueueOffset) -> SyncLease:
        """The lease of the queue, acquired now if it isn't held yet. Raises `SourceLeasedError`."""
        with self._lock:
            if self._lost is not None:
                raise SourceLeasedError(f"{self._lost}; this query has to end") from self._lost
            queue_id, held = self._held.get(queue, ("", None))
        # The lease of a queue that was declared anew is gone with the one before.
        if held is not None and queue_id == at.queue_id:
            return held
        reader = reader_for(self._options, queue, at)
        try:
            lease = reader.acquire_lease(
                self._options.lease,
                ttl_s=self._options.lease_ttl_s,
                holder=self._holder,
                instance=self._instance,
            )
        except ringmq.LeaseHeldError as error:
            raise _leased(queue, error.holder, error.expires_in_s) from error
        with self._lock:
            self._held[queue] = at.queue_id, lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew, name="ringmq-leases", daemon=True
                )
                self._thread.start()
        return lease

    def _renew(self) -> None:
        # Side by side: where a queue has no master, its renewal waits as long as its lease lasts.
        under_way: dict[str, Future[None]] = {}
        while not self._ended.wait(self._options.lease_ttl_s / RENEWALS_IN_A_LIFE):
            with self._lock:
                held = [*self._held.items()]
            for queue, (queue_id, lease) in held:
                before = under_way.get(queue)
                if before is not None and not before.done():
                    continue
                if before is not None:
                    # What it hasn't handled is a bug, and ends the thread.
                    before.result()
                now = reader_for(self._options, queue)
                under_way[queue] = start_on_loop(self._renew_one(queue, queue_id, lease, now))

    async def _renew_one(
        self, queue: str, queue_id: str, lease: SyncLease, now: SyncReader
    ) -> None:
        """`now`: reads the queue, whichever has this name."""
        try:
            await lease.calls.renew(deadline_s=self._options.lease_ttl_s)
        except ringmq.QueueNotFoundError:
            # The query's next trigger says so.
            self._forget(queue, queue_id)
        except ringmq.LeaseLostError as error:
            if await _is_another(now, queue_id):
                self._forget(queue, queue_id)
                return
            with self._lock:
                # Not one that was released meanwhile.
                if self._held.get(queue) == (queue_id, lease):
                    self._lost = error
        except ringmq.RingMQError as error:
            # The broker decides about every acknowledgement by the lease's token.
            log.warning("queue %r: the lease wasn't renewed: %s", queue, error)

    def _forget(self, queue: str, queue_id: str) -> None:
        with self._lock:
            # By now, it may be held of the new queue.
            if self._held.get(queue, ("", None))[0] == queue_id:
                del self._held[queue]

    def has(self, queue: str) -> bool:
        with self._lock:
            return queue in self._held

    def release(self) -> None:
        """Of all queues, for good. Never raises: a queue may be gone, or its nodes."""
        self._ended.set()
        with self._lock:
            held = [*self._held]
        for queue in held:
            self.release_one(queue)

    def release_one(self, queue: str) -> None:
        """Never raises, as above."""
        with self._lock:
            _, lease = self._held.pop(queue, ("", None))
        try:
            if lease is not None:
                lease.release()
        except ringmq.RingMQError as error:
            log.warning("queue %r: the lease wasn't released, and expires: %s", queue, error)


async def _is_another(reader: SyncReader, queue_id: str) -> bool:
    """Whether the queue is gone, or has been declared anew: nobody has taken its lease, and the
    query's next trigger says what it can't read any more."""
    try:
        return (await reader.calls.stat()).numbering.queue_id != queue_id
    except ringmq.QueueNotFoundError:
        return True
    except ringmq.RingMQError as error:
        log.warning("queue %r: whether it is the same isn't known: %s", reader.queue, error)
        return False
