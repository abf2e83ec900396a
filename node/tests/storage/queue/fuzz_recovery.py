"""A fuzzer of recovery: starts on damaged files.

    export PYTHONPATH=base/tests/support
    python -m node.tests.storage.queue.fuzz_recovery --minutes 10 --seed 1

Random workloads on two queues write directories, which are taken as they are, after a crash
at any moment, or after a power cut. Their files are then damaged in any way, and opened.
However bad it is:

* opening and reading ends, within a deadline and within a bound of memory;
* it raises nothing but a `StoreError`;
* each message that is read back was published, in this queue, at this position;
* a second start that nothing was appended before finds the same;
* messages that are published from then on are there after the next start.

A body names the queue and the position at which it was published, so a directory can be judged by
itself. A directory that fails is kept, and `--replay` opens it again.

Exit code 0: nothing found; 1: something; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[4]))

from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.workload import LIMITS, ROOT, Workload, open_store, run_store

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish
from ringmq_node.storage import QueueStore, Store, StoreError, StoreLimits
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_PREFIX,
    RECORD_REST,
    parse_header,
    record_header,
)

QUEUES = ("orders", "invoices")
# Batches of both kinds: embedded, and in the message store.
FUZZ_LIMITS = replace(LIMITS, embed_below=100)
CASE_S_MAX = 20.0
# The memory that a case may take. The files have about a megabyte together.
CASE_BYTES_MAX = 96 << 20
# Bodies with a timeline from here on were published after the damage.
AFTERWARDS = 1_000_000


class Finding(Exception):
    """Recovery has broken a rule."""


def body_of(queue: str, timeline: int, position: int, large: bool) -> bytes:
    head = f"{queue}:{timeline}:{position}:{'L' if large else 'S'}:".encode()
    size = zlib.crc32(head) % (400 if large else 30)
    return head + bytes([65 + position % 26]) * size


def check_body(queue: str, position: int, body: bytes) -> int:
    """The timeline of a body. Raises `Finding` if it wasn't published here."""
    fields = body.split(b":")
    if len(fields) == 5 and fields[1].isdigit() and fields[3] in (b"S", b"L"):
        timeline = int(fields[1])
        if body == body_of(queue, timeline, position, fields[3] == b"L"):
            return timeline
    raise Finding(f"queue {queue!r} has at {position} the body {body[:80]!r}")


@dataclass
class FuzzLoad(Workload):
    """A workload whose bodies say where they belong, small and large, with and without more."""

    name: str = ""
    large: bool = False

    def _take(self) -> None:
        """Nobody wants pictures here; of forged states they take any amount of memory."""

    def new_body(self, position: int) -> bytes:
        body = body_of(self.name, self.timeline, position, self.large)
        self.bodies[self.timeline, position] = body
        self.origin[position] = self.timeline
        return body

    def publish(self, count: int, *, transient: bool = False) -> None:
        rng = self.rng
        self.large = rng.random() < 0.3
        if self.large:
            count = min(count, 60)
        first = self.queue.state.next_position
        batch = [self.new_body(position) for position in range(first, first + count)]
        properties = rng.choice([[], [], [b"shared"], [b"%d" % at for at in range(count)]])
        producer = rng.choice([b"", b"p1", b"p2"])
        self._append(Publish(first, Block.of(batch, properties), transient, producer, first))

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.03:
            self.begin_epoch()
        elif choice < 0.06:
            self.install(cut=self.rng.randint(1, 200))
        elif choice < 0.1:
            # Lazy queues page their transient messages out.
            self.queue.pager.set_lazy(self.rng.random() < 0.6)
        elif choice < 0.14:
            self.leap()
        elif choice < 0.25 and self.queue.missing:
            self.fill(150)
        else:
            self.random_op()

    def leap(self) -> None:
        """Thousands of positions, of which few stay: the next ones are in another segment."""
        first = self.queue.state.next_position
        self.publish(5000)
        last = self.queue.state.next_position - 1
        stays = self.rng.randint(first, last)
        self.remove((first, stays), (min(stays + 3, last), last))


