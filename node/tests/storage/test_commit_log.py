"""The commit log: a round of several queues is one sync, and a start puts its bytes in place."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.workload import LIMITS, ROOT, bodies, open_store, run_store
from waiting import until

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.commit_log import LOG_NAMES, SETTLED_HEAD, CommitLog, LogJob, write
from ringmq_node.storage.format import redo_records
from ringmq_node.storage.format.records import RecordKind, record_header
from ringmq_node.storage.format.redo_records import OFFSET_MAX, Journal, RedoPiece, RedoRows
from ringmq_node.storage.queue.entries import QueueFile
from ringmq_node.storage.queue.journal import Piece

QUEUES = ("one", "two", "three")
LOGS = [ROOT / name for name in LOG_NAMES]
# Journals that aren't sealed.
LONG = StoreLimits()
NEW = b"new" * 300
# One round fills a log.
SHORT_LOGS = replace(LONG, commit_log_bytes_max=500)
# The journals get a round's bytes with the next round.
AT_ONCE = replace(LONG, write_behind_bytes_max=0)


def publish(queue: QueueStore, *texts: bytes) -> None:
    op = Publish(queue.state.next_position, Block.of([*texts]))
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def remove(queue: QueueStore, first: int, last: int) -> None:
    op = Remove(((first, last),))
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


async def rounds(store: Store, count: int) -> None:
    """Of all queues. The first makes their journals, so it is a direct one."""
    for number in range(count):
        for name in QUEUES:
            publish(store.open_queue(name), f"{name} {number}".encode())
        await store.sync()


def after_rounds(count: int, limits: StoreLimits = LONG, kept: Kept = "nothing") -> SimulatedDisk:
    """A disk as a power cut leaves it, when so many rounds were reported durable."""
    disk = SimulatedDisk()
    store = open_store(disk, limits)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        await rounds(store, count)
        left.append(disk.power_cut(kept, random.Random(1)))

    run_store(store, work)
    return left[0]


def found(disk: SimulatedDisk) -> dict[str, list[bytes]]:
    store = open_store(disk, LONG)
    return {name: [*bodies(store.open_queue(name)).values()] for name in store.queue_names()}


def expected(count: int) -> dict[str, list[bytes]]:
    return {name: [f"{name} {number}".encode() for number in range(count)] for name in QUEUES}


def test_a_round_of_several_queues_is_one_sync() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LONG)

    async def work() -> None:
        await rounds(store, 1)
        before, calls = store.statistics().files_synced, len(disk.log)
        await rounds(store, 1)
        assert store.statistics().files_synced == before + 1
        synced = [call.path for call in disk.log[calls:] if call.name.startswith("sync")]
        # The directory once, as the log is new in it.
        assert synced == [LOGS[0], ROOT]
        calls = len(disk.log)
        await rounds(store, 1)
        assert [call.path for call in disk.log[calls:] if "sync" in call.name] == [LOGS[0]]
        assert store.statistics().commit_log_bytes_written == len(disk.content(LOGS[0]))

    run_store(store, work)


def test_the_numbers_of_a_store_are_what_it_has_given_to_write() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LONG)

    async def everywhere() -> None:
        await rounds(store, 1)
        # Of more than `embed_below`: to the message store.
        publish(store.open_queue("one"), bytes(5000))
        await store.sync()
        # Alone, each has its journal written: nothing waits in the commit log.
        for name in QUEUES:
            publish(store.open_queue(name), b"alone")
            await store.sync()

    async def work() -> None:
        # Its folders and files are made, and their headers written.
        await rounds(store, 1)
        await everywhere()
        before, calls = store.statistics(), len(disk.log)
        await everywhere()
        after = store.statistics()
        written = [
            getattr(after, name) - getattr(before, name)
            for name in (
                "journal_bytes_written",
                "commit_log_bytes_written",
                "message_store_bytes_written",
                "segment_bytes_written",
            )
        ]
        given = sum(len(call.data) for call in disk.log[calls:] if call.name == "write")
        assert sum(written) == given
        assert [each > 0 for each in written] == [True, True, True, False]

    run_store(store, work)


def test_two_copies_are_below_2_2_bytes_for_each_byte_of_a_body() -> None:
    """With 1 KiB, the id of a publisher, and four queues in a round (decision 0204)."""
    disk = SimulatedDisk()
    store = open_store(disk, LONG)
    queues = [store.open_queue(f"queue {number}") for number in range(4)]

    async def work() -> None:
        for number in range(20):
            if number == 1:
                before = store.statistics()
            for queue in queues:
                body = Block.of([bytes(1024)])
                op = Publish(queue.state.next_position, body, False, b"p" * 16, number)
                queue.append(queue.state.last_number + 1, op, ops.encode(op))
            await store.sync()
        after = store.statistics()
        written = sum(
            getattr(after, name) - getattr(before, name)
            for name in ("journal_bytes_written", "commit_log_bytes_written")
        )
        assert written < 2.2 * 1024 * len(queues) * 19

    run_store(store, work)


def test_a_journal_of_more_than_4_gib_is_written_directly() -> None:
    """A log has 32 bits for an offset."""
    log = CommitLog(SimulatedDisk(), ROOT, LONG, print)
    folder = ROOT / "queues" / ("0" * 32)

    def plan(end: int) -> LogJob | None:
        files = [QueueFile(folder / "journal.jif", 1, 7, size, 0) for size in (100, end)]
        return log.plan([Piece(file, 40, []) for file in files], 3)

    assert plan(OFFSET_MAX) is not None
    assert plan(OFFSET_MAX + 1) is None


def test_a_round_of_one_queue_goes_straight_to_its_journal() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LONG)

    async def work() -> None:
        for text in (b"first", b"second", b"third"):
            publish(store.open_queue("one"), text)
            await store.sync()

    run_store(store, work)
    assert not {*LOGS} & {call.path for call in disk.log}


def test_large_rounds_go_straight_to_their_journals() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, replace(LONG, commit_log_bytes_per_queue_max=100))

    async def work() -> None:
        for _ in range(2):
            for name in QUEUES:
                publish(store.open_queue(name), bytes(200))
            await store.sync()

    run_store(store, work)
    assert not {*LOGS} & {call.path for call in disk.log}


@pytest.mark.parametrize("kept", ["nothing", "anything", "everything"])
@pytest.mark.parametrize(
    "limits",
    [LONG, SHORT_LOGS, AT_ONCE, replace(SHORT_LOGS, write_behind_bytes_max=0)],
    ids=["one log", "logs in turns", "journals written at once", "in turns and at once"],
)
def test_after_a_power_cut_each_queue_has_all_that_was_durable(
    limits: StoreLimits, kept: Kept
) -> None:
    assert found(after_rounds(20, limits, kept)) == expected(20)


def test_journals_that_come_to_a_log_later_have_numbers_of_their_own() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LONG)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        await rounds(store, 1)
        for names in (QUEUES[:2], QUEUES[1:], QUEUES[::2]):
            for name in names:
                publish(store.open_queue(name), f"{name} in {'+'.join(names)}".encode())
            await store.sync()
        left.append(disk.power_cut("nothing", random.Random(1)))

    run_store(store, work)
    assert {name: texts[1:] for name, texts in found(left[0]).items()} == {
        "one": [b"one in one+two", b"one in one+three"],
        "two": [b"two in one+two", b"two in two+three"],
        "three": [b"three in two+three", b"three in one+three"],
    }


def test_a_start_applies_the_logs_durably_and_removes_them() -> None:
    disk = after_rounds(5)
    assert LOGS[0] in disk.files()
    open_store(disk, LONG)
    assert not {*LOGS} & {*disk.files()}
    assert found(disk.power_cut("nothing", random.Random(1))) == expected(5)


def test_a_clean_stop_leaves_no_log() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, SHORT_LOGS)
    run_store(store, lambda: rounds(store, 9))
    assert not {*LOGS} & {*disk.files()}
    assert found(disk.power_cut("nothing", random.Random(1))) == expected(9)


def test_a_log_is_free_once_its_journals_are_synced() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, SHORT_LOGS)

    async def work() -> None:
        # Directly, then one in each log.
        await rounds(store, 3)
        await until(lambda: disk.content(LOGS[0])[: len(SETTLED_HEAD)] == SETTLED_HEAD)
        # Without any log: the bytes of the first one are durable in the journals.
        left = disk.power_cut("nothing", random.Random(1))
        left.remove(LOGS[1])
        queues = found(left)
        assert all(len(texts) >= 2 for texts in queues.values()), queues

    run_store(store, work)


class HeldDisk(SimulatedDisk):
    """Syncs of journals wait for `go`. Rounds through a log need none."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def sync(self, path: Path) -> None:
        if path.suffix == ".jif":
            assert self.go.wait(20)
        super().sync(path)


