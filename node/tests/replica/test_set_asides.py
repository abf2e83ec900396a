"""The end of a log that may be missed is kept before it is cut, or it isn't cut."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import loops
import pytest
from node.tests.nodes import lone_node
from node.tests.replica.test_joining import Joiner, Source, scenario, until
from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.workload import open_store, run_store

from ringmq_base.limits import MIB
from ringmq_gm import BegunAgain
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, encode
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica import joining as joining_module
from ringmq_node.replica import set_asides as set_asides_module
from ringmq_node.replica.joining import Joining
from ringmq_node.replica.set_asides import NotSetAsideError, SetAsides
from ringmq_node.replica.tails import Tail, tail_of
from ringmq_node.storage import QueueStore, Store
from ringmq_node.storage.disk.disk import Disk, FileDisk
from ringmq_node.storage.disk.threads import Errands
from ringmq_node.storage.errors import CorruptionReport, StoreClosedError
from ringmq_node.storage.format.set_aside import DIRECTORY
from ringmq_node.storage.set_aside import SetAsideWriter, find, read

KEEP_S = 100.0
BEGUN = BegunAgain(epoch=2, log_epoch=1, log_number=1)


def state_of(*ops: Op) -> ReplicatedState:
    state = ReplicatedState()
    state.begin_epoch(1)
    for number, op in enumerate(ops, 1):
        state.apply(number, op)
    return state


def publish(first: int, count: int) -> Publish:
    return Publish(first, Block.of([b"m%d" % at for at in range(first, first + count)]))


TEN = state_of(publish(0, 5), publish(5, 5))


@pytest.mark.parametrize(
    ("state", "keep_below", "overruled", "confirmed_below", "kept"),
    [
        (TEN, 5, BEGUN, 0, (5, 10, False)),
        (TEN, 5, None, 7, (5, 10, True)),
        (TEN, 5, BEGUN, 10, (5, 10, True)),
        # A failover: nobody has confirmed them.
        (TEN, 5, None, 5, None),
        (TEN, 5, None, 0, None),
        (TEN, 10, BEGUN, 10, None),
        # All of it was acknowledged.
        (state_of(publish(0, 5), publish(5, 5), Remove(((5, 9),))), 5, BEGUN, 10, None),
        (state_of(publish(0, 5), publish(5, 5), Remove(((5, 6),))), 5, None, 7, None),
    ],
)
def test_what_may_be_missed_is_kept_and_a_failover_leaves_nothing(
    state: ReplicatedState,
    keep_below: int,
    overruled: BegunAgain | None,
    confirmed_below: int,
    kept: tuple[int, int, bool] | None,
) -> None:
    tail = tail_of(state, keep_below, overruled=overruled, confirmed_below=confirmed_below)
    found = None if tail is None else (tail.first_position, tail.next_position, tail.confirmed)
    assert found == kept


# --- keeping ---


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, encode(op))


def filled(store: Store) -> QueueStore:
    """Positions 0 to 5, from 3 on large ones; 4 is acknowledged."""
    queue = store.open_queue("id", label="orders")
    queue.begin_epoch(1)
    append(queue, Publish(0, Block.of([b"a", b"b", b"c"], [b"p"])))
    append(queue, Publish(3, Block.of([bytes([at]) * 10_000 for at in range(3)])))
    append(queue, Remove(((4, 4),)))
    return queue


TAIL = Tail(1, 3, 1, 6, 2, 1, 1, confirmed=False)
NAME = "-1-3-1"


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def asides(
    disk: Disk,
    root: Path,
    clock: Clock | None = None,
    *,
    bytes_max: int = MIB,
    free_bytes: int = 1 << 40,
) -> SetAsides:
    return SetAsides(
        disk,
        Errands(),
        root,
        node="a",
        keep_s=KEEP_S,
        bytes_max=bytes_max,
        now=clock or Clock(),
        free_bytes=lambda _: free_bytes,
    )


def contents(disk: Disk, root: Path) -> dict[int, bytes]:
    """Of the only file, whose end says the same."""
    (file,), faults = find(disk, root, repair=False)
    assert not faults
    found: dict[int, bytes] = {}
    path = root / DIRECTORY / f"{file.name}.aside"
    for run in read(disk, path, file.file_bytes, lambda fault: pytest.fail(str(fault))):
        found |= dict(enumerate(run.block.bodies(), run.first_position))
    assert (file.messages, file.body_bytes) == (len(found), sum(map(len, found.values())))
    return found


def on_disk(folder: Path, play: Callable[[Store], Awaitable[None]]) -> None:
    store = Store.open(folder, cluster_id="c", node="a")
    run_store(store, lambda: play(store), timeout_s=20)


WANTED = {1: b"b", 2: b"c", 3: bytes(10_000), 5: b"\2" * 10_000}


def test_live_messages_are_kept_with_their_properties_and_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(set_asides_module, "PIECE_BYTES", 1)

    async def play(store: Store) -> None:
        kept = asides(store.disk, tmp_path)
        assert await kept.keep(filled(store), "orders", TAIL)
        assert contents(store.disk, tmp_path) == WANTED
        (each,) = kept.describe()
        assert (each.queue, each.id, each.messages, each.messages_missing) == ("orders", "id", 4, 0)
        assert (each.first_position, each.next_position) == (1, 6)
        assert (each.at_s, each.removed_at_s) == (1_000_000, 1_000_100)
        assert each.name.endswith(NAME)
        # The same attempt once more, in this life and in the next, writes nothing.
        assert not await kept.keep(store.open_queue("id"), "orders", TAIL)
        again = asides(store.disk, tmp_path)
        assert again.describe() == kept.describe()
        assert not await again.keep(store.open_queue("id"), "orders", TAIL)

    on_disk(tmp_path, play)
    assert "positions 1 to 5, which may have been confirmed, is cut: 4 messages" in caplog.text
    # Nothing but the file is needed: not the queue's folder, nor the message store.
    assert contents(FileDisk(), tmp_path) == WANTED


@pytest.mark.logs("which were confirmed")
def test_known_confirms_are_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(store: Store) -> None:
        confirmed = Tail(1, 3, 1, 6, 0, 0, 0, confirmed=True)
        await asides(store.disk, tmp_path).keep(filled(store), "orders", confirmed)

    on_disk(tmp_path, play)
    assert "which were confirmed" in caplog.text
    assert [each.levelname for each in caplog.records if "confirmed" in each.message] == ["ERROR"]


@pytest.mark.parametrize(
    ("bytes_max", "free_bytes", "why"),
    [
        (20_000, 1 << 40, "set_aside_bytes_max is 20000"),
        (MIB, 64 * MIB, "make room on the disk"),
    ],
)
def test_without_room_nothing_is_written(
    tmp_path: Path, bytes_max: int, free_bytes: int, why: str
) -> None:
    async def play(store: Store) -> None:
        kept = asides(store.disk, tmp_path, bytes_max=bytes_max, free_bytes=free_bytes)
        with pytest.raises(NotSetAsideError, match=why):
            await kept.keep(filled(store), "orders", TAIL)
        assert store.disk.list(tmp_path / DIRECTORY) == {}

    on_disk(tmp_path, play)


def test_a_queue_that_is_deleted_meanwhile_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It left one that lacked the rest of the messages, and said that they had no body."""
    monkeypatch.setattr(set_asides_module, "PIECE_BYTES", 1)
    add = SetAsideWriter.add
    written: list[int] = []

    async def play(store: Store) -> None:
        queue = filled(store)
        loop = asyncio.get_running_loop()

        async def delete() -> None:
            if store.knows("id"):
                store.delete_queue("id")

        def adding(writer: SetAsideWriter, runs: Sequence[Run]) -> None:
            """In a thread."""
            add(writer, runs)
            written.append(len(runs))
            asyncio.run_coroutine_threadsafe(delete(), loop).result(10)

        monkeypatch.setattr(SetAsideWriter, "add", adding)
        kept = asides(store.disk, tmp_path)
        with pytest.raises(StoreClosedError, match="was deleted"):
            await kept.keep(queue, "orders", TAIL)
        assert kept.describe() == ()
        assert store.disk.list(tmp_path / DIRECTORY) == {}

    on_disk(tmp_path, play)
    assert written == [1]
    assert "set aside" not in caplog.text


