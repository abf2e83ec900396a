"""The writing side of one queue: how ops and bodies get into its journal, and wait for a round.

A body that is small goes into the op's own record (*embedded*). A large one goes into the message
store, and the record refers to it (*stored*). A transient one goes nowhere: the record only says
that it was there (*hollow*).

What has gathered since the last round waits in buffers. `elide` takes back the bodies of publishes
that were removed before their round began; `take` gives the rest to the round.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish
from ringmq_node.storage.format import references
from ringmq_node.storage.format.checkpoint import Checkpoint
from ringmq_node.storage.format.journal_records import HOLLOW_FILL
from ringmq_node.storage.format.records import (
    END_PAYLOAD,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    RecordKind,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.limits import Written
from ringmq_node.storage.messages import NO_RECORD, key_of
from ringmq_node.storage.queue.elision import Elision, Gathered
from ringmq_node.storage.queue.entries import IndexEntry, LoggedJournal, QueueFile
from ringmq_node.storage.queue.journal import JournalWriter, Piece
from ringmq_node.storage.queue.parts import SharedParts

# Dead entries that a journal's list may have beside as many as it has living ones. Many queues with
# few messages each hold so many each.
_DEAD_MAX = 64


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds of a record whose bodies are in it, in the message store, or nowhere on disk."""

    embedded: RecordKind
    stored: RecordKind
    hollow: RecordKind


_OP = _Kinds(RecordKind.OP, RecordKind.STORED_OP, RecordKind.HOLLOW_OP)
_FILL = _Kinds(RecordKind.FILL, RecordKind.STORED_FILL, RecordKind.HOLLOW_FILL)


