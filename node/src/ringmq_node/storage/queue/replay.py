"""The state of a queue, from its journals, after any kind of stop.

The newest valid checkpoint is the state, and the ops behind it are applied to it. Journals are
read whole, oldest first, but none of their bodies is kept.

Each record says which op it follows, so a gap in the numbers shows that records were lost. Behind
a gap the state is a guess, on the safe side: positions whose publish was lost are live and
missing, and a lost ack leaves its message live. `damaged` is set then, and the checkpoints that
follow carry it until the queue is installed anew from the ring.

Without any valid checkpoint (both copies of the only one were hit) there is no state to begin
with. Then `guessed` is set, and recovery makes the state up from the bodies that it finds and the
removes that are left.

A journal that can't be read is renamed to `G.jif.bad`. Its generation stays in the name, so that
later starts know of the loss too, until there is a later journal: its checkpoint carries
`damaged`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.ops import Outline, Remove
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format import journal_records, queue_folder
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.formats import JOURNAL
from ringmq_node.storage.format.journal_records import JournalRecord, Pending
from ringmq_node.storage.format.queue_folder import BAD_SUFFIX, CURRENT_JOURNAL, sealed_name
from ringmq_node.storage.format.record_file import RecordFile, Scan
from ringmq_node.storage.format.records import FILE_HEADER, Header, RecordKind, owner_of
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.queue.entries import QueueFile


@dataclass(slots=True)
class FoundJournal:
    """A readable journal, and the bodies that are in it."""

    file: QueueFile
    bodies: list[BodyRange] = field(default_factory=list)
    # Whether its checkpoint, one of the two copies, was readable.
    has_checkpoint: bool = False
    pending: Pending = field(default_factory=Pending)


class Replay:
    """`read` is called once; the attributes then hold the outcome."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner_of(directory)
        self.state = ReplicatedState()
        self.cuts: tuple[Cut, ...] = ()
        self.damaged = False
        # No checkpoint was found: `state` holds the ops that are left, at best.
        self.guessed = True
        # While guessing: the positions that the removes which are left have removed.
        self.removed = RangeSet()
        self.corruptions: list[CorruptionReport] = []
        self.torn_bytes = 0
        # A torn tail stays in its file when the journal is sealed. A cut makes void what it has.
        self.has_torn_journal = False
        # Bodies that were filled in again. A segment may still have the older ones at these
        # positions, which were damaged or whose record in the message store was released.
        self.filled = RangeSet()
        # The latest generation of which there was any sign; and the generations of which there is
        # a journal, readable or not.
        self.generation = 0
        self.generations: set[int] = set()
        # Journals that an earlier start has put aside, as long as no later checkpoint was read.
        self._lost: list[CorruptionReport] = []

    def read(self, names: dict[str, int]) -> list[FoundJournal]:
        """Reads the journals among the files of the folder, oldest first."""
        found: list[FoundJournal] = []
        for generation, bad in queue_folder.sealed_journals(names):
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
        if CURRENT_JOURNAL in names:
            journal = self._read_journal(CURRENT_JOURNAL, names[CURRENT_JOURNAL], None)
            if journal is not None:
                found.append(journal)
        self.corruptions += self._lost
        return found

    def set_aside(self, path: Path, size: int, what: str, name: str) -> None:
        """Renames a file that can't be read, and reports it."""
        self.corruptions.append(CorruptionReport(str(path), 0, size, what))
        self._disk.rename(path, path.with_name(name))
        self._disk.sync(self._directory)

    # -- one journal

    def _read_journal(self, name: str, size: int, generation: int | None) -> FoundJournal | None:
        """`generation` is the one in the file's name; the current journal has none there."""
        path = self._directory / name
        records = self._open_journal(path, size)
        found = self._generation_of(records, path, size)
        before = self.generation
        if generation is None:
            found = before + 1 if found is None else found
            misplaced = found <= before
        else:
            found = generation if found is None else found
            misplaced = found != generation
        if not records.marker or misplaced:
            number = before + 1 if generation is None else generation
            what = f"this is journal {found}" if records.marker else records.unreadable
            self.set_aside(path, size, what, sealed_name(number) + BAD_SUFFIX)
            self._lose_journal(number)
            return None
        self.generation = max(before, found)
        self.generations.add(found)
        file = QueueFile(path, found, records.marker, end=0, synced=0, oldest_generation=found)
        journal = FoundJournal(file)
        result: Scan[None] = records.scan(
            lambda header, payload: self._visit(journal, header, payload)
        )
        end = file.end = file.synced = file.found = journal.pending.end_of_log(result.end)
        torn_bytes = result.torn_bytes + result.end - end
        self.torn_bytes += torn_bytes
        self.has_torn_journal |= torn_bytes > 0
        self.corruptions += result.corruptions
        if not journal.has_checkpoint:
            # A journal gets its name only when its checkpoint is synced (see `journal`), so no
            # crash has cut this write short: the checkpoint was durable, and is damaged.
            self.damaged = True
            what = "no readable checkpoint"
            length = size - FILE_HEADER.size
            self.corruptions.append(CorruptionReport(str(path), FILE_HEADER.size, length, what))
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
            return journal_records.decode_checkpoint(header, payload).generation

        found = self._open_journal(path, size).scan(visit)
        return found.records[0][1] if found.records else None

    def _lose_journal(self, generation: int) -> None:
        # Until a later journal's checkpoint is loaded, which makes up for the loss.
        self.damaged = True
        self.generation = max(self.generation, generation)
        self.generations.add(generation)

    # -- one record

    def _visit(self, journal: FoundJournal, header: Header, payload: bytes) -> None:
        if header.kind == RecordKind.CHECKPOINT:
            # A journal begins with two equal copies: the second is for when the first is damaged.
            if not journal.has_checkpoint:
                self._load(journal_records.decode_checkpoint(header, payload))
                journal.has_checkpoint = True
            return
        record = journal_records.decode(header, payload, journal.file.number)
        for counting in journal.pending.add(header, record):
            self._follow(*counting)
        # Also of records that turn out not to count: their positions are beyond the last one of
        # the state, so recovery chooses none of them.
        journal.bodies += record.bodies
        if header.kind in journal_records.FILLS:
            self.filled.update((body.first, body.last) for body in record.bodies)

    def _load(self, loaded: Checkpoint) -> None:
        self.state = loaded.state
        self.cuts = loaded.cuts
        self.damaged = loaded.damaged
        self.guessed = False
        self.removed.clear()
        self._lost.clear()

    def _follow(self, header: Header, record: JournalRecord) -> None:
        """Applies one record to the state, whatever is missing before it."""
        state = self.state
        if self.guessed:
            # The record is in a journal of which no checkpoint was readable, nor any before.
            self.damaged = True
        follows = _follows(header)
        if follows != state.last_number:
            self.damaged = True
        if follows > state.last_number:
            state.last_number = follows
        if _has_epoch(header) and header.epoch > state.epoch:
            state.begin_epoch(header.epoch)
        if record.next_position is not None and record.next_position > state.next_position:
            self._lose_positions(record.next_position)
        op = record.op
        if op is None or follows < state.last_number:
            return
        if isinstance(op, Outline) and op.first_position != state.next_position:
            if op.first_position < state.next_position:
                self.damaged = True
                state.last_number = header.number
                return
            self._lose_positions(op.first_position)
        if self.guessed and isinstance(op, Remove):
            self.removed.update(op.ranges)
        elif self.guessed and isinstance(op, Outline):
            # A remove may have named these positions before anything was published at them.
            self.removed.remove(op.first_position, op.last_position)
        state.apply(header.number, op)

    def _lose_positions(self, next_position: int) -> None:
        """The publishes of the positions from the state's next one to `next_position` were lost."""
        self.damaged = True
        if not self.guessed:
            self.state.live.add(self.state.next_position, next_position - 1)
        self.state.next_position = next_position


def _follows(header: Header) -> int:
    """The number of the op that a record follows."""
    if header.kind in journal_records.OPS or header.kind == RecordKind.EPOCH:
        return header.number - 1
    if header.kind in journal_records.FILLS:
        return header.epoch
    return header.number


def _has_epoch(header: Header) -> bool:
    """Whether the record's epoch field is an epoch."""
    return header.kind not in journal_records.FILLS and header.kind != RecordKind.END