def test_files_of_all_queues_are_within_one_limit(tmp_path: Path) -> None:
    async def play(store: Store) -> None:
        kept = asides(store.disk, tmp_path, bytes_max=40_000)
        queue = filled(store)
        await kept.keep(queue, "orders", TAIL)
        other = Tail(1, 3, 0, 6, 2, 1, 1, confirmed=False)
        with pytest.raises(NotSetAsideError, match="beside"):
            await kept.keep(queue, "orders", other)
        # An operator removes the file by hand.
        (name,) = store.disk.list(tmp_path / DIRECTORY)
        store.disk.remove(tmp_path / DIRECTORY / name)
        await kept.look()
        assert kept.describe() == ()
        await kept.keep(queue, "orders", other)

    on_disk(tmp_path, play)


def test_a_setting_of_0_cuts_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(store: Store) -> None:
        assert not await asides(store.disk, tmp_path, bytes_max=0).keep(filled(store), "q", TAIL)
        assert store.disk.list(tmp_path / DIRECTORY) == {}

    on_disk(tmp_path, play)
    assert "so nothing is kept" in caplog.text


def test_it_is_removed_when_its_time_is_over_also_over_restarts(tmp_path: Path) -> None:
    clock = Clock()

    async def play(store: Store) -> None:
        await asides(store.disk, tmp_path, clock).keep(filled(store), "orders", TAIL)
        clock.time += KEEP_S - 1
        kept = asides(store.disk, tmp_path, clock)
        await kept.look()
        assert len(kept.describe()) == 1
        clock.time += 1
        await kept.look()
        assert kept.describe() == ()
        assert store.disk.list(tmp_path / DIRECTORY) == {}

    on_disk(tmp_path, play)