def test_while_no_log_is_free_rounds_are_direct() -> None:
    disk = HeldDisk()
    store = open_store(disk, SHORT_LOGS)

    async def work() -> None:
        await rounds(store, 1)
        disk.go.clear()
        for number in range(1, 8):
            await rounds_from(store, number)
            left = disk.power_cut("nothing", random.Random(1))
            assert found(left) == expected(number + 1)
        assert store.statistics().files_synced > 5 * len(QUEUES)
        disk.go.set()

    run_store(store, work)


class SealingDisk(SimulatedDisk):
    """Another thread seals the journal at the moment of its first sync."""

    def __init__(self, journal: QueueFile) -> None:
        super().__init__()
        self.journal = journal

    def sync(self, path: Path) -> None:
        current, sealed = self.journal.path, self.journal.path.with_name("1.jif")
        if path == current and current != sealed:
            with self.journal.lock:
                self.rename(current, sealed)
                self.journal.path = sealed
            self.write(current, 0, [b"the next journal"])
        super().sync(path)


def test_a_journal_that_is_sealed_meanwhile_is_synced_under_its_new_name() -> None:
    journal = QueueFile(ROOT / "queues" / ("0" * 32) / "journal.jif", 1, 7, 0, 0)
    disk = SealingDisk(journal)
    disk.write(journal.path, 0, [b"head"])
    log = CommitLog(disk, ROOT, replace(LONG, commit_log_queues_min=1), print)
    op = record_header(7, 4, RecordKind.OP, b"ops")
    job = log.plan([Piece(journal, 4, [op, b"ops"])], len(op) + 3)
    assert job is not None
    write(disk, job)
    disk.write(journal.path, 4, job.pieces[0].buffers)
    log.written(job)
    log.drain()
    synced = [call.path.name for call in disk.log if call.name == "sync"]
    assert "1.jif" in synced
    assert bytes(disk.content(journal.path)) == b"head" + op + b"ops"


