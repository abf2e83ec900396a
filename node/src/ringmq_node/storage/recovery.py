"""What a queue's folder says after any kind of stop.

In order: the journals, by generation, then the segments.

* The newest valid checkpoint is the state; the ops behind it are applied to it.
* Bodies are taken from wherever they are valid and live. One that a cut (see
  `checkpoint`) has made void doesn't count. Segments come first, so that a sealed
  journal is needed no longer than it has to be.
* Live positions without a body are `missing`.
* Transient messages are dropped: nobody was promised that they come back.

Lost records are told by the numbers: each record says which op it follows, so a
gap is seen. Behind a gap the state is a guess, on the safe side: `damaged` is set and
stays until the queue is installed anew from the ring; positions whose publish was
lost are live and missing; a lost ack leaves its message live.

Without any valid checkpoint (both copies of the only one hit) the state is made up
from the bodies found and the ops left, and is `damaged` too.

Nothing is repaired in place. The caller begins a new journal with the state found, and
makes sure before that what it was found in is durable: a process that was killed
leaves bytes that can be read and are not on the disk yet. Running it twice, or again
after a crash half way, gives the same.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ringmq.ranges import RangeSet
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.queue.state import QueueState
from ringmq_node.storage import checkpoint
from ringmq_node.storage.checkpoint import Checkpoint, Cut
from ringmq_node.storage.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.index import DataFile, Entry, RunIndex, live_count
from ringmq_node.storage.journal import CURRENT_NAME, NEW_SUFFIX
from ringmq_node.storage.records import (
    END_PAYLOAD,
    FILE_HEADER,
    FLAG_TRANSIENT,
    JOURNAL_MAGIC,
    SEGMENT_MAGIC,
    Header,
    Kind,
    Scan,
    scan,
)
from ringmq_node.storage.segments import body_of, segment_name

_JOURNAL = re.compile(r"(\d+)\.jif")
_SEGMENT = re.compile(r"(\d+)\.idx")
_COPY_BYTES = 4 << 20
# Files that can't be read at all are kept under this suffix for whoever wants to look.
BAD_SUFFIX = ".bad"

T = TypeVar("T")


@dataclass(slots=True)
class Recovered:
    """A queue as found. `current` is the journal to be sealed; it may be None after a crash."""

    state: QueueState
    missing: RangeSet
    index: RunIndex
    body_bytes: int
    current: DataFile | None
    sealed: list[DataFile]
    segments: dict[int, DataFile]
    next_generation: int
    cuts: tuple[Cut, ...]
    damaged: bool
    corruptions: list[CorruptionReport]
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    """What a journal record says; all None for kinds that say it in their header."""

    # Of an end record.
    next_position: int | None = None

    checkpoint: Checkpoint | None = None
    op: Op | None = None
    sizes: array[int] | None = None


def recover(disk: Disk, directory: Path) -> Recovered:
    """Reads everything in `directory`, and makes it durable. Raises `OSError`."""
    return _Recovery(disk, directory).run()


class _Recovery:
    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._state: QueueState | None = None
        self._guessed = False
        self._removed = RangeSet()
        self._damaged = False
        self._cuts: tuple[Cut, ...] = ()
        self._bodies: list[Entry] = []
        self._corruptions: list[CorruptionReport] = []
        self._torn_bytes = 0
        # A torn tail stays in the file when it is sealed: what is in it is made void by a cut.
        self._torn_journal = False
        self._generation = 0

    def run(self) -> Recovered:
        names = self._disk.list(self._directory)
        for name in names:
            if name.endswith(NEW_SUFFIX):
                self._disk.remove(self._directory / name)
        sealed: list[DataFile] = []
        for generation in _numbers(_JOURNAL, names):
            file = self._read_journal(f"{generation}.jif", names, generation)
            if file is not None:
                sealed.append(file)
        current = None
        if CURRENT_NAME in names:
            current = self._read_journal(CURRENT_NAME, names, None)
        journal_bodies, self._bodies = self._bodies, []
        segments = {
            number: file
            for number in _numbers(_SEGMENT, names)
            if (file := self._read_segment(number, names)) is not None
        }
        self._bodies += journal_bodies
        for file in (*sealed, *segments.values(), *([current] if current else [])):
            self._disk.sync(file.path)
        self._disk.sync(self._directory)
        return self._assemble(current, sealed, segments)

    # -- journals

    def _read_journal(
        self, name: str, names: dict[str, int], generation: int | None
    ) -> DataFile | None:
        """`generation` is None for the current one."""
        path = self._directory / name
        found = self._scan(path, JOURNAL_MAGIC, names[name], _visit_journal)
        if not found.marker:
            self._set_aside(path, names[name])
            # Older ones are only wanted for bodies.
            self._damaged |= generation is None
            return None
        generation = generation or _generation_of(found) or self._generation + 1
        self._generation = max(self._generation, generation)
        self._torn_bytes += found.torn_bytes
        self._torn_journal |= found.torn_bytes > 0
        file = DataFile(
            path,
            generation,
            found.marker,
            end=found.end,
            synced=found.end,
            oldest_generation=generation,
        )
        loaded = False
        for header, record in found.records:
            if record.checkpoint is not None:
                if not loaded:
                    self._load(record.checkpoint)
                loaded = True
                continue
            self._follow(header, record)
            if record.sizes is not None:
                first = (
                    record.op.first_position if isinstance(record.op, Publish) else header.number
                )
                self._add_body(file, header, first, generation, record.sizes)
        if not loaded:
            # It was whole once (see `journal`), so it is not the first write that was cut short.
            self._damaged = True
            size = names[name] - FILE_HEADER.size
            what = "no readable checkpoint"
            self._corruptions.append(CorruptionReport(str(path), FILE_HEADER.size, size, what))
        return file

    def _load(self, loaded: Checkpoint) -> None:
        self._state = loaded.state
        self._cuts = loaded.cuts
        self._damaged = loaded.damaged
        self._guessed = False
        self._removed.clear()

    def _follow(self, header: Header, record: _Record) -> None:
        """Applies one record to the state, however much is missing before it."""
        state = self._state
        if state is None:
            state = self._state = QueueState()
            self._damaged = self._guessed = True
        follows = {
            Kind.OP: header.number - 1,
            Kind.EPOCH: header.number - 1,
            Kind.FILL: header.epoch,
            Kind.END: header.number,
        }.get(Kind(header.kind), state.last_number)
        if follows != state.last_number:
            self._damaged = True
        if follows > state.last_number:
            state.last_number = follows
        if header.kind in (Kind.OP, Kind.EPOCH) and header.epoch > state.epoch:
            state.begin_epoch(header.epoch)
        if record.next_position is not None and record.next_position > state.next_position:
            self._lost_positions(state, record.next_position)
        op = record.op
        if op is None or follows < state.last_number:
            return
        if isinstance(op, Publish) and op.first_position != state.next_position:
            if op.first_position < state.next_position:
                self._damaged = True
                state.last_number = header.number
                return
            self._lost_positions(state, op.first_position)
        if isinstance(op, Remove) and self._guessed:
            self._removed.update(op.ranges)
        state.apply(header.number, op)

    def _lost_positions(self, state: QueueState, next_position: int) -> None:
        """Publishes were lost of what is below `next_position`."""
        self._damaged = True
        if not self._guessed:
            state.live.add(state.next_position, next_position - 1)
        state.next_position = next_position

    # -- segments

    def _read_segment(self, number: int, names: dict[str, int]) -> DataFile | None:
        name = segment_name(number)
        path = self._directory / name
        found = self._scan(path, SEGMENT_MAGIC, names[name], _visit_segment)
        if not found.marker:
            self._set_aside(path, names[name])
            return None
        self._torn_bytes += found.torn_bytes
        if found.torn_bytes:
            self._cut_file(path, found.end)
        file = DataFile(path, number, found.marker, end=found.end, synced=found.end)
        for header, sizes in found.records:
            self._add_body(file, header, header.number, header.epoch, sizes)
        file.oldest_generation = min((header.epoch for header, _ in found.records), default=0)
        return file

    def _cut_file(self, path: Path, end: int) -> None:
        """Cuts a torn tail off, so that nothing of it is behind what is written next."""
        new = path.with_name(path.name + NEW_SUFFIX)
        for offset in range(0, end, _COPY_BYTES):
            size = min(_COPY_BYTES, end - offset)
            self._disk.write(new, offset, [self._disk.read(path, offset, size)])
        self._disk.sync(new)
        self._disk.rename(new, path)
        self._disk.sync(self._directory)

    def _set_aside(self, path: Path, size: int) -> None:
        self._corruptions.append(CorruptionReport(str(path), 0, size, "no readable record"))
        self._disk.rename(path, path.with_name(path.name + BAD_SUFFIX))

    # -- the sum

    def _assemble(
        self, current: DataFile | None, sealed: list[DataFile], segments: dict[int, DataFile]
    ) -> Recovered:
        state = self._state
        if state is None:
            # Nothing at all, or only what the creation of the queue left half done.
            self._damaged |= bool(self._bodies or self._corruptions)
            self._guessed = self._damaged
            state = QueueState()
        if self._guessed:
            self._guess(state)
        for first, last in state.transient:
            state.live.remove(first, last)
            state.redelivered.remove(first, last)
        state.transient.clear()
        index = RunIndex()
        covered, entries = self._choose(state)
        body_bytes = 0
        for entry in sorted(entries, key=lambda entry: entry.first):
            index.add(entry)
            if entry.file is not None and entry.file.path.suffix == ".jif":
                entry.file.entries.append(entry)
            body_bytes += sum(
                entry.bytes_of(a, b) for a, b in state.live.intersection(entry.first, entry.last)
            )
        missing = state.live.copy()
        missing.subtract(covered)
        generation = self._generation + 1
        cuts = self._cuts
        if self._torn_journal:
            cuts = checkpoint.add_cut(cuts, Cut(generation, state.next_position))
        return Recovered(
            state=state,
            missing=missing,
            index=index,
            body_bytes=body_bytes,
            current=current,
            sealed=sealed,
            segments=segments,
            next_generation=generation,
            cuts=cuts,
            damaged=self._damaged,
            corruptions=self._corruptions,
            torn_bytes=self._torn_bytes,
        )

    def _guess(self, state: QueueState) -> None:
        """Without a checkpoint: all bodies found are live, unless a remove is known."""
        for body in self._bodies:
            state.live.add(body.first, body.last)
            if body.transient:
                state.transient.add(body.first, body.last)
            state.next_position = max(state.next_position, body.last + 1)
        for first, last in self._removed:
            state.live.remove(first, last)
            state.transient.remove(first, last)

    def _choose(self, state: QueueState) -> tuple[RangeSet, list[Entry]]:
        """Entries for all live positions that have a valid body, each once."""
        covered = RangeSet()
        entries: list[Entry] = []
        for body in self._bodies:
            limit = checkpoint.keep_below(self._cuts, body.generation)
            last = body.last if limit is None else min(body.last, limit - 1)
            if last < body.first:
                continue
            elsewhere = covered.intersection(body.first, last)
            if last == body.last and not elsewhere and state.live.contains_all(body.first, last):
                # All of it is wanted, as nearly always.
                body.live = body.count
                entries.append(body)
                covered.add(body.first, last)
                continue
            fresh = RangeSet(state.live.intersection(body.first, last))
            fresh.subtract(elsewhere)
            if not fresh:
                continue
            # Dead positions within are carried along, those that another entry has are not.
            if covered.intersection(fresh.first, fresh.last):
                parts = [*fresh]
            else:
                parts = [(fresh.first, fresh.last)]
            entries += [body.part(a, b, live_count(fresh, a, b)) for a, b in parts]
            covered.update(fresh)
        return covered, entries

    # -- files

    def _add_body(
        self, file: DataFile, header: Header, first: int, generation: int, sizes: array[int]
    ) -> None:
        self._bodies.append(
            Entry(
                first=first,
                last=first + len(sizes) - 1,
                start=0,
                live=0,
                transient=bool(header.flags & FLAG_TRANSIENT),
                generation=generation,
                file=file,
                offset=header.offset,
                length=header.end - header.offset,
                body_bytes=sum(sizes),
                block=None,
                sizes=sizes,
                durable=True,
            )
        )

    def _scan(
        self, path: Path, magic: bytes, size: int, visit: Callable[[Header, bytes], T]
    ) -> Scan[T]:
        def read(offset: int, length: int) -> bytes:
            return self._disk.read(path, offset, length)

        found = scan(str(path), magic, size, read, visit)
        self._corruptions += found.corruptions
        return found


def _visit_journal(header: Header, payload: bytes) -> _Record:
    if header.kind == Kind.CHECKPOINT:
        return _Record(checkpoint=checkpoint.decode(payload))
    if header.kind == Kind.ENTRY:
        raise ValueError("record of a segment in a journal")
    if header.kind == Kind.END:
        if len(payload) != END_PAYLOAD.size:
            raise ValueError(f"end record with {len(payload)} bytes")
        return _Record(next_position=END_PAYLOAD.unpack(payload)[0])
    block, op = body_of(header.kind, payload)
    if block is None:
        return _Record(op=op)
    return _Record(op=op, sizes=block.body_sizes())


def _visit_segment(header: Header, payload: bytes) -> array[int]:
    block, _ = body_of(header.kind, payload)
    if block is None or header.kind != Kind.ENTRY:
        raise ValueError(f"record of kind {header.kind} in a segment")
    return block.body_sizes()


def _generation_of(found: Scan[_Record]) -> int | None:
    """The number in the header, or in the checkpoint where the header is damaged."""
    if found.number is not None:
        return found.number
    checkpoints = (record.checkpoint for _, record in found.records)
    return next((found.generation for found in checkpoints if found is not None), None)


def _numbers(pattern: re.Pattern[str], names: dict[str, int]) -> list[int]:
    matches = (pattern.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match is not None)
