"""The journal of one queue: every op, in the order of the ring.

The current journal is `journal.jif`. Sealed ones are `G.jif`, `G` being the generation, which is
higher than that of every journal before. Each journal begins with the queue's state (twice, see
`format.checkpoint`). So the newest alone gives the state, and older ones are there for their bodies
only, until these are in segments.

A transient queue's journal is not written, as the next start has no use for it. It only gives out
generations.

`JournalWriter` runs on the event loop: it frames records into buffers, and knows the offset at
which each will be. `take` hands the buffers to a thread, which calls `write_pieces`. Nothing here
waits for the disk.

A journal is sealed, and the next one begun, in an order that a power cut can't hurt:

1. the old journal's records are written and synced,
2. the new journal is written as `journal.jif.new`, with its checkpoint, and synced,
3. the old one is renamed to `G.jif`, and the directory synced,
4. the new one is renamed to `journal.jif`, and the directory synced again.

A cut within 2 or 3 leaves a `.new`. Nothing in it was reported durable, so the next start removes
it, and the newest other journal has the state. It follows that a journal under one of the two final
names was whole once: garbage at its beginning is damage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from isal.isal_zlib import crc32

from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint
from ringmq_node.storage.format.formats import JOURNAL
from ringmq_node.storage.format.queue_folder import CURRENT_JOURNAL, NEW_SUFFIX, sealed_name
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RecordKind,
    file_header,
    new_marker,
    owner_of,
    record_header,
)
from ringmq_node.storage.queue import elision
from ringmq_node.storage.queue.entries import QueueFile

# Nobody changes it.
NO_OPS = ReplicatedState()
# Of a file that nothing is framed for.
NO_MARKER = 0


@dataclass(slots=True, eq=False)
class Piece:
    """Consecutive bytes of one journal. If `seals` is set, they are its first bytes, and it takes
    the place of that journal."""

    file: QueueFile
    offset: int
    buffers: list[bytes] = field(default_factory=list)
    seals: QueueFile | None = None
    # Of the buffers together, once it is taken.
    size_bytes: int = 0

    @property
    def end(self) -> int:
        return self.offset + sum(map(len, self.buffers))


class JournalWriter:
    """Holds the appended records until a thread takes them. Only on the event loop's thread."""

    def __init__(
        self, directory: Path, start: Checkpoint, seals: QueueFile | None, *, written: bool = True
    ) -> None:
        """Begins a journal with `start`. It takes the place of `seals`, if there is one."""
        self._path = directory / CURRENT_JOURNAL
        self._written = written
        self._pieces: list[Piece] = []
        self.entries = 0
        # The offset behind the state, with which the current journal begins.
        self.start_bytes = 0
        # The number of a journal that begins with the state of a queue without an op, and isn't
        # framed before its first record: most queues that are declared have to wait for that.
        self._unframed: int | None = None
        self.file = self._begin(start, seals)

    @property
    def size_bytes(self) -> int:
        return self.file.end

    @property
    def has_pending(self) -> bool:
        return bool(self._pieces)

    def append(
        self,
        kind: RecordKind,
        payload: bytes,
        *,
        flags: int,
        number: int,
        epoch: int,
        payload_crc: int | None = None,
    ) -> int:
        """Frames a record; returns the offset where it will be."""
        if self._unframed is not None:
            self._frame_first()
        file = self.file
        offset = file.end
        if not self._written:
            return offset
        assert len(payload) <= PAYLOAD_BYTES_MAX
        if not self._pieces:
            self._pieces.append(Piece(file, offset))
        # `synced` tells the next start how far the file was durable when this record was framed.
        # Damage before that offset is then damage, and not a torn tail.
        self._pieces[-1].buffers += (
            record_header(
                file.marker,
                offset,
                kind,
                payload,
                flags=flags,
                number=number,
                epoch=epoch,
                synced=file.synced,
                payload_crc=payload_crc,
            ),
            payload,
        )
        file.end = offset + RECORD_HEADER_BYTES + len(payload)
        return offset

    def elide(self, outlines: dict[int, bytes]) -> dict[int, int]:
        """Rewrites gathered publishes of the current journal as their `outlines`, by offset: see
        `elision`. Returns the new offsets of the records that have moved, by their old ones."""
        piece = self._pieces[-1]
        piece.buffers, moved = elision.reframe(
            self.file.marker, piece.offset, piece.buffers, outlines
        )
        self.file.end = piece.end
        return moved

    def rotate(self, start: Checkpoint) -> QueueFile:
        """Seals the journal and begins the next; returns the sealed one."""
        if self._unframed is not None:
            self._frame_first()
        sealed = self.file
        if self._written and not self._pieces:
            # No record waits for it. An empty piece has it synced all the same, before the rename.
            self._pieces.append(Piece(sealed, sealed.end))
        self.file = self._begin(start, sealed)
        self.entries = 0
        return sealed

    def take(self) -> list[Piece]:
        """The gathered pieces, in the order in which they have to reach the disk."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            # A journal that was sealed since ends where its piece does, too.
            piece.size_bytes = piece.file.end - piece.offset
        return pieces

    def _begin(self, start: Checkpoint, seals: QueueFile | None) -> QueueFile:
        file = QueueFile(
            self._path,
            start.generation,
            NO_MARKER,
            end=FILE_HEADER.size,
            synced=0,
            oldest_generation=start.generation,
        )
        self.file = file
        self.start_bytes = file.end
        if seals is None and start == Checkpoint(start.generation, NO_OPS):
            self._unframed = start.generation
        elif self._written:
            self._frame(start, seals)
        return file

    def _frame_first(self) -> None:
        """The journal of a queue without an op, which is about to get one."""
        generation, self._unframed = self._unframed, None
        assert generation is not None
        # The state itself may have the op already.
        if self._written:
            self._frame(Checkpoint(generation, NO_OPS), None)

    def _frame(self, start: Checkpoint, seals: QueueFile | None) -> None:
        file = self.file
        file.marker = new_marker()
        owner = owner_of(self._path.parent)
        head = [file_header(JOURNAL, file.marker, file.number, owner)]
        self._pieces.append(Piece(file, 0, head, seals))
        payload = checkpoint.encode(start)
        # Once: of a state with very many ranges it takes some ms.
        payload_crc = crc32(payload)
        for _ in range(2):
            self.append(
                RecordKind.CHECKPOINT,
                payload,
                flags=0,
                number=start.state.last_number,
                epoch=start.state.epoch,
                payload_crc=payload_crc,
            )
        self.start_bytes = file.end


def write_pieces(disk: Disk, directory: Path, pieces: list[Piece]) -> None:
    """Writes `pieces` and makes them durable, in order. Runs in a thread; raises `OSError`."""
    for piece in pieces:
        path = piece.file.path
        if piece.offset == 0:
            # The pieces before have done step 1 (see the module). The state is whole in the new
            # file before the old one loses its name, so at each moment one of them has it.
            new = path.with_name(path.name + NEW_SUFFIX)
            disk.write(new, 0, piece.buffers, sync=True)
            if piece.seals is not None:
                _seal(disk, directory, piece.seals)
            disk.rename(new, path)
            disk.sync(directory)
        elif piece.buffers:
            disk.write(path, piece.offset, piece.buffers, sync=True)
        else:
            disk.sync(path)


def _seal(disk: Disk, directory: Path, file: QueueFile) -> None:
    path = directory / sealed_name(file.number)
    # A reader on the event loop must not find the new file under the old one's name.
    with file.lock:
        disk.rename(file.path, path)
        file.path = path
    # Before the new one takes the name: a power cut that kept the second rename and lost the first
    # would leave no trace of this journal.
    disk.sync(directory)