@pytest.mark.parametrize(
    ("settings", "kept"), [({"leftover_s": 0.0}, 1), ({"set_aside_s": 0.0}, 0)]
)
def test_to_remove_leftovers_at_once_removes_no_log_that_was_cut(
    settings: dict[str, float], kept: int, tmp_path: Path
) -> None:
    """The manual says how to have the room of deleted queues; these may be last copies."""

    async def main() -> None:
        node = await lone_node(tmp_path)
        clock = Clock()
        clock.time = time.time()
        file = asides(node.store.disk, node.store.directory, clock)
        await file.keep(filled(node.store), "orders", TAIL)
        await node.stop()
        node = await lone_node(tmp_path, **settings)
        await node.hosting.set_asides.look()
        assert len(node.hosting.set_asides.describe()) == kept
        await node.stop()

    loops.run(main())


@pytest.mark.logs("a set-aside file can't be read")
def test_a_damaged_file_is_reported_and_the_rest_of_it_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(store: Store) -> None:
        await asides(store.disk, tmp_path).keep(filled(store), "orders", TAIL)

    on_disk(tmp_path, play)
    (path,) = (tmp_path / DIRECTORY).iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(bytes(10_000)) + 5] ^= 1
    path.write_bytes(data)
    faults: list[CorruptionReport] = []
    positions = [run.first_position for run in read(FileDisk(), path, len(data), faults.append)]
    assert positions == [1, 5]
    assert len(faults) == 1
    path.write_bytes(data[:-3])
    assert asides(FileDisk(), tmp_path).describe() == ()
    assert "can't be read" in caplog.text