class QueueLog:
    """Of one queue. On the event loop's thread; nothing here waits for the disk."""

    def __init__(
        self,
        directory: Path,
        shared: SharedParts,
        written: Written,
        start: Checkpoint,
        current: LoggedJournal | None,
        *,
        durable: bool,
    ) -> None:
        """Begins a journal with `start`. It takes the place of `current`, which a start has found.
        The journal of a queue that isn't `durable` is not written."""
        self._shared = shared
        self._written = written
        self._durable = durable
        seals = None if current is None else current.file
        self._journal = JournalWriter(directory, start, seals, written=durable)
        # Entries that were logged in the current journal, dead ones too.
        self._logged: list[IndexEntry] = []
        # Journals whose successor is not durable yet, oldest first.
        self._sealing: list[LoggedJournal] = [] if current is None else [current]
        # Persistent entries that were logged since the last round began.
        self._unsynced: list[IndexEntry] = []
        self._elision = Elision()
        # What this queue has of `Counters.gathered_bytes`.
        self.gathered_bytes = 0
        # Of these, without bodies that another queue had put into the message store before: what a
        # round has to write for it. And such bodies of the op that comes next.
        self.new_bytes = 0
        self._known_bytes = 0
        # The key of the last record of the message store that gathered records refer to, or
        # `NO_RECORD`. No round may write them before that one.
        self.needs = NO_RECORD

    @property
    def file(self) -> QueueFile:
        """The current journal."""
        return self._journal.file

    @property
    def has_pending(self) -> bool:
        """Whether there is anything for the next round to write."""
        return self._journal.has_pending

    @property
    def entries(self) -> int:
        """How many messages and acks the current journal has."""
        return self._journal.entries

    @property
    def logged_bytes(self) -> int:
        """The bytes of the current journal, not counting the state that it begins with."""
        return self._journal.size_bytes - self._journal.start_bytes

    @property
    def is_full(self) -> bool:
        """Whether the current journal should be sealed."""
        limits, journal = self._shared.limits, self._journal
        if journal.entries > limits.journal_entries_max:
            return True
        size = journal.file.end
        # A state of many ranges makes the beginning of a journal large. Without this, each op would
        # begin a journal of its own once the state alone is above the limit.
        return size > limits.journal_bytes_max and size > journal.start_bytes * 3 // 2

    def files(self) -> list[QueueFile]:
        """The current journal and those that are being sealed."""
        return [*(each.file for each in self._sealing), self._journal.file]

    def gathered(self, size_bytes: int) -> None:
        """So many bytes more wait for the next round."""
        self.gathered_bytes += size_bytes
        known, self._known_bytes = self._known_bytes, 0
        self.new_bytes += size_bytes - known
        self._shared.counters.gathered_bytes += size_bytes

    def drop_gathered(self) -> int:
        """They wait no more, nor do `new_bytes`; returns how many they were."""
        size_bytes, self.gathered_bytes = self.gathered_bytes, 0
        self.new_bytes = 0
        self._shared.counters.gathered_bytes -= size_bytes
        return size_bytes

    def take_needs(self) -> int:
        """`needs` of what was taken; what comes next needs nothing yet."""
        needs, self.needs = self.needs, NO_RECORD
        return needs

    # -- records

    def append_epoch(self, number: int, epoch: int) -> None:
        """The ops from `number` on are of `epoch`."""
        self._journal.append(RecordKind.EPOCH, b"", flags=0, number=number, epoch=epoch)

    def append_op(self, number: int, epoch: int, payload: bytes) -> None:
        """An op without bodies."""
        self._journal.append(RecordKind.OP, payload, flags=0, number=number, epoch=epoch)

    def append_end(self, number: int, epoch: int, next_position: int) -> None:
        """The end of a journal, on a clean stop."""
        payload = END_PAYLOAD.pack(next_position)
        self._journal.append(RecordKind.END, payload, flags=0, number=number, epoch=epoch)

    def removed(self, ranges: int) -> None:
        """An op has removed messages: the publish may be among those that wait for a round."""
        self._journal.entries += ranges
        self._elision.removed()

    def append_publish(
        self, number: int, epoch: int, op: Publish, payload: bytes
    ) -> list[IndexEntry]:
        """A publish, whose encoded form `payload` is. Returns the entries of its bodies."""
        # As `ops.encode_outline` makes it: the payload up to the block.
        outline = payload[: len(payload) - op.block.size_bytes]
        return self._append_bodies(
            _OP,
            number,
            epoch,
            op.first_position,
            op.block,
            payload,
            outline,
            op.message_id,
            transient=op.transient,
        )

    def append_fill(
        self, follows: int, first: int, block: Block, *, transient: bool
    ) -> list[IndexEntry]:
        """Bodies for missing positions from `first` on. The record follows op `follows`."""
        return self._append_bodies(
            _FILL, first, follows, first, block, block.data, b"", b"", transient=transient
        )

    def _append_bodies(
        self,
        kinds: _Kinds,
        number: int,
        epoch: int,
        first: int,
        block: Block,
        payload: bytes,
        outline: bytes,
        message_id: bytes,
        *,
        transient: bool,
    ) -> list[IndexEntry]:
        """`payload` is the record's if the bodies are embedded. `outline` is of a publish."""
        journal = self._journal
        journal.entries += block.count
        flags = 0
        own_bytes = body_bytes = block.body_bytes()
        stored: list[tuple[RecordLocation, Block]] = []
        if transient or not self._durable:
            transient = True
            kind, flags = kinds.hollow, FLAG_TRANSIENT
            payload = outline or HOLLOW_FILL.pack(block.count)
        elif block.size_bytes < self._shared.limits.embed_below * block.count:
            kind = kinds.embedded
        else:
            stored, own_bytes = self._store(block, message_id)
            table = [Reference(place, 0, part.body_sizes()) for place, part in stored]
            kind, payload = kinds.stored, outline + references.encode(table)
        offset = journal.append(kind, payload, flags=flags, number=number, epoch=epoch)
        if not transient:
            self._written.body_bytes += own_bytes
            if outline:
                last = first + block.count - 1
                self._elision.published(Gathered(offset, first, last, own_bytes, outline))
        length = RECORD_HEADER_BYTES + len(payload)
        if not stored:
            return [
                self._entry(first, block, body_bytes, offset, length, None, transient=transient)
            ]
        entries: list[IndexEntry] = []
        for place, part in stored:
            size = part.body_bytes()
            entries.append(self._entry(first, part, size, offset, length, place, transient=False))
            first += part.count
        return entries

    def _store(
        self, block: Block, message_id: bytes
    ) -> tuple[list[tuple[RecordLocation, Block]], int]:
        """Puts bodies into the message store, in pieces.

        Returns the pieces with their locations, and the bytes that the store didn't have before.
        """
        store = self._shared.messages(transient=False)
        parts: list[tuple[RecordLocation, Block]] = []
        start = own_bytes = 0
        while start < block.count:
            stop = block.fit(start, self._shared.limits.store_block_bytes_max)
            part_id = b""
            if message_id:
                # The same for each queue of a fan-out, so that the store has each piece once.
                number = int.from_bytes(message_id, "little") + start
                part_id = (number & ((1 << 128) - 1)).to_bytes(16, "little")
            part = block.slice(start, stop)
            pending_bytes = store.pending_bytes
            place, kept = store.put(part, part_id)
            if store.pending_bytes == pending_bytes:
                self._known_bytes += part.body_bytes()
            if kept is part:
                self._written.stored_bytes += part.size_bytes
                own_bytes += part.body_bytes()
            parts.append((place, kept))
            # A fan-out's is older than others that wait here.
            self.needs = max(self.needs, key_of(place))
            start = stop
        return parts, own_bytes

    def _entry(
        self,
        first: int,
        block: Block,
        body_bytes: int,
        offset: int,
        length: int,
        location: RecordLocation | None,
        *,
        transient: bool,
    ) -> IndexEntry:
        """The entry of bodies whose record was just logged at `offset`."""
        file = self._journal.file
        entry = IndexEntry(
            first=first,
            last=first + block.count - 1,
            start=0,
            live=block.count,
            transient=transient,
            generation=file.number,
            file=None if transient else file,
            offset=offset,
            length=length,
            body_bytes=body_bytes,
            block=block,
            location=location,
        )
        if transient:
            return entry
        if len(self._logged) > 2 * file.holders + _DEAD_MAX:
            # A queue that is consumed at once would hold a journal's worth of dead entries.
            self._logged = [old for old in self._logged if old.live]
        self._logged.append(entry)
        self._unsynced.append(entry)
        return entry

    # -- rounds, and the next journal

    def elide(self, live: RangeSet) -> list[RecordLocation]:
        """Takes back the bodies of gathered publishes of which nothing is `live` any more.

        To be called before anything that ends the piece of the journal that has gathered. Returns
        the places in the message store that no record refers to now.
        """
        dead = self._elision.take(live)
        if not dead:
            return []
        file = self._journal.file
        outlines = {publish.offset: publish.outline for publish in dead}
        moved = self._journal.elide(outlines)
        places: list[RecordLocation] = []
        for entry in self._unsynced:
            # Entries of a journal that was sealed since are in a piece of their own.
            if entry.file is not file:
                continue
            if entry.offset in outlines and entry.location is not None:
                places.append(entry.location)
            entry.offset = moved.get(entry.offset, entry.offset)
        size = sum(publish.body_bytes for publish in dead)
        counters = self._shared.counters
        self._written.elided_bytes += size
        counters.elided_bytes += size
        counters.elided_messages += sum(one.last - one.first + 1 for one in dead)
        return places

    def take(self) -> tuple[list[Piece], list[IndexEntry]]:
        """The pieces of journals that have gathered, and the entries whose records are in them."""
        entries, self._unsynced = self._unsynced, []
        return self._journal.take(), entries

    def committed(self, pieces: list[Piece]) -> list[LoggedJournal]:
        """`pieces` are durable. Returns the journals that are sealed by that."""
        counters = self._shared.counters
        sealed: list[LoggedJournal] = []
        for piece in pieces:
            size = piece.size_bytes
            piece.file.synced = piece.offset + size
            counters.journal_bytes += size
            self._written.journal_bytes += size
            if piece.seals is not None:
                sealed += [each for each in self._sealing if each.file is piece.seals]
                self._sealing = [each for each in self._sealing if each.file is not piece.seals]
                counters.sealed += 1
        return sealed

    def rotate(self, start: Checkpoint) -> None:
        """Seals the current journal and begins the next one with `start`."""
        sealed = LoggedJournal(self._journal.rotate(start), self._logged)
        self._logged = []
        if self._durable:
            self._sealing.append(sealed)

    def begin_count(self) -> None:
        """A transient queue's journal is not written: counts its messages and acks from 0 again."""
        self._journal.entries = 0