def write_directories(seed: int, *, steps: int = 150) -> list[SimulatedDisk]:
    """A workload, as found after crashes and power cuts on its way, and after a clean stop.

    It is gone on with in one of these, so that there are files of several starts.
    """
    rng = random.Random(seed)
    limits = replace(
        FUZZ_LIMITS,
        journal_bytes_max=rng.choice([4_000, 25_000]),
        flush_piece_bytes_max=rng.choice([300, 8_000]),
    )
    loads: list[FuzzLoad] = []
    found = _work(SimulatedDisk(), limits, rng, steps, loads)
    return found + _work(rng.choice(found).copy(), limits, rng, steps // 2, loads)


def _work(
    disk: SimulatedDisk,
    limits: StoreLimits,
    rng: random.Random,
    steps: int,
    before: list[FuzzLoad],
) -> list[SimulatedDisk]:
    """`before` are the loads of the start before, which are replaced by those of this one."""
    store = open_store(disk, limits)
    loads: list[FuzzLoad] = []
    for index, name in enumerate(QUEUES):
        load = FuzzLoad(store.open_queue(name), rng, name=name)
        load.batch_max = rng.choice([5, 200, 1500, 6000])
        if before:
            # Positions of a tail that was lost are given out again.
            load.timeline = before[index].timeline + 1
            load.bodies, load.origin = before[index].bodies, before[index].origin
        loads.append(load)
    before[:] = loads
    found: list[SimulatedDisk] = []
    moments = {rng.randrange(steps // 4, steps) for _ in range(4)}

    async def work() -> None:
        for step in range(steps):
            rng.choice(loads).step()
            if rng.random() < 0.3:
                await store.sync()
            if step in moments:
                kept: Kept = rng.choice(["everything", "anything", "nothing"])
                found.append(disk.power_cut(kept, rng))
        await store.sync()

    run_store(store, work)
    found.append(disk.copy())
    return found


# -- damage

Damage = Callable[[random.Random, SimulatedDisk], str]


def _file(rng: random.Random, disk: SimulatedDisk) -> Path:
    """Mostly a queue's."""
    files = sorted(disk.files())
    inside = [path for path in files if path.suffix in (".jif", ".idx")]
    return rng.choice(inside if inside and rng.random() < 0.8 else files)


def _place(rng: random.Random, content: bytearray) -> int:
    """Anywhere; often in the header of the file or near the end."""
    size = len(content)
    choice = rng.random()
    if choice < 0.1:
        return rng.randrange(min(size, FILE_HEADER.size + RECORD_HEADER_BYTES) or 1)
    if choice < 0.25:
        return max(0, size - rng.randrange(1, 3000))
    return rng.randrange(size or 1)


def flip_bits(rng: random.Random, disk: SimulatedDisk) -> str:
    path = _file(rng, disk)
    content = disk.content(path)
    if content:
        for _ in range(rng.choice([1, 1, 2, 20])):
            content[_place(rng, content) % len(content)] ^= 1 << rng.randrange(8)
    return f"bits of {path.name}"


def zero_sectors(rng: random.Random, disk: SimulatedDisk) -> str:
    path = _file(rng, disk)
    content = disk.content(path)
    at = _place(rng, content) // 512 * 512
    size = min(512 * rng.choice([1, 1, 8, 64]), len(content) - at)
    content[at : at + size] = bytes([rng.choice([0, 0, 255])]) * size
    return f"{size} bytes of {path.name} at {at} erased"


def cut_short(rng: random.Random, disk: SimulatedDisk) -> str:
    path = _file(rng, disk)
    content = disk.content(path)
    del content[_place(rng, content) :]
    return f"{path.name} cut to {len(content)}"


def move_bytes(rng: random.Random, disk: SimulatedDisk) -> str:
    """Doubles bytes, deletes them, or puts in others from elsewhere, between or over the old."""
    path, other = _file(rng, disk), _file(rng, disk)
    content, source = disk.content(path), disk.content(other)
    at, start = _place(rng, content), _place(rng, source)
    piece = bytes(source[start : start + rng.choice([1, 44, 512, 4096, 50_000])])
    match rng.randrange(4):
        case 0:
            content[at:at] = content[at : at + len(piece)]
        case 1:
            del content[at : at + len(piece)]
        case 2:
            content[at:at] = piece
        case _:
            content[at : at + len(piece)] = piece
    return f"{len(piece)} bytes of {other.name} moved to {path.name} at {at}"


def random_bytes(rng: random.Random, disk: SimulatedDisk) -> str:
    path = _file(rng, disk)
    content = disk.content(path)
    piece = rng.randbytes(rng.choice([1, 100, 5000]))
    match rng.randrange(3):
        case 0:
            content += piece
        case 1:
            at = _place(rng, content)
            content[at : at + len(piece)] = piece
        case _:
            content[:] = piece
    return f"random bytes in {path.name}"


def remove_file(rng: random.Random, disk: SimulatedDisk) -> str:
    path = _file(rng, disk)
    disk.remove(path)
    return f"{path.name} removed"


def rename_file(rng: random.Random, disk: SimulatedDisk) -> str:
    path = _file(rng, disk)
    names = ["0.idx", "1.idx", "7.idx", "1.jif", "9.jif", "99999.jif", "journal.jif"]
    names += ["007.idx", "99999999999999999999.jif", "\u0663.idx", "3.jif.bad", "2.idx.new"]
    new = path.with_name(rng.choice(names))
    if rng.random() < 0.5:
        disk.write(new, 0, [bytes(disk.content(path))])
    elif new != path:
        disk.rename(path, new)
    return f"{path.name} is {new.name}"


def exchange_files(rng: random.Random, disk: SimulatedDisk) -> str:
    path, other = _file(rng, disk), _file(rng, disk)
    content, others = disk.content(path), disk.content(other)
    content[:], others[:] = bytes(others), bytes(content)
    return f"{path.name} and {other.name} exchanged"


def large_numbers(rng: random.Random, disk: SimulatedDisk) -> str:
    """In the tables behind a record's header, whose own checksums stay as they are."""
    path = _file(rng, disk)
    content = disk.content(path)
    headers = [*_headers(content)]
    if headers:
        at = rng.choice(headers) + RECORD_HEADER_BYTES + 4 * rng.randrange(12)
        number = rng.choice([0xFFFF_FFFF, 0x7FFF_FFFF, 1 << 20, 1 << 24, 0, 1, rng.getrandbits(32)])
        content[at : at + 4] = number.to_bytes(4, "little")
    return f"a large number in a table of {path.name}"


def _headers(content: bytearray) -> Iterator[int]:
    """Where the records of a file begin, until one is no record."""
    data = bytes(content)
    if len(data) < FILE_HEADER.size:
        return
    marker = FILE_HEADER.unpack_from(data)[3]
    offset = FILE_HEADER.size
    while (header := parse_header(marker, offset, data, offset)) is not None:
        yield offset
        offset = header.end


def forge(rng: random.Random, disk: SimulatedDisk) -> str:
    """A record that is wrong and has the right checksums, as no disk makes it."""
    path = _file(rng, disk)
    content = disk.content(path)
    headers = [*_headers(content)]
    if not headers:
        return "nothing forged"
    at = rng.choice(headers)
    marker = FILE_HEADER.unpack_from(content)[3]
    header = parse_header(marker, at, bytes(content[at : at + RECORD_HEADER_BYTES]))
    assert header is not None
    payload = bytearray(content[at + RECORD_HEADER_BYTES : header.end])
    fields = {"number": header.number, "epoch": header.epoch, "synced": header.synced}
    large = rng.choice([0, 1, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 61, (1 << 64) - 1])
    if payload and rng.random() < 0.7:
        size = rng.choice([1, 4, 8])
        where = rng.randrange(min(len(payload), 120))
        payload[where : where + size] = (large % (1 << 8 * size)).to_bytes(size, "little")
        del payload[header.length :]
    else:
        fields[rng.choice([*fields])] = large
    kind = header.kind if rng.random() < 0.8 else rng.randrange(16)
    head = record_header(marker, at, kind, bytes(payload), flags=header.flags, **fields)
    if rng.random() < 0.2:
        length = rng.choice([0, 1, header.length - 1, 0xFFFF_FFFF, 1 << 31]) % (1 << 32)
        rest = bytearray(head[RECORD_PREFIX.size :])
        struct.pack_into("<I", rest, 4, length)
        seed = marker ^ (at & 0xFFFF_FFFF) ^ (at >> 32)
        head = RECORD_PREFIX.pack(marker, zlib.crc32(bytes(rest), seed)) + bytes(rest)
        assert len(rest) == RECORD_REST.size
    content[at : at + len(head) + len(payload)] = head + payload
    return f"record of kind {kind} at {at} of {path.name} forged"


DAMAGES: tuple[Damage, ...] = (
    flip_bits,
    zero_sectors,
    cut_short,
    move_bytes,
    random_bytes,
    remove_file,
    rename_file,
    exchange_files,
    large_numbers,
)


# -- one case


@dataclass
class Case:
    disk: SimulatedDisk
    rng: random.Random
    # Where checksums were forged, a body may be anything.
    forged: bool = False
    story: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def damage(self) -> None:
        for _ in range(self.rng.choice([1, 1, 2, 3, 6])):
            self.story.append(self.rng.choice(DAMAGES)(self.rng, self.disk))
        if self.forged:
            self.story.append(forge(self.rng, self.disk))

    def run(self) -> None:
        """Raises `Finding`, or any other error that recovery should not raise."""
        found = self.open_all(read=True)
        if found is None:
            return
        again = self.open_all(read=False)
        if again != found:
            raise Finding(f"a second start has {again}, the first had {found}")
        if self.rng.random() < 0.15:
            self.go_on()

    def open(self) -> Store | None:
        try:
            return open_store(self.disk, FUZZ_LIMITS)
        except StoreError as error:
            self.counts[type(error).__name__] += 1
            return None

    def open_all(self, *, read: bool) -> dict[str, object] | None:
        store = self.open()
        if store is None:
            return None
        found: dict[str, object] = {}
        for name in store.queue_names():
            try:
                queue = store.open_queue(name)
            except StoreError as error:
                found[name] = type(error).__name__
                continue
            queue.check()
            found[name] = picture(queue)
            if read:
                self.count(queue)
                self.read(name, queue)
                queue.check()
        return found

    def count(self, queue: QueueStore) -> None:
        self.counts["queues"] += 1
        self.counts["damaged"] += queue.damaged
        self.counts["corruptions"] += len(queue.corruptions)
        self.counts["torn"] += bool(queue.torn_bytes)
        self.counts["with missing"] += bool(queue.missing)

    def read(self, name: str, queue: QueueStore) -> dict[int, int]:
        """The timeline of each message that can be read, by position."""
        found: dict[int, int] = {}
        position, failures = 0, 0
        while True:
            try:
                runs = queue.read(position, 1 << 62, bytes_max=50_000, messages_max=1000)
            except StoreError:
                failures += 1
                if failures > 10_000:
                    raise Finding(f"reading {name!r} fails without end") from None
                continue
            if not runs:
                break
            for run in runs:
                for at, body in enumerate(run.block.bodies(), run.first_position):
                    if not self.forged:
                        found[at] = check_body(name, at, body)
            position = runs[-1].last_position + 1
        self.counts["messages"] += len(found)
        self.counts["unreadable"] += failures
        return found

    def go_on(self) -> None:
        """Publishes to the recovered queues, stops, and looks for these messages."""
        store = self.open()
        if store is None:
            return
        rng = self.rng
        published: dict[str, set[int]] = {}
        queues: list[QueueStore] = []
        for name in store.queue_names():
            try:
                queues.append(store.open_queue(name))
            except StoreError:
                continue

        async def work() -> None:
            for queue in queues:
                if queue.state.next_position > 1 << 60:
                    continue
                load = FuzzLoad(queue, rng, name=queue.queue, timeline=AFTERWARDS)
                first = queue.state.next_position
                for _ in range(rng.randint(1, 6)):
                    load.publish(rng.choice([1, 30, 700]))
                published[queue.queue] = {*range(first, queue.state.next_position)}
                await store.sync()

        run_store(store, work, timeout_s=CASE_S_MAX)
        after = self.open()
        if after is None:
            raise Finding("the store can't be opened any more")
        self.counts["gone on"] += 1
        for name, positions in published.items():
            queue = after.open_queue(name)
            queue.check()
            found = self.read(name, queue)
            if not self.forged and any(found.get(at) != AFTERWARDS for at in positions):
                lost = sorted(at for at in positions if found.get(at) != AFTERWARDS)
                raise Finding(f"{name!r} has lost {lost[:3]}... of {len(positions)} published")


def picture(queue: QueueStore) -> object:
    """The part of a queue in which two starts have to agree."""
    state = queue.state
    return (
        state.digest(),
        # Not tuple(...): it would make room for as many as there are numbers.
        tuple(pair for pair in queue.missing),
        queue.damaged,
        queue.live_bytes,
        tuple(state.epochs),
    )


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises `Finding` in a block that takes longer. Only on the main thread."""

    def ring(_signal: int, frame: FrameType | None) -> None:
        stack = "".join(traceback.format_stack(frame, limit=6)) if frame is not None else ""
        raise Finding(f"still running after {seconds} s:\n{stack}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_bound(size: int) -> Iterator[None]:
    """Raises `Finding` if the peak of resident memory rises by more. Linux."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    yield
    taken = _status("VmHWM") - before
    if taken > size:
        raise Finding(f"took {taken >> 20} MiB of memory")


def _status(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name):
            return int(line.split()[1]) << 10
    raise AssertionError(field_name)


def run_case(directory: SimulatedDisk, seed: int) -> Case:
    """Damages a copy of `directory` and opens it. Raises `CaseFailed`, with the story."""
    rng = random.Random(seed)
    case = Case(directory.copy(), rng, forged=rng.random() < 0.15)
    case.damage()
    damaged = as_it_is(case.disk)
    try:
        with deadline(CASE_S_MAX), memory_bound(CASE_BYTES_MAX):
            case.run()
    except Exception as error:
        case.disk = damaged
        raise CaseFailed(case, seed) from error
    return case


def as_it_is(disk: SimulatedDisk) -> SimulatedDisk:
    """A disk with the same bytes, the damaged ones too: these are no writes."""
    made = SimulatedDisk()
    for path in disk.files():
        made.write(path, 0, [bytes(disk.content(path))])
    return made


class CaseFailed(Exception):
    def __init__(self, case: Case, seed: int) -> None:
        super().__init__(f"case {seed}: {'; '.join(case.story)}")
        self.case = case
        self.seed = seed


# -- the command


def store_directory(disk: SimulatedDisk, target: Path) -> None:
    for path in disk.files():
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(bytes(disk.content(path)))


def load_directory(source: Path) -> SimulatedDisk:
    disk = SimulatedDisk()
    for path in sorted(source.rglob("*")):
        if path.is_file():
            disk.write(ROOT / path.relative_to(source), 0, [path.read_bytes()])
    return disk.copy()


def fuzz(minutes: float, seed: int, keep: Path) -> int:
    """Runs cases until the time is over; returns how many have failed."""
    rng = random.Random(seed)
    end = time.monotonic() + 60 * minutes
    said = time.monotonic()
    counts: Counter[str] = Counter()
    failures = 0
    while time.monotonic() < end:
        directories = write_directories(rng.getrandbits(32))
        for _ in range(200):
            if time.monotonic() >= end:
                break
            counts["cases"] += 1
            try:
                counts += run_case(rng.choice(directories), rng.getrandbits(32)).counts
            except CaseFailed as failed:
                failures += 1
                target = keep / f"{seed}-{counts['cases']}"
                store_directory(failed.case.disk, target)
                traceback.print_exception(failed.__cause__, limit=-6)
                print(f"FOUND: {failed}")
                print(f"replay: --replay {target}", flush=True)
                if failures >= 20:
                    return failures
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(summary(counts, failures), flush=True)
    print(summary(counts, failures))
    return failures


def summary(counts: Counter[str], failures: int) -> str:
    parts = [f"{count} {name}" for name, count in counts.items()]
    return f"{failures} failures; " + ", ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Damages directories of a store and opens them.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--keep", type=Path, help="where failing directories are left")
    parser.add_argument("--replay", type=Path, help="a directory that has failed, not changed")
    parser.add_argument("--forged", action="store_true", help="it has forged checksums")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.replay is not None:
        case = Case(load_directory(arguments.replay), random.Random(0), forged=arguments.forged)
        case.run()
        case.go_on()
        print("no failure")
        return 0
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="fuzz-recovery-"))
    print(f"seed {arguments.seed}", flush=True)
    return 1 if fuzz(arguments.minutes, arguments.seed, keep) else 0


if __name__ == "__main__":
    sys.exit(main())
