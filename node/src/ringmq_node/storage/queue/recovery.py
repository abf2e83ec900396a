"""Recovery: a queue as it comes out of its folder, after any kind of stop.

First the journals give the state (`replay`). Then each live position gets its body:

* Bodies are taken from wherever they are valid and live, but not if a cut (see
  `format.checkpoint`) has made them void. Segments come first, so that no sealed journal is needed
  for longer than it has to be.
* Live positions without a body are `missing`.
* Transient messages are dropped: nobody was promised that they come back.

Of segments only headers and tables are read (`format.segment_scan`), and a segment is left as a
delta if none of its positions is in a journal. So recovery takes memory for a window of bytes and
for an entry of each record in the journals, however large the queue is.

Recovery repairs nothing in place. It writes three things only: it removes a half-made file, cuts
off a segment's torn tail, and renames a file that can't be read to `.bad`. Running it again, on
files to which nothing was added since, gives the same outcome.

All bytes that it reads are durable: `Store.open` syncs whatever a killed process has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format import checkpoint, queue_folder
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.queue_folder import (
    BAD_SUFFIX,
    CURRENT_JOURNAL,
    NEW_SUFFIX,
    SEGMENT_POSITIONS,
    segment_name,
)
from ringmq_node.storage.format.records import FILE_HEADER, RecordKind, record_header
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.format.segment_scan import SegmentScan, scan_segment
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.queue.choice import Choice, choose, entries_of, lasting, live_bytes
from ringmq_node.storage.queue.entries import Delta, IndexEntry, LoggedJournal, QueueFile
from ringmq_node.storage.queue.index import RunIndex
from ringmq_node.storage.queue.replay import FoundJournal, Replay

_COPY_BYTES = 4 << 20


@dataclass(slots=True)
class Recovered:
    """A queue as found. `current` is the journal to be sealed; it may be None after a crash."""

    state: ReplicatedState
    missing: RangeSet
    index: RunIndex
    body_bytes: int
    current: LoggedJournal | None
    sealed: list[LoggedJournal]
    segments: dict[int, QueueFile]
    next_generation: int
    cuts: tuple[Cut, ...]
    damaged: bool
    corruptions: list[CorruptionReport]
    torn_bytes: int

    def files(self) -> list[QueueFile]:
        """The journals, oldest first, and the segments."""
        current = [] if self.current is None else [self.current]
        return [*(each.file for each in (*self.sealed, *current)), *self.segments.values()]


def recover(
    disk: Disk,
    directory: Path,
    refer: Callable[[RecordLocation], None] = lambda location: None,
    lost: Callable[[RecordLocation], CorruptionReport | None] = lambda location: None,
    *,
    is_new: bool = False,
) -> Recovered:
    """Reads everything in `directory`; nothing if it `is_new`, as it isn't there then. Raises
    `UnsupportedFormatError`, and what `disk` raises.

    Calls `refer` once for each living entry whose block is in the message store, the entries of a
    delta included; for none, if something can't be read. `lost` tells whether the message store has
    lost a block; its positions are then missing.
    """
    names = {} if is_new else disk.list(directory)
    for name in [name for name in names if name.endswith(NEW_SUFFIX)]:
        disk.remove(directory / name)
        del names[name]
    replay = Replay(disk, directory)
    journals = replay.read(names)
    places: list[RecordLocation] = []
    recovery = _Recovery(disk, directory, replay, places.append, lost)
    recovery.read_segments(names, journals)
    found = recovery.assemble(journals)
    for place in places:
        refer(place)
    return found


class _Recovery:
    """The bodies of a queue whose journals have been replayed."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        replay: Replay,
        refer: Callable[[RecordLocation], None],
        lost: Callable[[RecordLocation], CorruptionReport | None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._replay = replay
        self._state = replay.state
        self._refer = refer
        self._is_lost = lost
        # Of all bodies found, the last position: bodies beyond the state's are made void by a cut.
        self._last_found = -1
        self._covered = RangeSet()
        self._segments: dict[int, QueueFile] = {}
        self._deltas: dict[int, Delta] = {}

    # -- segments

    def read_segments(self, names: dict[str, int], journals: list[FoundJournal]) -> None:
        """Reads all segments as deltas. Also makes the state up, if the journals gave none, and
        drops transient messages from it."""
        if not self._replay.guessed:
            _drop_transient(self._state)
            for file, bodies in self._open_segments(names):
                self._sum(file, bodies)
            return
        for _, bodies in self._open_segments(names):
            self._guess(bodies)
        self._finish_guess(names, journals)
        # Which bodies live is known only now. Keeping the bodies of all segments meanwhile would
        # take memory for the whole queue, so each segment is read a second time.
        for file in self._segments.values():
            self._sum(file, self._bodies_of(file))

    def _open_segments(self, names: dict[str, int]) -> Iterator[tuple[QueueFile, list[BodyRange]]]:
        """The segments that can be read, one at a time: their bodies take memory."""
        for number in queue_folder.segments(names):
            opened = self._open_segment(number, names[segment_name(number)])
            if opened is not None:
                self._segments[number] = opened[0]
                yield opened

    def _open_segment(self, number: int, size: int) -> tuple[QueueFile, list[BodyRange]] | None:
        path = self._directory / segment_name(number)
        found = self._scan(path, number, size)
        self._replay.corruptions += found.corruptions
        if not found.marker or (size > FILE_HEADER.size and not found.bodies):
            # A segment gets its name when its first records are synced. So this is no write that
            # a crash has cut short: the file was whole once, and is damaged.
            self._replay.set_aside(path, size, found.unreadable, path.name + BAD_SUFFIX)
            return None
        self._replay.torn_bytes += found.torn_bytes
        if found.torn_bytes:
            found.end = self._cut_file(path, number, found)
        generations = [body.generation for body in found.bodies]
        end = found.end
        file = QueueFile(path, number, found.marker, end=end, synced=end, found=end)
        file.oldest_generation = min(generations, default=0)
        self._replay.generation = max(self._replay.generation, *generations, 0)
        return file, found.bodies

    def _scan(self, path: Path, number: int, size: int) -> SegmentScan:
        read = partial(self._disk.read, path)
        return scan_segment(path, number, size, read, journals=self._replay.generations)

    def _bodies_of(self, file: QueueFile) -> list[BodyRange]:
        """The bodies of a segment that was opened before, read again."""
        read = partial(self._disk.read, file.path)
        return scan_segment(file.path, file.number, file.end, read, proven=file.end).bodies

    def _sum(self, file: QueueFile, bodies: list[BodyRange]) -> None:
        """Makes a delta of the bodies that recovery chooses of a segment, and refers to those of
        them that are in the message store."""
        replay, live = self._replay, self._state.live
        delta = Delta(file, 0, 0, False)
        self._last_found = max((self._last_found, *(body.last for body in bodies)))
        mine = lasting(bodies, file.found)
        for choice in choose(mine, live, replay.filled, self._covered, replay.cuts):
            if self._drop_lost(choice):
                continue
            delta.live += choice[3]
            delta.live_bytes += live_bytes(choice, live)
            location = choice[0].location
            if location is not None:
                delta.stored = True
                self._refer(location)
        if delta.live:
            self._deltas[file.number] = delta

    def _drop_lost(self, choice: Choice) -> bool:
        """Whether the message store has lost the body; its positions are then missing.

        This may be no damage. A message was removed and its body released; then a state was
        installed in which the message lives again; then the power was cut, before the body was
        filled in. The install has left a cut that is later than the body, which tells this case.
        """
        body, first, last, _ = choice
        report = None if body.location is None else self._is_lost(body.location)
        if report is None:
            return False
        if not any(cut.generation > body.generation for cut in self._replay.cuts):
            self._replay.corruptions.append(report)
        parts = self._state.live.intersection(first, last)
        self._covered.subtract(parts)
        self._replay.filled.update(parts)
        return True

    def _cut_file(self, path: Path, number: int, found: SegmentScan) -> int:
        """Cuts a torn tail off, so that no old record lies behind the next write.

        The tail's headers may have been all that proves earlier bytes durable. If there is damage
        before the tail, known by now or found when somebody reads the body, then the next start
        would take that damage for a torn tail, and drop good records with it. So a record takes
        the tail's place that says what the tail has shown. Returns the offset of the file's end.
        """
        end = found.end
        new = path.with_name(path.name + NEW_SUFFIX)
        for offset in range(0, end, _COPY_BYTES):
            size = min(_COPY_BYTES, end - offset)
            self._disk.write(new, offset, [self._disk.read(path, offset, size)])
        without_tail = self._scan(path, number, end)
        if found.corruptions or without_tail.torn_bytes:
            mark = record_header(found.marker, end, RecordKind.END, b"", synced=end)
            self._disk.write(new, end, [mark])
            end += len(mark)
        # Before the rename: a power cut must leave the old file or the whole new one.
        self._disk.sync(new)
        self._disk.rename(new, path)
        self._disk.sync(self._directory)
        return end

    # -- a state that is made up

    def _guess(self, bodies: list[BodyRange]) -> None:
        """Without a checkpoint all bodies found are live, unless a remove is known."""
        state = self._state
        for body in bodies:
            state.live.add(body.first, body.last)
            if body.transient:
                state.transient.add(body.first, body.last)
            state.next_position = max(state.next_position, body.last + 1)

    def _finish_guess(self, names: dict[str, int], journals: list[FoundJournal]) -> None:
        state, replay = self._state, self._replay
        for journal in journals:
            self._guess(journal.bodies)
        for first, last in replay.removed:
            state.live.remove(first, last)
            state.transient.remove(first, last)
        state.drop_attributes(replay.removed.ranges())
        # An empty folder, or one that the creation of the queue has left half made, is no damage.
        found_any = bool(state.next_position or replay.corruptions)
        replay.damaged |= found_any or any(name.endswith(BAD_SUFFIX) for name in names)
        _drop_transient(state)

    # -- the sum

    def assemble(self, journals: list[FoundJournal]) -> Recovered:
        """The queue, from its deltas and the bodies in its journals."""
        replay, state = self._replay, self._state
        body_bytes = sum(delta.live_bytes for delta in self._deltas.values())
        logged, journal_bytes = self._entries_of_journals(journals)
        entries = [entry for mine in logged.values() for entry in mine]
        index = RunIndex()
        # Entries and a delta can't both stand for one segment (see `RunIndex`).
        mixed = _segments_of(entries)
        for number, delta in self._deltas.items():
            if number not in mixed:
                index.put(delta)
                continue
            mine = lasting(self._bodies_of(delta.segment), delta.segment.found)
            chosen = choose(mine, state.live, replay.filled, RangeSet(), replay.cuts)
            entries += entries_of(chosen, delta.segment)
        for entry in sorted(entries, key=lambda entry: entry.first):
            index.add(entry)
        missing = state.live.without(self._covered)
        generation = replay.generation + 1
        cuts = replay.cuts
        if replay.has_torn_journal or self._last_found >= state.next_position:
            # Bodies that don't count any more stay in their files. Their positions are given out
            # anew, and the next start must not take the old bodies for the new ones.
            cuts = checkpoint.add_cut(cuts, Cut(generation, state.next_position))
        sealed = [LoggedJournal(each.file, logged[each.file]) for each in journals]
        has_current = bool(sealed) and sealed[-1].file.path.name == CURRENT_JOURNAL
        current = sealed.pop() if has_current else None
        return Recovered(
            state=state,
            missing=missing,
            index=index,
            body_bytes=body_bytes + journal_bytes,
            current=current,
            sealed=sealed,
            segments=self._segments,
            next_generation=generation,
            cuts=cuts,
            damaged=replay.damaged,
            corruptions=replay.corruptions,
            torn_bytes=replay.torn_bytes,
        )

    def _entries_of_journals(
        self, journals: list[FoundJournal]
    ) -> tuple[dict[QueueFile, list[IndexEntry]], int]:
        """Each journal's entries for the positions that no segment has covered, and their live body
        bytes."""
        replay, live = self._replay, self._state.live
        logged: dict[QueueFile, list[IndexEntry]] = {}
        body_bytes = 0
        # A body that was filled in again counts before the older one at its position.
        for journal in reversed(journals) if replay.filled else journals:
            self._last_found = max((self._last_found, *(body.last for body in journal.bodies)))
            mine = lasting(journal.bodies, journal.file.found)
            chosen = choose(mine, live, RangeSet(), self._covered, replay.cuts)
            chosen = [choice for choice in chosen if not self._drop_lost(choice)]
            body_bytes += sum(live_bytes(choice, live) for choice in chosen)
            logged[journal.file] = entries_of(chosen, journal.file)
            for entry in logged[journal.file]:
                if entry.location is not None:
                    self._refer(entry.location)
        return logged, body_bytes


def _segments_of(entries: list[IndexEntry]) -> set[int]:
    """The segments that have a position in one of `entries`."""
    numbers: set[int] = set()
    for entry in entries:
        low, high = entry.first // SEGMENT_POSITIONS, entry.last // SEGMENT_POSITIONS
        numbers.update(range(low, high + 1))
    return numbers


def _drop_transient(state: ReplicatedState) -> None:
    for first, last in state.transient:
        state.live.remove(first, last)
        state.redelivered.remove(first, last)
    state.drop_attributes(state.transient.ranges())
    state.transient.clear()
