"""What a queue's folder says after any kind of stop.

In order: the journals, by generation, then the segments.

* The newest valid checkpoint is the state; the ops behind it are applied to it.
* Bodies are taken from wherever they are valid and live. One that a cut (see
  `checkpoint`) has made void doesn't count. Segments come first, so that a sealed
  journal is needed no longer than it has to be.
* Live positions without a body are `missing`.
* Transient messages are dropped: nobody was promised that they come back.

Journals are read whole, since they hold the state, but none of their bodies is kept. Of
segments only headers and tables are read (see `segment_scan`), and a segment is left as a
delta if nothing of it is in a journal: so what recovery takes in memory is a window of
bytes, and an entry for each record of the journals, however large the queue is.

Lost records are told by the numbers: each record says which op it follows, so a
gap is seen. Behind a gap the state is a guess, on the safe side: `damaged` is set and
stays until the queue is installed anew from the ring; positions whose publish was
lost are live and missing; a lost ack leaves its message live.

Without any valid checkpoint (both copies of the only one hit) the state is made up
from the bodies found and the ops left, and is `damaged` too.

Nothing is repaired in place, and nothing is written but this: a half made file is removed; a
segment's torn tail is cut off; a file that can't be read is renamed to `.bad`. Running it
again, on files to which nothing was added since, gives the same. A journal that can't be read
is given a generation in its new name, so that its loss is not forgotten until one of a
later generation is there, whose checkpoint says it too.

What is read is durable: `Store.open` syncs all that a killed process has left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.ops import Outline, Remove
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format import checkpoint, journal_scan, tables
from ringmq_node.storage.format import names as names_of
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.formats import JOURNAL
from ringmq_node.storage.format.journal_scan import Journal, Said
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    Header,
    RecordFile,
    RecordKind,
    Scan,
    owner_of,
    record_header,
)
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.format.segment_scan import (
    SegmentScan,
    entries_of,
    lasting,
    scan_segment,
)
from ringmq_node.storage.format.tables import Body, Choice
from ringmq_node.storage.queue.index import (
    SEGMENT_POSITIONS,
    Delta,
    IndexEntry,
    QueueFile,
    RunIndex,
)
from ringmq_node.storage.queue.journal import CURRENT_NAME, NEW_SUFFIX, sealed_name
from ringmq_node.storage.queue.segments import segment_name

_COPY_BYTES = 4 << 20
# Files that can't be read at all are kept under this suffix for whoever wants to look.
BAD_SUFFIX = ".bad"


@dataclass(slots=True)
class Recovered:
    """A queue as found. `current` is the journal to be sealed; it may be None after a crash."""

    state: ReplicatedState
    missing: RangeSet
    index: RunIndex
    body_bytes: int
    current: QueueFile | None
    sealed: list[QueueFile]
    segments: dict[int, QueueFile]
    next_generation: int
    cuts: tuple[Cut, ...]
    damaged: bool
    corruptions: list[CorruptionReport]
    torn_bytes: int


def recover(
    disk: Disk,
    directory: Path,
    refer: Callable[[RecordLocation], None] = lambda location: None,
    lost: Callable[[RecordLocation], CorruptionReport | None] = lambda location: None,
) -> Recovered:
    """Reads everything in `directory`. Raises `OSError`, `UnsupportedFormatError`.

    Calls `refer` once for each living entry whose block is in the message store, also for
    those of a delta. What `lost` says is not in the message store is missing.
    """
    return _Recovery(disk, directory, refer, lost).run()


class _Recovery:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        refer: Callable[[RecordLocation], None],
        lost: Callable[[RecordLocation], CorruptionReport | None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._refer = refer
        self._is_lost = lost
        self._owner = owner_of(directory)
        self._state: ReplicatedState | None = None
        self._guessed = False
        self._removed = RangeSet()
        self._damaged = False
        self._cuts: tuple[Cut, ...] = ()
        self._corruptions: list[CorruptionReport] = []
        # Of journals that an earlier start has set aside, and none was written since.
        self._lost: list[CorruptionReport] = []
        self._torn_bytes = 0
        # A torn tail stays in the file when it is sealed: what is in it is made void by a cut.
        # So is what lies beyond the last position that the state knows, if anything does.
        self._torn_journal = False
        self._beyond = -1
        # What was filled in again, or is to be. A segment may still have what was there
        # before, which is lost, or was released.
        self._filled = RangeSet()
        # The latest generation of which anything was seen.
        self._generation = 0
        # Those of which there is a journal, readable or not.
        self._generations: set[int] = set()
        self._covered = RangeSet()
        self._deltas: dict[int, Delta] = {}

    def run(self) -> Recovered:
        names = self._disk.list(self._directory)
        for name in [name for name in names if name.endswith(NEW_SUFFIX)]:
            self._disk.remove(self._directory / name)
            del names[name]
        journals = self._read_journals(names)
        state = self._state
        if state is None:
            state = ReplicatedState()
            self._guessed = True
        segments = self._read_segments(names, state, journals)
        return self._assemble(state, journals, segments)

    # -- journals

    def _read_journals(self, names: dict[str, int]) -> list[Journal]:
        found: list[Journal] = []
        for generation, bad in names_of.journals(names):
            name = sealed_name(generation)
            if bad:
                name += BAD_SUFFIX
                self._lose_journal(generation)
                path = str(self._directory / name)
                self._lost.append(CorruptionReport(path, 0, names[name], "no readable record"))
                continue
            journal = self._read_journal(name, names[name], generation)
            if journal is not None:
                found.append(journal)
        if CURRENT_NAME in names:
            journal = self._read_journal(CURRENT_NAME, names[CURRENT_NAME], None)
            if journal is not None:
                found.append(journal)
        self._corruptions += self._lost
        return found

    def _read_journal(self, name: str, size: int, generation: int | None) -> Journal | None:
        """`generation` is None for the current one."""
        path = self._directory / name
        records = self._open_journal(path, size)
        found = self._generation_of(records, path, size)
        before = self._generation
        if generation is None:
            found = before + 1 if found is None else found
            misplaced = found <= before
        else:
            found = generation if found is None else found
            misplaced = found != generation
        if not records.marker or misplaced:
            number = before + 1 if generation is None else generation
            what = f"this is journal {found}" if records.marker else records.unreadable
            self._set_aside(path, size, what, sealed_name(number) + BAD_SUFFIX)
            self._lose_journal(number)
            return None
        self._generation = max(before, found)
        self._generations.add(found)
        file = QueueFile(path, found, records.marker, end=0, synced=0, oldest_generation=found)
        journal = Journal(file)
        result: Scan[None] = records.scan(
            lambda header, payload: self._visit(journal, header, payload)
        )
        end = file.end = file.synced = file.found = journal.held.begin(result.end)
        torn_bytes = result.torn_bytes + result.end - end
        self._torn_bytes += torn_bytes
        self._torn_journal |= torn_bytes > 0
        self._corruptions += result.corruptions
        if not journal.loaded:
            # It was whole once (see `journal`), so it is not the first write that was cut short.
            self._damaged = True
            what = "no readable checkpoint"
            length = size - FILE_HEADER.size
            self._corruptions.append(CorruptionReport(str(path), FILE_HEADER.size, length, what))
        return journal

    def _open_journal(self, path: Path, size: int) -> RecordFile:
        def read(offset: int, length: int) -> bytes:
            return self._disk.read(path, offset, length)

        return RecordFile(str(path), JOURNAL, size, read, self._owner)

    def _generation_of(self, records: RecordFile, path: Path, size: int) -> int | None:
        """The number in the header, or in a checkpoint where the header is damaged."""
        if records.number is not None or not records.marker:
            return records.number

        def visit(header: Header, payload: bytes) -> int | None:
            if header.kind != RecordKind.CHECKPOINT:
                return None
            return journal_scan.decode_checkpoint(header, payload).generation

        found = self._open_journal(path, size).scan(visit)
        return found.records[0][1] if found.records else None

    def _visit(self, journal: Journal, header: Header, payload: bytes) -> None:
        if header.kind == RecordKind.CHECKPOINT:
            if not journal.loaded:
                self._load(journal_scan.decode_checkpoint(header, payload))
                journal.loaded = True
            return
        said = journal_scan.decode(header, payload, journal.file.number)
        for counting in journal.held.add(header, said):
            self._follow(*counting)
        # The positions of those that don't count are beyond the last one of the state.
        journal.bodies += said.bodies
        if header.kind in journal_scan.FILLS:
            self._filled.update((body.first, body.last) for body in said.bodies)

    def _load(self, loaded: Checkpoint) -> None:
        self._state = loaded.state
        self._cuts = loaded.cuts
        self._damaged = loaded.damaged
        self._guessed = False
        self._removed.clear()
        self._lost.clear()

    def _lose_journal(self, generation: int) -> None:
        # A later one's checkpoint makes up for it.
        self._damaged = True
        self._generation = max(self._generation, generation)
        self._generations.add(generation)

    def _follow(self, header: Header, said: Said) -> None:
        """Applies one record to the state, however much is missing before it."""
        state = self._state
        if state is None:
            state = self._state = ReplicatedState()
            self._damaged = self._guessed = True
        kind = header.kind
        if kind in journal_scan.OPS or kind == RecordKind.EPOCH:
            follows = header.number - 1
        elif kind in journal_scan.FILLS:
            follows = header.epoch
        else:
            follows = header.number
        if follows != state.last_number:
            self._damaged = True
        if follows > state.last_number:
            state.last_number = follows
        if kind not in journal_scan.FILLS and kind != RecordKind.END and header.epoch > state.epoch:
            state.begin_epoch(header.epoch)
        if said.next_position is not None and said.next_position > state.next_position:
            self._lost_positions(state, said.next_position)
        op = said.op
        if op is None or follows < state.last_number:
            return
        if isinstance(op, Outline) and op.first_position != state.next_position:
            if op.first_position < state.next_position:
                self._damaged = True
                state.last_number = header.number
                return
            self._lost_positions(state, op.first_position)
        if self._guessed and isinstance(op, Remove):
            self._removed.update(op.ranges)
        elif self._guessed and isinstance(op, Outline):
            # Positions may be removed before there is anything at them.
            self._removed.remove(op.first_position, op.last_position)
        state.apply(header.number, op)

    def _lost_positions(self, state: ReplicatedState, next_position: int) -> None:
        """Publishes were lost of what is below `next_position`."""
        self._damaged = True
        if not self._guessed:
            state.live.add(state.next_position, next_position - 1)
        state.next_position = next_position

    # -- segments

    def _read_segments(
        self, names: dict[str, int], state: ReplicatedState, journals: list[Journal]
    ) -> dict[int, QueueFile]:
        """Also makes the state up, if there is none, and drops what is transient of it."""
        segments: dict[int, QueueFile] = {}
        if not self._guessed:
            _drop_transient(state)
        for number in names_of.segments(names):
            opened = self._open_segment(number, names[segment_name(number)])
            if opened is None:
                continue
            file, bodies = opened
            segments[number] = file
            if self._guessed:
                self._guess(state, bodies)
            else:
                self._sum(state, file, bodies)
        if self._guessed:
            for journal in journals:
                self._guess(state, journal.bodies)
            for first, last in self._removed:
                state.live.remove(first, last)
                state.transient.remove(first, last)
            # Nothing at all, or only what the creation of the queue left half done.
            lost = bool(state.next_position or self._corruptions)
            self._damaged |= lost or any(name.endswith(BAD_SUFFIX) for name in names)
            _drop_transient(state)
            for file in segments.values():
                self._sum(state, file, self._bodies_of(file))
        return segments

    def _open_segment(self, number: int, size: int) -> tuple[QueueFile, list[Body]] | None:
        path = self._directory / segment_name(number)
        found = scan_segment(self._disk, path, number, size, journals=self._generations)
        self._corruptions += found.corruptions
        if not found.marker or (size > FILE_HEADER.size and not found.bodies):
            # It was whole once, as a journal was.
            self._set_aside(path, size, found.unreadable, path.name + BAD_SUFFIX)
            return None
        self._torn_bytes += found.torn_bytes
        if found.torn_bytes:
            found.end = self._cut_file(path, number, found)
        generations = [body.generation for body in found.bodies]
        end = found.end
        file = QueueFile(path, number, found.marker, end=end, synced=end, found=end)
        file.oldest_generation = min(generations, default=0)
        self._generation = max(self._generation, *generations, 0)
        return file, found.bodies

    def _bodies_of(self, file: QueueFile) -> list[Body]:
        """Again, of a segment that was opened."""
        end = file.end
        return scan_segment(self._disk, file.path, file.number, end, proven=end).bodies

    def _guess(self, state: ReplicatedState, bodies: list[Body]) -> None:
        """Without a checkpoint: all bodies found are live, unless a remove is known."""
        for body in bodies:
            state.live.add(body.first, body.last)
            if body.transient:
                state.transient.add(body.first, body.last)
            state.next_position = max(state.next_position, body.last + 1)

    def _sum(self, state: ReplicatedState, file: QueueFile, bodies: list[Body]) -> None:
        """What recovery chooses of a segment, as a delta; refers to what is stored of it."""
        delta = Delta(file, 0, 0, False)
        self._beyond = max((self._beyond, *(body.last for body in bodies)))
        mine = lasting(bodies, file.found)
        for choice in tables.choose(mine, state.live, self._filled, self._covered, self._cuts):
            if self._drop_lost(choice, state.live):
                continue
            delta.live += choice[3]
            delta.live_bytes += tables.live_bytes(choice, state.live)
            location = choice[0].location
            if location is not None:
                delta.stored = True
                self._refer(location)
        if delta.live:
            self._deltas[file.number] = delta

    def _drop_lost(self, choice: Choice, live: RangeSet) -> bool:
        """Whether the body is not in the message store: its positions are missing then.

        It was released with its message, and a state was installed that has this again. The
        power was cut before the body was filled in. Else it is damage.
        """
        body, first, last, _ = choice
        report = None if body.location is None else self._is_lost(body.location)
        if report is None:
            return False
        if not any(cut.generation > body.generation for cut in self._cuts):
            self._corruptions.append(report)
        parts = live.intersection(first, last)
        self._covered.subtract(parts)
        self._filled.update(parts)
        return True

    def _cut_file(self, path: Path, number: int, found: SegmentScan) -> int:
        """Cuts a torn tail off, so that nothing of it is behind what is written next.

        Where there is damage before it, known or found only when it is read, a record takes its
        place that says what the tail has shown: that the bytes before were durable. Returns where
        the file ends.
        """
        end = found.end
        new = path.with_name(path.name + NEW_SUFFIX)
        for offset in range(0, end, _COPY_BYTES):
            size = min(_COPY_BYTES, end - offset)
            self._disk.write(new, offset, [self._disk.read(path, offset, size)])
        alone = scan_segment(self._disk, path, number, end, journals=self._generations)
        if found.corruptions or alone.torn_bytes:
            mark = record_header(found.marker, end, RecordKind.END, b"", synced=end)
            self._disk.write(new, end, [mark])
            end += len(mark)
        self._disk.sync(new)
        self._disk.rename(new, path)
        self._disk.sync(self._directory)
        return end

    def _set_aside(self, path: Path, size: int, what: str, name: str) -> None:
        self._corruptions.append(CorruptionReport(str(path), 0, size, what))
        self._disk.rename(path, path.with_name(name))
        self._disk.sync(self._directory)

    # -- the sum

    def _assemble(
        self, state: ReplicatedState, journals: list[Journal], segments: dict[int, QueueFile]
    ) -> Recovered:
        entries: list[IndexEntry] = []
        mixed: set[int] = set()
        body_bytes = sum(delta.live_bytes for delta in self._deltas.values())
        # What was filled in again counts before what was there.
        for journal in reversed(journals) if self._filled else journals:
            self._beyond = max((self._beyond, *(body.last for body in journal.bodies)))
            mine = lasting(journal.bodies, journal.file.found)
            chosen = tables.choose(mine, state.live, RangeSet(), self._covered, self._cuts)
            chosen = [choice for choice in chosen if not self._drop_lost(choice, state.live)]
            body_bytes += sum(tables.live_bytes(choice, state.live) for choice in chosen)
            journal.file.entries = entries_of(chosen, journal.file)
            for entry in journal.file.entries:
                low, high = entry.first // SEGMENT_POSITIONS, entry.last // SEGMENT_POSITIONS
                mixed.update(range(low, high + 1))
                if entry.location is not None:
                    self._refer(entry.location)
            entries += journal.file.entries
        index = RunIndex()
        for number, delta in self._deltas.items():
            if number not in mixed:
                index.put(delta)
                continue
            mine = lasting(self._bodies_of(delta.segment), delta.segment.found)
            chosen = tables.choose(mine, state.live, self._filled, RangeSet(), self._cuts)
            entries += entries_of(chosen, delta.segment)
        for entry in sorted(entries, key=lambda entry: entry.first):
            index.add(entry)
        missing = state.live.copy()
        missing.subtract(self._covered)
        generation = self._generation + 1
        cuts = self._cuts
        if self._torn_journal or self._beyond >= state.next_position:
            cuts = checkpoint.add_cut(cuts, Cut(generation, state.next_position))
        files = [journal.file for journal in journals]
        current = files.pop() if files and files[-1].path.name == CURRENT_NAME else None
        return Recovered(
            state=state,
            missing=missing,
            index=index,
            body_bytes=body_bytes,
            current=current,
            sealed=files,
            segments=segments,
            next_generation=generation,
            cuts=cuts,
            damaged=self._damaged,
            corruptions=self._corruptions,
            torn_bytes=self._torn_bytes,
        )


def _drop_transient(state: ReplicatedState) -> None:
    for first, last in state.transient:
        state.live.remove(first, last)
        state.redelivered.remove(first, last)
    state.transient.clear()