def test_the_power_may_be_cut_at_any_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file is there, or none; and when `keep` has returned, it is there."""
    monkeypatch.setattr(set_asides_module, "PIECE_BYTES", 1)
    disk = SimulatedDisk()
    store = open_store(disk)
    begun = done = 0

    async def work() -> None:
        nonlocal begun, done
        queue = filled(store)
        await store.sync()
        begun = len(disk.log)
        await asides(store.disk, store.directory).keep(queue, "orders", TAIL)
        done = len(disk.log)

    run_store(store, work)
    assert done > begun + 5
    replayed, rng = SimulatedDisk(), random.Random(1)
    kinds: tuple[Kept, ...] = ("nothing", "everything", "anything")
    for at, call in enumerate([*disk.log[:done], None]):
        for kept in kinds if at >= begun else ():
            after = replayed.power_cut(kept, rng)
            found = asides(after, store.directory)
            if at == done or found.describe():
                assert contents(after, store.directory) == WANTED, (at, kept)
            # No half-made file is left.
            assert len(after.list(store.directory / DIRECTORY)) == len(found.describe())
        if call is not None:
            replayed.do(call)


# --- in a joining ---


class Longer(Joiner):
    """A replica whose log goes beyond the one that its ring was begun again from."""

    asides: SetAsides

    def join(self) -> None:
        super().join()
        self.joining = Joining(
            self.queue,
            self.delivered,
            apply=self.apply,
            installed=lambda: None,
            sync=self.store.sync,
            syncing=self.syncing,
            turns=self.turns,
            set_aside=self.keep,
        )

    async def keep(self, keep_below: int) -> bool:
        tail = tail_of(self.queue.state, keep_below, overruled=BEGUN, confirmed_below=0)
        return tail is not None and await self.asides.keep(self.queue, "q", tail)


def diverged(source: Source, joiner: Joiner) -> Longer:
    """Both have positions 0 to 4. 5 to 9 are other messages at the source, of a later epoch."""
    longer = Longer(joiner.store, joiner.queue, source)
    source.publish_many(5)
    joiner.queue.begin_epoch(1)
    append(joiner.queue, publish(0, 5))
    append(joiner.queue, publish(5, 5))
    source.queue.begin_epoch(2)
    source.publish(*(f"other{at}" for at in range(5)))
    return longer


def test_it_is_kept_before_it_is_cut_and_a_newer_state_is_fetched(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        longer = diverged(source, joiner)
        longer.asides = asides(joiner.store.disk, tmp_path)
        longer.join()
        await longer.run()
        longer.check_same()
        assert contents(joiner.store.disk, tmp_path) == {at: b"m%d" % at for at in range(5, 10)}
        assert source.states_given == 2

    scenario(tmp_path, play)


@pytest.mark.logs("can't be set aside: it can't be written")
def test_a_full_disk_keeps_the_log_from_being_cut_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining_module, "ROOM_RETRY_S", 0.005)

    class Full(FileDisk):
        is_full = True

        def sync(self, path: Path) -> None:
            if self.is_full and path.name.endswith(".new"):
                raise OSError(errno.ENOSPC, "planted", str(path))
            super().sync(path)

    async def play(source: Source, joiner: Joiner) -> None:
        longer = diverged(source, joiner)
        disk = Full()
        longer.asides = asides(disk, tmp_path)
        longer.join()
        running = asyncio.create_task(longer.run())
        await until(lambda: source.states_given > 3)
        assert longer.queue.state.next_position == 10
        assert longer.queue.state.epoch == 1
        assert joiner.store.failure is None
        # Ops that come meanwhile aren't gathered: a state of later has them.
        source.publish_many(3)
        longer.deliver()
        disk.is_full = False
        await running
        longer.check_same()
        assert len(contents(disk, tmp_path)) == 5
        disk.close()

    scenario(tmp_path, play)
    assert caplog.text.count("can't be set aside") == 1
