"""The scrub: reads what lies on disk, slowly, so that damage is found while it can be repaired.

A disk loses bits without saying so. A body that nobody fetches for months, or that is in memory as
well, would be found damaged only when its other replicas may be damaged too, or at a restart. The
scrub reads every journal, every segment, and every record of the message store that a queue refers
to, with their checksums, at `rate_bytes` a second. Then it rests for `pause_s`.

What it does about damage

* Live bodies in it that are in memory are written again. The others are *missing* from then on:
  the replica fetches them from the ring, as always (`replica.repair`).
* Damage to the current journal may have hit ops, or the state that it begins with. The state in
  memory is right, so another journal is begun, with this state.
* Damage to anything else (dead bodies, acks in a journal that is sealed already) harms nobody. It
  is counted and logged, because the disk is losing bits.

Files are read in threads, a piece at a time, only as far as they were known to be durable when the
piece was begun. The loop's part of it is bounded by one segment's entries. A file that the queue
has let go meanwhile is passed over: its path may have another file by now. A pass may take days, so
the same holds for all files of a queue that was deleted since it began: a replica that has left
this node and come back has its folder, and to take the new files for damaged ones, and begin
another journal in their place, would lose its messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ringmq_base.limits import MIB
from ringmq_base.ranges import RangeSet
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Errands
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError, StoreError
from ringmq_node.storage.format.formats import JOURNAL, SEGMENT
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, RecordKind
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.parts import SharedParts
from ringmq_node.storage.queue.queue_store import QueueStore

logger = logging.getLogger(__name__)

# Read by one call in a thread. Then the loop is asked whether the file is still the queue's.
PIECE_BYTES = MIB


@dataclass(slots=True)
class _FileCheck:
    """A file that is being read, piece by piece; `end`: how far it was durable at the beginning."""

    file: QueueFile
    is_journal: bool
    end: int
    offset: int = FILE_HEADER.size
    # With the piece of the file that was read last.
    records: RecordFile | None = None

    @property
    def is_done(self) -> bool:
        return self.offset >= self.end

    def step(self, disk: Disk) -> tuple[int, list[CorruptionReport]]:
        """Reads the next piece, in a thread; returns its bytes and the damage in it. Raises
        `OSError`."""
        found: list[CorruptionReport] = []
        began = self.offset
        records = self.records
        if records is None:
            records = self.records = self._open(disk, found)
        while not self.is_done and self.offset < began + PIECE_BYTES:
            header, fault = records.header_at(self.offset)
            if header is not None and not fault and header.kind != RecordKind.HOLE:
                fault = records.payload_fault(header)
            if header is None or fault:
                after = records.end_of(header, self.offset)
                found.append(
                    CorruptionReport(records.name, self.offset, after - self.offset, fault)
                )
                self.offset = after
            else:
                self.offset = header.end
        return self.offset - began, found

    def _open(self, disk: Disk, found: list[CorruptionReport]) -> RecordFile:
        file = self.file

        def read(offset: int, size: int) -> bytes:
            with file.lock:
                return disk.read(file.path, offset, size)

        kind = JOURNAL if self.is_journal else SEGMENT
        records = RecordFile(str(file.path), kind, self.end, read)
        if records.corruptions or not records.marker:
            found.append(CorruptionReport(records.name, 0, FILE_HEADER.size, "damaged file header"))
        # The marker in memory is right, whatever has become of the file's.
        records.marker = file.marker
        return records


class ScrubbedStore(SharedParts, Protocol):
    """The store whose queues are scrubbed."""

    errands: Errands


class Scrub:
    """Of one node's store. `queues` gives the queues that are open now."""

    def __init__(
        self,
        shared: ScrubbedStore,
        queues: Callable[[], Iterable[QueueStore]],
        *,
        rate_bytes: int,
        pause_s: float,
    ) -> None:
        self._shared = shared
        self._queues = queues
        self._rate_bytes = rate_bytes
        self._pause_s = pause_s
        # When the bytes read so far have had their time.
        self._free_at = 0.0

    async def run(self) -> None:
        """Until cancelled, or until the store fails."""
        while self._rate_bytes:
            await asyncio.sleep(self._pause_s)
            try:
                await self.pass_once()
            except StoreError as error:
                logger.info("the scrub ends: %s", error)
                return

    async def pass_once(self) -> None:
        """Reads everything once. Raises `StoreError` if the store has failed."""
        counters = self._shared.counters
        for queue in [*self._queues()]:
            if queue.durable:
                await self._scrub(queue)
        counters.scrub_passes += 1
        logger.info(
            "scrub: pass %d done; since the start %d bytes, %d damaged places with %d messages",
            counters.scrub_passes,
            counters.scrub_bytes,
            counters.scrub_faults,
            counters.scrub_messages,
        )

    async def _scrub(self, queue: QueueStore) -> None:
        files, errands = queue.on_disk(), self._shared.errands
        segments = {id(file) for file in queue.bodies.segments.values()}
        for file in files:
            check = _FileCheck(file, id(file) not in segments, file.synced - file.unwritten)
            while not check.is_done and _has(queue, file):
                try:
                    size, reports = await errands.run("scrub", check.step, self._shared.disk)
                except OSError as error:
                    # The queue may have let go of the file. If the disk is at fault, its next
                    # write fails the store, and readers are told.
                    logger.info("scrub: %s: %s", file.path, error)
                    break
                for report in reports if _has(queue, file) else ():
                    self._damaged_record(queue, file, report)
                await self._count(size)
        await self._scrub_stored(queue)

    async def _count(self, size: int) -> None:
        """Waits until these bytes have had their time."""
        self._shared.counters.scrub_bytes += size
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time()) + size / self._rate_bytes
        await asyncio.sleep(self._free_at - loop.time())

    # --- bodies in the message store ---

    async def _scrub_stored(self, queue: QueueStore) -> None:
        """The records of the message store that the queue refers to."""
        bodies = queue.bodies
        first = (bodies.live.first if bodies.live else 0) // SEGMENT_POSITIONS
        last = bodies.next_position // SEGMENT_POSITIONS
        for number in range(first, last + 1):
            low = number * SEGMENT_POSITIONS
            high = low + SEGMENT_POSITIONS - 1
            entries = [e for e in bodies.index.overlapping(low, high) if _is_stored(e)]
            delta = bodies.index.deltas.get(number)
            if delta is not None and delta.stored:
                entries = await self._folded(queue, delta.segment, low, high)
            for entry in entries:
                await self._check_stored(queue, entry, low, high)

    async def _folded(
        self, queue: QueueStore, segment: QueueFile, low: int, high: int
    ) -> list[IndexEntry]:
        """The entries of a segment of which only the counts are in memory."""
        bodies = queue.bodies
        # Copies: the thread reads them while the queue goes on.
        live = RangeSet(bodies.live.intersection(low, high))
        missing = RangeSet(bodies.missing.intersection(low, high))
        try:
            found, _ = await self._shared.errands.run(
                "scrub", load_segment, self._shared.disk, segment, live, missing, bodies.cuts
            )
        except OSError as error:
            logger.info("scrub: %s: %s", segment.path, error)
            return []
        return [entry for entry in found if _is_stored(entry)]

    async def _check_stored(
        self, queue: QueueStore, entry: IndexEntry, low: int, high: int
    ) -> None:
        assert entry.location is not None
        store = self._shared.messages(transient=False)
        try:
            size = await self._shared.errands.run("scrub", store.check_record, entry.location)
        except ReadError:
            return  # It can't be read just now, and may be whole.
        except CorruptError as error:
            size = error.report.length
            self._damaged_stored(queue, entry, low, high, error.report)
        await self._count(size)

    def _damaged_stored(
        self, queue: QueueStore, entry: IndexEntry, low: int, high: int, report: CorruptionReport
    ) -> None:
        if queue.closed:
            return
        bodies = queue.bodies
        delta = bodies.index.deltas.get(low // SEGMENT_POSITIONS)
        if delta is not None:
            bodies.unfold(delta)
        # By place: the entry that was read may have been replaced by others since, or been a copy.
        hit = [
            each
            for each in bodies.index.overlapping(low, high)
            if each.location == entry.location and each.location is not None
        ]
        # Otherwise its last reference has gone, and the record with it: that is no damage.
        if hit:
            self._lose(queue, hit, report)

    # --- damage ---

    def _damaged_record(self, queue: QueueStore, file: QueueFile, report: CorruptionReport) -> None:
        """A record of a journal or a segment is damaged."""
        bodies, end = queue.bodies, report.offset + report.length
        if bodies.segments.get(file.number) is file:
            delta = bodies.index.deltas.get(file.number)
            if delta is not None:
                bodies.unfold(delta)
            low = file.number * SEGMENT_POSITIONS
            entries = [*bodies.index.overlapping(low, low + SEGMENT_POSITIONS - 1)]
        else:
            entries = [*bodies.index]
        self._lose(
            queue,
            [
                entry
                for entry in entries
                if entry.file is file
                and entry.offset < end
                and entry.offset + entry.length > report.offset
            ],
            report,
        )
        if file is queue.on_disk()[-1]:
            # The record may have been an op, or the state that the journal begins with.
            queue.seal()

    def _lose(self, queue: QueueStore, entries: list[IndexEntry], report: CorruptionReport) -> None:
        counters = self._shared.counters
        counters.scrub_faults += 1
        counters.scrub_messages += sum(entry.live for entry in entries)
        if not entries:
            logger.error("scrub: queue %s: %s; no live message is in it", queue.queue, report)
        for entry in entries:
            block, start, transient = entry.block, entry.start - entry.first, entry.transient
            parts = queue.state.live.intersection(entry.first, entry.last)
            queue.bodies.lose(entry, report)
            for first, last in parts if block is not None else ():
                assert block is not None
                part = block.slice(first + start, last + start + 1)
                queue.fill(first, part, transient=transient)


def _has(queue: QueueStore, file: QueueFile) -> bool:
    """Whether the file is the queue's. A queue that is closed has no files, whatever lies there."""
    return not queue.closed and any(each is file for each in queue.on_disk())


def _is_stored(entry: IndexEntry) -> bool:
    # What is in the transient store is of no use after a restart, and nobody relies on it.
    return entry.location is not None and not entry.transient
