"""Whether a data directory is sound: every byte is read, and every live message looked for.

Sound means

* every record of every journal, segment and message store file has its checksums, and its
  tables add up; every map is whole;
* no queue has lost ops;
* every live position of every queue has its body exactly once: in a record of its own files, or
  in a message store record that is there, valid, of the length, place and number of messages
  that the queue says.

Sound, and only told: torn tails (bytes that a crash cut short before any confirm relied on them),
files that are no part of the store, transient messages (dropped at a start).

Memory: as much as a start of the node takes for the largest queue, a byte for each record of the
message store, a bounded table of its records, and a bounded list of faults. Time: each file is
read once or twice, in order. Referenced bodies are not read again: tables of the records tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.errors import UnsupportedFormatError
from ringmq_node.storage.format.formats import SEGMENT
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages.files import data_name
from ringmq_node.storage.messages.relocation import LOST
from ringmq_node.storage.offline.body_files import BodyFiles
from ringmq_node.storage.offline.contents import DataDirectory
from ringmq_node.storage.offline.faults import Fault, TornTail
from ringmq_node.storage.offline.file_kinds import is_bodies, order_of
from ringmq_node.storage.offline.queues import (
    QueueFolder,
    UnreadableQueueError,
    live_entries,
    recover_queue,
    transient_dropped,
)
from ringmq_node.storage.offline.store_references import LostBody, StoreReferences
from ringmq_node.storage.offline.walk import open_records, stretches
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.recovery import Recovered

# Called with the name of each file or queue that has been dealt with.
OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verification:
    """`faults` and `notes` may be cut short; the totals are complete."""

    directory: str
    cluster: str | None
    node: str | None
    sound: bool
    queues: int
    bytes_read: int
    messages: int
    messages_transient: int
    messages_unreadable: int
    torn_bytes: int
    faults_total: int
    faults: list[Fault]
    torn: list[TornTail]
    notes_total: int
    notes: list[str]


def steps_of(directory: DataDirectory) -> int:
    """The number of calls that `verify` will make to `on_progress`, unless files are unreadable."""
    stored = directory.store_files(directory.persistent)
    return len(directory.queues) + sum(map(is_bodies, stored))


def verify(directory: DataDirectory, on_progress: OnProgress = lambda name: None) -> Verification:
    """Reads all of it. Raises `OSError` where that is not allowed, or files vanish meanwhile."""
    return _Verifier(directory, on_progress).run()


class _Verifier:
    def __init__(self, directory: DataDirectory, on_progress: OnProgress) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._findings = directory.findings
        self._on_progress = on_progress
        # None where a map of another version makes the store unreadable.
        self._stored: tuple[StoreReferences, BodyFiles] | None = None
        self._messages = 0
        self._transient = 0
        self._unreadable = 0

    def run(self) -> Verification:
        directory, findings = self._directory, self._findings
        self._check_stores()
        for queue in directory.queues:
            self._check_queue(queue)
            # Else the changes of names in all queues would be remembered to the end.
            self._disk.forget(queue.path)
            self._on_progress(queue.title)
        return Verification(
            directory=str(directory.root),
            cluster=directory.cluster,
            node=directory.node,
            sound=findings.faults_total == 0,
            queues=len(directory.queues),
            bytes_read=self._disk.bytes_read,
            messages=self._messages,
            messages_transient=self._transient,
            messages_unreadable=self._unreadable,
            torn_bytes=findings.torn_bytes,
            faults_total=findings.faults_total,
            faults=findings.faults,
            torn=findings.torn,
            notes_total=findings.notes_total,
            notes=findings.notes,
        )

    # -- the message store

    def _check_stores(self) -> None:
        store = self._directory.persistent
        try:
            references = StoreReferences(self._disk, store)
        except UnsupportedFormatError as error:
            self._findings.add(store, 0, 0, str(error))
            return
        catalogue = references.catalogue
        for report in catalogue.corruptions:
            self._findings.report(report)
        led_to = {file for moved in catalogue.moved_files() for file in moved.table.files}
        files = BodyFiles(self._disk, store, self._findings, led_to - {LOST})
        self._stored = references, files
        sizes = self._directory.store_files(store)
        for name in sorted(filter(is_bodies, sizes), key=order_of):
            path = store / name
            try:
                files.check(int(path.stem), sizes[name])
            except (PermissionError, FileNotFoundError):
                raise
            except (OSError, UnsupportedFormatError) as error:
                self._findings.add(path, 0, sizes[name], f"can't be read: {error}")
            self._on_progress(name)

    def _lost_in_store(self, location: RecordLocation, messages: int) -> LostBody | None:
        """None if the body is there, as it should be."""
        if self._stored is None:
            return LostBody(self._directory.persistent, 0, 0, "the message store can't be read")
        references, files = self._stored
        place = references.find(location)
        if isinstance(place, LostBody):
            return place
        path = references.directory / data_name(place.file)
        try:
            file = files.get(place.file, references.size_of(place.file))
            what = file.fault_of(place, messages)
        except (OSError, UnsupportedFormatError) as error:
            what = f"can't be read: {error}"
        return LostBody(path, place.offset, place.length, what) if what else None

    # -- a queue

    def _check_queue(self, queue: QueueFolder) -> None:
        findings = self._findings
        try:
            found = recover_queue(self._disk, queue)
            for report in found.corruptions:
                findings.report(report, queue.name)
            if found.damaged:
                what = "ops were lost, now or before: the queue has to be installed from the ring"
                findings.add(queue.path, 0, 0, what, queue=queue.name)
            self._note_torn(queue, found)
            self._messages += len(found.state.live)
            self._transient += transient_dropped(self._disk, found)
            bad = {file.path: self._bad_records(file) for file in found.segments.values()}
            self._check_bodies(queue, found, bad)
        except (PermissionError, FileNotFoundError):
            # The wrong user runs this, or files vanish meanwhile: that is no verdict on the queue.
            raise
        except (UnreadableQueueError, OSError) as error:
            findings.add(queue.path, 0, 0, str(error), queue=queue.name)

    def _note_torn(self, queue: QueueFolder, found: Recovered) -> None:
        for file in found.files():
            size = queue.sizes.get(file.path.name, file.end)
            if file.end < size:
                self._findings.tear(file.path, file.end, size - file.end)

    def _bad_records(self, segment: QueueFile) -> set[int]:
        """The offsets of the damaged records of a segment."""
        records = open_records(self._disk, segment.path, SEGMENT, segment.end, owned=True)
        bad: set[int] = set()
        for offset, end, _, what in stretches(records, payloads=True):
            if what:
                bad.add(offset)
                self._findings.add(segment.path, offset, end - offset, what)
        return bad

    def _check_bodies(
        self, queue: QueueFolder, found: Recovered, bad: dict[Path, set[int]]
    ) -> None:
        """Each live position has its body exactly once."""
        live = found.state.live
        covered = RangeSet()
        for entry in live_entries(self._disk, found):
            for first, last in live.intersection(entry.first, entry.last):
                for twice in covered.intersection(first, last):
                    self._tell(queue, entry, twice, "position has two bodies")
                covered.add(first, last)
            lost = self._lost_body(entry, bad)
            if lost is not None:
                self._unreadable += entry.live
                self._findings.add(
                    lost.path,
                    lost.offset,
                    lost.length,
                    lost.what,
                    queue=queue.name,
                    positions=(entry.first, entry.last),
                )
        bare = live.copy()
        bare.subtract(covered)
        self._unreadable += len(bare)
        what = "no body: lost, or not fetched from the ring yet"
        for positions in bare:
            self._findings.add(queue.path, 0, 0, what, queue=queue.name, positions=positions)

    def _lost_body(self, entry: IndexEntry, bad: dict[Path, set[int]]) -> LostBody | None:
        if entry.location is not None:
            return self._lost_in_store(entry.location, entry.start + entry.count)
        file = entry.file
        assert file is not None
        if entry.offset in bad.get(file.path, ()):
            return LostBody(file.path, entry.offset, entry.length, "body is damaged")
        return None

    def _tell(
        self, queue: QueueFolder, entry: IndexEntry, positions: tuple[int, int], what: str
    ) -> None:
        assert entry.file is not None
        self._findings.add(
            entry.file.path, entry.offset, entry.length, what, queue=queue.name, positions=positions
        )