def test_a_sealed_journal_gets_its_bytes_too() -> None:
    """It was renamed since, and flushed or not."""
    disk = SimulatedDisk()
    limits = replace(LONG, journal_entries_max=4, flush_piece_bytes_max=50)
    store = open_store(disk, limits)
    cuts: list[SimulatedDisk] = []

    async def work() -> None:
        for number in range(12):
            await rounds_from(store, number)
            cuts.append(disk.power_cut("nothing", random.Random(1)))

    run_store(store, work)
    assert any(call.path.name == "1.jif" or call.new for call in disk.log)
    for number, left in enumerate(cuts):
        assert found(left) == expected(number + 1)


async def rounds_from(store: Store, number: int) -> None:
    for name in QUEUES:
        publish(store.open_queue(name), f"{name} {number}".encode())
    await store.sync()


def test_a_queue_that_was_made_anew_gets_nothing_of_the_old_one() -> None:
    """Same folder, same generation: the marker tells the journals apart."""
    disk = SimulatedDisk()
    store = open_store(disk, LONG)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        await rounds(store, 6)
        store.delete_queue("two")
        # So long that pieces of the old journal would lie within it.
        publish(store.open_queue("two"), NEW)
        await store.sync()
        left.append(disk.power_cut("everything", random.Random(1)))

    run_store(store, work)
    assert found(left[0]) == expected(6) | {"two": [NEW]}


def test_removed_messages_stay_removed() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LONG)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        await rounds(store, 3)
        for name in QUEUES:
            remove(store.open_queue(name), 0, 1)
        await store.sync()
        left.append(disk.power_cut("nothing", random.Random(1)))

    run_store(store, work)
    assert found(left[0]) == {name: [f"{name} 2".encode()] for name in QUEUES}


# -- the bytes of a record


def test_records_come_back_byte_for_byte() -> None:
    one, two = Journal("0a" * 16, 1, 0x01020304), Journal("0b" * 16, 7, 0x05060708)
    rows = RedoRows()
    rows.name(0, one)
    rows.name(1, two)
    pieces: list[RedoPiece] = []
    for number, journal, offset in ((0, one, 40), (1, two, 1 << 31)):
        buffers: list[bytes] = []
        at = offset
        for payload in (b"an op", b"", bytes(500)):
            # A round that is under way when it is framed: synced up to the first one.
            fields = {"number": at, "epoch": 3, "flags": 1, "synced": offset - 8 * number}
            header = record_header(journal.marker, at, RecordKind.FILL, payload, **fields)
            buffers += (header, payload)
            pieces.append(RedoPiece(journal, at, header + payload))
            at += len(header) + len(payload)
        rows.add(number, offset, buffers)
    assert redo_records.decode(rows.encode(), {}) == ({0: one, 1: two}, pieces)


