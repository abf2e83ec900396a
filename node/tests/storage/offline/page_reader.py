"""A reader of a data directory, written from docs/formats.md alone: it imports nothing of RingMQ.

It shows that the page is complete and exact, and is an example for a reader in another language. It
is slow, and keeps everything in memory.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

SEGMENT_POSITIONS = 16_384
LOST = 0xFFFF_FFFF
CHECKPOINT, OP, EPOCH, FILL, ENTRY, END, MESSAGE, HOLE = range(1, 9)
STORED_OP, STORED_FILL, STORED_ENTRY, HOLLOW_OP, HOLLOW_FILL, ELIDED_OP = range(9, 15)
SET_ASIDE = 15
REDO = 16


def number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def numbers(data: bytes, at: int, count: int, size: int) -> list[int]:
    return [number(data, at + size * index, size) for index in range(count)]


# -- files of texts


def read_texts(path: Path, magic: bytes) -> tuple[str, str]:
    data = path.read_bytes()
    assert data[:8] == magic
    assert number(data, 14, 4) == crc32(data[18:], crc32(data[:14]))
    assert number(data, 8, 2) == 1
    first, second = number(data, 10, 2), number(data, 12, 2)
    assert len(data) == 18 + first + second
    return data[18 : 18 + first].decode(), data[18 + first :].decode()


# -- files of records


@dataclass
class Record:
    offset: int
    kind: int
    flags: int
    number: int
    epoch: int
    synced: int
    length: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + 44 + self.length


@dataclass
class RecordFile:
    """`damage`: (offset, bytes) of what was durable once. `end`: of the log."""

    number: int
    records: list[Record]
    damage: list[tuple[int, int]]
    end: int


def read_header(data: bytes, marker: int, at: int) -> Record | None:
    """A valid header, with the bytes behind it as they are."""
    if len(data) < at + 44 or number(data, at, 4) != marker:
        return None
    seed = marker ^ (at & 0xFFFF_FFFF) ^ (at >> 32)
    kind = data[at + 16]
    if number(data, at + 4, 4) != crc32(data[at + 8 : at + 44], seed) or not 1 <= kind <= 15:
        return None
    length = number(data, at + 12, 4)
    its_number, epoch, synced = numbers(data, at + 20, 3, 8)
    payload = data[at + 44 : at + 44 + length]
    return Record(at, kind, data[at + 17], its_number, epoch, synced, length, payload)


def is_valid(data: bytes, record: Record) -> bool:
    if record.kind == HOLE:
        return True
    whole = record.end <= len(data)
    return whole and crc32(record.payload) == number(data, record.offset + 8, 4)


def next_header(data: bytes, marker: int, at: int) -> int:
    while at < len(data) and read_header(data, marker, at) is None:
        at += 1
    return at


def read_records(path: Path, magic: bytes, proven_by_map: bool = False) -> RecordFile:
    data = path.read_bytes()
    folder_crc = crc32(path.parent.name.encode()) or 1
    owner = number(data, 28, 4)
    damage: list[tuple[int, int]] = []
    marker, its_number = number(data, 12, 4), number(data, 16, 8)
    if number(data, 24, 4) == crc32(data[:24], owner):
        assert data[:8] == magic
        assert owner in (0, folder_crc)
        versions = {b"RINGMQ-J": 4, b"RINGMQ-C": 2}
        assert number(data, 8, 2) == versions.get(magic, 1)
    else:
        marker, its_number = number(data, 32, 4), -1
        assert read_header(data, marker, 32) is not None
        assert magic == b"RINGMQ-B" or owner == folder_crc
        damage.append((0, 32))
    records: list[Record] = []
    at = 32
    proven: int | None = len(data) if proven_by_map else None
    while at < len(data):
        record = read_header(data, marker, at)
        if record is not None and is_valid(data, record):
            records.append(record)
            at = record.end
            continue
        if proven is None:
            proven = furthest_synced(data, marker, at)
        if proven <= at:
            break
        whole = record is not None and record.end <= len(data)
        end = record.end if record is not None and whole else next_header(data, marker, at + 1)
        damage.append((at, end - at))
        at = end
    return RecordFile(its_number, records, damage, at)


def furthest_synced(data: bytes, marker: int, at: int) -> int:
    found = 0
    while (at := next_header(data, marker, at)) < len(data):
        record = read_header(data, marker, at)
        assert record is not None
        found = max(found, record.synced)
        at = record.end if record.end <= len(data) else at + 1
    return found


# -- payloads


def read_block(data: bytes) -> list[bytes]:
    assert number(data, 0, 2) == 0x4252
    assert data[2] == 2
    properties, count = data[3], number(data, 4, 4)
    assert 1 <= count <= 1 << 20
    sizes = numbers(data, 8, count, 4)
    tables = count + (0, 1, count)[properties]
    all_sizes = numbers(data, 8, tables, 4)
    at = 8 + 4 * tables
    assert len(data) == at + sum(all_sizes)
    bodies = []
    for size in sizes:
        bodies.append(data[at : at + size])
        at += size
    return bodies


@dataclass
class Reference:
    file: int
    ordinal: int
    offset: int
    length: int
    # The message of the stored block, and the size of its body.
    message: int
    size: int


def read_references(data: bytes) -> list[Reference]:
    """One for each message."""
    count = number(data, 0, 4)
    at = 4 + 24 * count
    found: list[Reference] = []
    for row in struct.iter_unpack("<6I", data[4:at]):
        file, ordinal, offset, length, start, messages = row
        for message in range(start, start + messages):
            found.append(Reference(file, ordinal, offset, length, message, number(data, at, 4)))
            at += 4
    assert at == len(data)
    return found


@dataclass
class Publish:
    first: int
    count: int
    transient: bool
    producer: bytes
    sequence: int
    message_id: bytes


def read_outline(data: bytes) -> tuple[Publish, bytes]:
    """The outline, and the bytes behind it."""
    assert data[0] == 1
    flags, producer_size, count = data[1], number(data, 2, 2), number(data, 4, 4)
    first, sequence = numbers(data, 8, 2, 8)
    at = 24 + producer_size
    id_end = at + (16 if flags & 2 else 0)
    end = id_end + (8 if flags & 4 else 0) + (1 if flags & 8 else 0)
    publish = Publish(first, count, bool(flags & 1), data[24:at], sequence, data[at:id_end])
    return publish, data[end:]


@dataclass
class State:
    generation: int = 0
    damaged: bool = False
    last_op: int = 0
    next_position: int = 0
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    redelivered: set[int] = field(default_factory=set)
    transient: set[int] = field(default_factory=set)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    producers: dict[bytes, int] = field(default_factory=dict)
    times: dict[bytes, int] = field(default_factory=dict)
    time: int = 0
    # Doomed messages: the letter and the reason of each position.
    letters: dict[int, tuple[int, int]] = field(default_factory=dict)
    next_letter: int = 0


def read_checkpoint(data: bytes) -> State:
    state = State(number(data, 0, 8), bool(number(data, 8, 4) & 1))
    epochs, *ranges, cuts, producers, leases = numbers(data, 12, 7, 4)
    state.last_op, state.next_position, state.time = numbers(data, 40, 3, 8)
    at = 80
    for _ in range(epochs):
        epoch, first_op, first_position = numbers(data, at, 3, 8)
        state.epochs.append((epoch, first_op, first_position))
        at += 24
    for count, positions in zip(
        ranges, (state.live, state.redelivered, state.transient), strict=True
    ):
        for _ in range(count):
            first, last = numbers(data, at, 2, 8)
            positions.update(range(first, last + 1))
            at += 16
    for _ in range(cuts):
        generation, keep_below = numbers(data, at, 2, 8)
        state.cuts.append((generation, keep_below))
        at += 16
    heads = [
        (*numbers(data, at + 18 * i, 2, 8), number(data, at + 18 * i + 16, 2))
        for i in range(producers)
    ]
    at += 18 * producers
    for sequence, time, size in heads:
        state.producers[data[at : at + size]] = sequence
        state.times[data[at : at + size]] = time
        at += size
    flags = number(data, 8, 4)
    if flags & 2:
        planes = number(data, at, 4)
        at += 4 + 4 * planes + 16 * sum(numbers(data, at + 4, planes, 4))
    if flags & 4:
        expiries, priorities = numbers(data, at, 2, 4)
        at += 8 + 24 * expiries + priorities
    doomed = 0
    if flags & 8:
        at += 4 + number(data, at, 4)
    if flags & 16:
        state.next_letter, doomed = number(data, at, 8), number(data, at + 8, 4)
        at += 12
    for _ in range(doomed):
        letter, first, last = numbers(data, at, 3, 8)
        for position in range(first, last + 1):
            state.letters[position] = (letter + position - first, data[at + 24])
        at += 25
    for _ in range(leases):
        at += 30 + sum(numbers(data, at + 24, 3, 2))
    assert at == len(data)
    return state


# -- a queue


@dataclass
class Body:
    """One message: in the record, or at a reference. Of several for a position the last counts."""

    generation: int
    offset: int
    position: int
    content: bytes | Reference


@dataclass
class Queue:
    name: str
    state: State
    bodies: dict[int, bytes]
    missing: set[int]
    damage: list[tuple[Path, int, int]]
    torn_bytes: int


def apply(state: State, record: Record, op: bytes) -> None:
    if op[0] == 1:
        publish, _ = read_outline(op)
        positions = range(publish.first, publish.first + publish.count)
        state.live.update(positions)
        if publish.transient:
            state.transient.update(positions)
        state.next_position = positions.stop
        if publish.producer:
            state.producers.pop(publish.producer, None)
            state.producers[publish.producer] = publish.sequence + publish.count - 1
            state.times.pop(publish.producer, None)
            state.times[publish.producer] = state.time
    elif op[0] == 5:
        at = 8
        for _ in range(number(op, 4, 4)):
            end = at + 2 + number(op, at, 2)
            state.producers.pop(op[at + 2 : end], None)
            state.times.pop(op[at + 2 : end], None)
            at = end
        assert at == len(op)
    elif op[0] == 6:
        assert len(op) == 16
        state.time = number(op, 8, 8)
        state.times = {key: min(time, state.time) for key, time in state.times.items()}
    elif op[0] == 7:
        assert len(op) == 8 + 16 * number(op, 4, 4)
        ranges = [*struct.iter_unpack("<QQ", op[8:])]
        state.next_letter = state.next_letter or 1
        for position in sorted(state.live):
            if any(first <= position <= last for first, last in ranges):
                state.letters[position] = (state.next_letter, op[1])
                state.next_letter += 1
    else:
        assert len(op) == 8 + 16 * number(op, 4, 4)
        for first, last in struct.iter_unpack("<QQ", op[8:]):
            if op[0] == 3:
                state.redelivered |= {at for at in state.live if first <= at <= last}
            else:
                for positions_of in (state.live, state.redelivered, state.transient):
                    positions_of -= {at for at in positions_of if first <= at <= last}
                state.letters = {
                    at: letter for at, letter in state.letters.items() if at in state.live
                }
    state.last_op = record.number


def contents_of(record: Record) -> tuple[int, Sequence[bytes | Reference]]:
    """The first position, and a body or a reference for each position from there on."""
    payload = record.payload
    match record.kind:
        case 2 if payload[0] == 1:
            publish, block = read_outline(payload)
            return publish.first, read_block(block)
        case 4 | 5:
            return record.number, read_block(payload)
        case 9:
            publish, table = read_outline(payload)
            return publish.first, read_references(table)
        case 10 | 11:
            return record.number, read_references(payload)
    return 0, []


def bodies_of(record: Record, generation: int) -> list[Body]:
    first, contents = contents_of(record)
    return [
        Body(generation, record.offset, position, content)
        for position, content in enumerate(contents, first)
    ]


def counting(records: list[Record]) -> list[Record]:
    """Without an elided op whose round is not whole, and all behind it."""
    end = records[-1].end if records else 0
    for index, record in enumerate(records):
        if record.kind == ELIDED_OP and number(record.payload, 0, 8) > end:
            return records[:index]
    return records


def read_queue(folder: Path, store: MessageStore) -> Queue:
    name, _ = read_texts(folder / "queue.name", b"RINGMQ-N")
    assert hashlib.sha256(name.encode()).hexdigest()[:32] == folder.name
    state = State()
    bodies: list[Body] = []
    queue = Queue(name, state, {}, set(), [], 0)
    sealed = [path for path in folder.glob("*.jif") if path.stem.isdigit()]
    journals = sorted(sealed, key=lambda path: int(path.stem))
    if (folder / "journal.jif").exists():
        journals.append(folder / "journal.jif")
    generations: set[int] = set()
    for path in journals:
        file = read_records(path, b"RINGMQ-J")
        records = counting(file.records)
        queue.damage += [(path, *place) for place in file.damage]
        queue.torn_bytes += path.stat().st_size - (records[-1].end if records else 32)
        loaded = False
        for record in records:
            if record.kind == CHECKPOINT:
                if not loaded:
                    state = queue.state = read_checkpoint(record.payload)
                    generations.add(state.generation)
                    loaded = True
            elif record.kind == EPOCH:
                state.epochs.append((record.epoch, record.number, state.next_position))
            elif record.kind in (OP, STORED_OP, HOLLOW_OP):
                apply(state, record, record.payload)
            elif record.kind == ELIDED_OP:
                apply(state, record, record.payload[8:])
            bodies += bodies_of(record, state.generation)
    for path in folder.glob("*.idx"):
        file = read_records(path, b"RINGMQ-S")
        assert file.number == int(path.stem)
        queue.damage += [(path, *place) for place in file.damage]
        for record in file.records:
            found = bodies_of(record, record.epoch)
            assert all(body.position // SEGMENT_POSITIONS == file.number for body in found)
            bodies += found
    fill_in(queue, bodies, store)
    return queue


def fill_in(queue: Queue, bodies: list[Body], store: MessageStore) -> None:
    state = queue.state
    wanted = state.live - state.transient
    for body in sorted(bodies, key=lambda body: (body.generation, body.offset)):
        void = any(body.generation < cut and body.position >= keep for cut, keep in state.cuts)
        if void or body.position not in wanted:
            continue
        content = body.content
        found = content if isinstance(content, bytes) else store.read(content)
        if found is not None:
            queue.bodies[body.position] = found
    queue.missing = wanted - queue.bodies.keys()


# -- the message store


class MessageStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.maps: dict[int, dict[int, tuple[int, int]]] = {}
        for path in folder.glob("*.map"):
            if not path.with_suffix(".rdq").exists():
                self.maps[int(path.stem)] = read_map(path)
        self._files: dict[int, RecordFile] = {}

    def file(self, its_number: int) -> RecordFile:
        if its_number not in self._files:
            led_to = {file for table in self.maps.values() for file, _ in table.values()}
            path = self._folder / f"{its_number}.rdq"
            self._files[its_number] = read_records(path, b"RINGMQ-B", its_number in led_to)
        return self._files[its_number]

    def read(self, reference: Reference) -> bytes | None:
        """None if the record is lost."""
        file, offset = reference.file, reference.offset
        if file in self.maps:
            if reference.ordinal not in self.maps[file]:
                return None
            file, offset = self.maps[file][reference.ordinal]
        if file == LOST or not (self._folder / f"{file}.rdq").exists():
            return None
        for record in self.file(file).records:
            if record.offset == offset and record.kind == MESSAGE:
                assert record.length + 44 == reference.length
                body = read_block(record.payload)[reference.message]
                assert len(body) == reference.size
                return body
        return None


def read_map(path: Path) -> dict[int, tuple[int, int]]:
    """New file and offset, by old ordinal."""
    data = path.read_bytes()
    assert data[:8] == b"RINGMQ-R"
    assert number(data, 24, 4) == crc32(data[:24])
    assert number(data, 8, 2) == 1
    assert number(data, 16, 8) == int(path.stem)
    assert number(data, 28, 4) == crc32(data[32:])
    assert len(data) == 32 + 16 * number(data, 12, 4)
    rows = [*struct.iter_unpack("<4I", data[32:])]
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    return {ordinal: (file, offset) for ordinal, file, _, offset in rows}


# -- a directory


@dataclass
class Directory:
    cluster: str
    node: str
    queues: dict[str, Queue]
    store: MessageStore


def read_directory(root: Path) -> Directory:
    cluster, node = read_texts(root / "store.meta", b"RINGMQ-M")
    store = MessageStore(root / "messages" / "persistent")
    folders = [path for path in sorted((root / "queues").iterdir()) if "." not in path.name]
    queues = [read_queue(folder, store) for folder in folders]
    return Directory(cluster, node, {queue.name: queue for queue in queues}, store)


def read_commit_log(path: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Folder, generation and marker of the journal, offset and bytes of each record of one."""
    file = read_records(path, b"RINGMQ-C")
    assert not file.damage
    journals: dict[int, tuple[str, int, int]] = {}
    found: list[tuple[str, int, int, int, bytes]] = []
    for record in file.records:
        assert record.kind == REDO
        payload = record.payload
        named, rows = numbers(payload, 0, 2, 4)
        for at in range(8, 8 + 32 * named, 32):
            folder = payload[at + 4 : at + 20].hex()
            generation, marker = number(payload, at + 20, 8), number(payload, at + 28, 4)
            journals[number(payload, at, 4)] = folder, generation, marker
        rows_at = 8 + 32 * named
        body = rows_at + 34 * rows
        for at in range(rows_at, body, 34):
            journal, offset, unsynced, length = numbers(payload, at, 4, 4)
            data = payload[body : body + length]
            # As in a record's header, from the payload crc on.
            rest = crc32(data).to_bytes(4, "little") + payload[at + 12 : at + 18] + bytes(2)
            rest += payload[at + 18 : at + 34] + (offset - unsynced).to_bytes(8, "little")
            marker = journals[journal][2]
            crc = crc32(rest, marker ^ offset)
            header = marker.to_bytes(4, "little") + crc.to_bytes(4, "little") + rest
            found.append((*journals[journal], offset, header + data))
            body += length
        assert body == len(payload)
    return found


def read_set_aside(path: Path) -> tuple[dict[str, object], dict[int, bytes]]:
    """What the cut was, and the bodies by position; the name and the end have to agree."""
    file = read_records(path, b"RINGMQ-A", proven_by_map=True)
    assert not file.damage
    first, *entries, last = file.records
    assert (first.kind, last.kind) == (SET_ASIDE, END)
    info = json.loads(first.payload)
    folder = hashlib.sha256(info["queue_id"].encode()).hexdigest()[:12]
    says = "-".join(str(info[key]) for key in ("log_epoch", "log_number", "first_position"))
    assert path.name == f"{folder}-{says}.aside"
    bodies: dict[int, bytes] = {}
    for entry in entries:
        assert entry.kind == ENTRY
        bodies |= dict(enumerate(read_block(entry.payload), entry.number))
    assert (last.number, number(last.payload, 0, 8)) == (
        len(bodies),
        sum(map(len, bodies.values())),
    )
    return info, bodies