@pytest.mark.parametrize("cut", [1, 5, 10, 50, 90, 130])
def test_a_payload_that_is_cut_short_is_none(cut: int) -> None:
    rows = RedoRows()
    rows.name(0, Journal("0a" * 16, 1, 7))
    rows.add(0, 40, [record_header(7, 40, RecordKind.OP, bytes(60)), bytes(60)])
    payload = rows.encode()
    assert len(payload) == 8 + 32 + 34 + 60
    with pytest.raises(ValueError, match="record"):
        redo_records.decode(payload[:-cut], {})


def test_a_record_of_a_journal_that_nothing_has_named_is_damage() -> None:
    rows = RedoRows()
    rows.add(3, 40, [record_header(7, 40, RecordKind.OP, b"op"), b"op"])
    with pytest.raises(ValueError, match="journal 3, which nothing before it names"):
        redo_records.decode(rows.encode(), {2: Journal("0a" * 16, 1, 7)})


# -- damage


def flip(path: Path, at: int) -> Callable[[SimulatedDisk], None]:
    def damage(disk: SimulatedDisk) -> None:
        disk.content(path)[at] ^= 4

    return damage


@pytest.mark.logs("commit-0.log")
@pytest.mark.may_log("no valid record header")
@pytest.mark.parametrize("at", [3, 40, 90, 200], ids=["head", "header", "table", "body"])
def test_after_damage_no_replica_of_the_node_counts_as_whole(at: int) -> None:
    disk = after_rounds(20)
    flip(LOGS[0], at)(disk)
    store = open_store(disk, LONG)
    for name in QUEUES:
        assert store.open_queue(name).partial, name
    # Nor after the next start: the marks are on the disk.
    again = open_store(disk.power_cut("nothing", random.Random(1)), LONG)
    assert all(again.open_queue(name).partial for name in QUEUES)


def test_a_torn_tail_is_no_damage() -> None:
    """The last record was reported to nobody, or it would be whole."""
    disk = after_rounds(20)
    size = len(disk.content(LOGS[0]))
    flip(LOGS[0], size - 1)(disk)
    store = open_store(disk, LONG)
    for name in QUEUES:
        queue = store.open_queue(name)
        assert not queue.partial
        assert len(queue.state.live) >= 19


def with_two_logs(damage: Callable[[SimulatedDisk], None]) -> SimulatedDisk:
    """A power cut while the full log's journals are synced. Of the three queues, the newest op of
    one is in that log alone: its last record."""
    disk = HeldDisk()
    store = open_store(disk, SHORT_LOGS)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        await rounds(store, 1)
        disk.go.clear()
        await rounds_from(store, 1)
        for name in QUEUES[:2]:
            publish(store.open_queue(name), f"{name} 2".encode())
        await store.sync()
        left.append(disk.power_cut("nothing", random.Random(1)))
        disk.go.set()

    run_store(store, work)
    damage(left[0])
    return left[0]


@pytest.mark.logs("commit-0.log")
@pytest.mark.may_log("no valid record header")
def test_the_other_log_proves_the_end_of_a_full_one() -> None:
    """The last record looks torn; but nothing is written behind what isn't durable."""
    disk = with_two_logs(lambda disk: flip(LOGS[0], len(disk.content(LOGS[0])) - 1)(disk))
    store = open_store(disk, LONG)
    assert all(store.open_queue(name).partial for name in QUEUES)
    assert len(store.open_queue(QUEUES[2]).state.live) == 1


@pytest.mark.parametrize("torn", [False, True])
def test_the_other_log_proves_no_more_than_that(torn: bool) -> None:
    def cut(disk: SimulatedDisk) -> None:
        if torn:
            # The first record of the younger log was never reported.
            flip(LOGS[1], len(disk.content(LOGS[1])) - 1)(disk)

    disk = with_two_logs(cut)
    store = open_store(disk, LONG)
    for name in QUEUES:
        queue = store.open_queue(name)
        assert not queue.partial
        assert len(queue.state.live) == (3 if name in QUEUES[:2] and not torn else 2)


def test_a_failed_write_of_the_log_fails_the_store() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LIMITS)
    failures: list[Exception] = []
    store.on_failed = failures.append

    async def work() -> None:
        await rounds(store, 2)
        disk.syncs_left = 0
        with pytest.raises(Exception, match="simulated"):
            await rounds(store, 1)

    run_store(store, work)
    assert len(failures) == 1
    disk.syncs_left = None
    left = disk.power_cut("nothing", random.Random(1))
    assert {name: texts[:2] for name, texts in found(left).items()} == expected(2)
