"""The scrub finds damage on the disk of a running store, and what is lost by it is written anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from expected_logs import DAMAGE
from loops import run
from node.tests.nodes import lone_node
from node.tests.storage.workload import bodies, run_store
from waiting import until

from ringmq_base.ranges import Range
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.caller import Caller
from ringmq_node.model.reasons import Reason
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.scrub import Scrub, _FileCheck

LIMITS = StoreLimits(journal_entries_max=500)
FAST = 1 << 40


class Scrubbed:
    """A store in a folder, with one queue, and its scrub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store.open(folder, cluster_id="c", node="n", limits=LIMITS)
        self.queue = self.store.open_queue("q")
        self.scrub = Scrub(self.store, lambda: [self.queue], rate_bytes=FAST, pause_s=0.0)
        self.queue.begin_epoch(1)

    def append(self, op: Op) -> None:
        self.queue.append(self.queue.state.last_number + 1, op, ops.encode(op))

    async def publish(self, count: int, size_bytes: int = 50) -> None:
        for _ in range(count):
            at = self.queue.state.next_position
            body = (b"<%05d>" % at).ljust(size_bytes, b".")
            self.append(Publish(at, Block.of([body]), False, b"p", at + 1))
            if count < 100:
                # A round each: damage within the last one would look like a torn tail.
                await self.store.sync()
        await self.store.sync()

    @property
    def counted(self) -> tuple[int, int]:
        counters = self.store.counters
        return counters.scrub_faults, counters.scrub_messages


def flip(folder: Path, text: bytes) -> None:
    """Changes one byte in each place on the disk that has this text."""
    places = 0
    for path in folder.rglob("*"):
        at = path.read_bytes().find(text) if path.is_file() else -1
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"!")
            places += 1
    assert places


def scenario(tmp_path: Path, play: Callable[[Scrubbed], Awaitable[None]]) -> None:
    scrubbed = Scrubbed(tmp_path / "data")

    async def work() -> None:
        await play(scrubbed)
        scrubbed.queue.check()

    run_store(scrubbed.store, work, timeout_s=30)


def reopened(tmp_path: Path, look: Callable[[QueueStore], None]) -> None:
    store = Store.open(tmp_path / "data", cluster_id="c", node="n", limits=LIMITS)

    async def work() -> None:
        look(store.open_queue("q"))

    run_store(store, work, timeout_s=30)


def test_a_sound_disk_is_read_whole_and_nothing_is_found(tmp_path: Path) -> None:
    async def play(scrubbed: Scrubbed) -> None:
        await scrubbed.publish(1200)
        await scrubbed.publish(10, size_bytes=9000)
        await scrubbed.scrub.pass_once()
        assert scrubbed.counted == (0, 0)
        counters = scrubbed.store.counters
        assert counters.scrub_bytes > 1200 * 50 + 10 * 9000
        assert counters.scrub_passes == 1

    scenario(tmp_path, play)


@pytest.mark.logs(DAMAGE)
@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "on disk only"])
@pytest.mark.parametrize("size_bytes", [50, 9000], ids=["embedded", "stored"])
def test_a_damaged_body_is_found(tmp_path: Path, lazy: bool, size_bytes: int) -> None:
    """In memory, it is written anew; otherwise it is missing, and its replica fetches it."""

    async def play(scrubbed: Scrubbed) -> None:
        told = []
        scrubbed.queue.on_lost = lambda: told.append(True)
        await scrubbed.publish(20, size_bytes)
        if lazy:
            scrubbed.queue.pager.set_lazy(True)
            scrubbed.queue.bodies.forget_recent()
        before = {} if lazy else bodies(scrubbed.queue, bytes_max=20_000)
        flip(scrubbed.folder, b"<00007>")
        await scrubbed.scrub.pass_once()
        assert scrubbed.counted == (1, 1)
        assert told
        if lazy:
            assert scrubbed.queue.missing.ranges() == [(7, 7)]
        else:
            assert not scrubbed.queue.missing
            assert bodies(scrubbed.queue, bytes_max=20_000) == before
            await scrubbed.store.sync()
        await scrubbed.scrub.pass_once()

    scenario(tmp_path, play)

    def look(queue: QueueStore) -> None:
        assert not queue.damaged
        # A start reads no bodies of the message store: it would find this one when it is fetched.
        is_found = lazy and size_bytes == 50
        assert queue.missing.ranges() == ([(7, 7)] if is_found else [])
        if not lazy:
            assert bodies(queue, bytes_max=20_000)[7].startswith(b"<00007>")

    reopened(tmp_path, look)


@pytest.mark.logs(DAMAGE)
def test_damage_to_the_ops_of_the_current_journal_does_not_outlive_the_scrub(
    tmp_path: Path,
) -> None:
    """Without another journal, a restart would have lost ops."""

    async def play(scrubbed: Scrubbed) -> None:
        await scrubbed.publish(5)
        scrubbed.append(Remove(((1, 1),)))
        await scrubbed.store.sync()
        await scrubbed.publish(3)
        await scrubbed.publish(1)
        journal = scrubbed.queue.on_disk()[-1]
        data = bytearray(journal.path.read_bytes())
        at = data.index(ops.encode(Remove(((1, 1),))))
        data[at] ^= 1
        with journal.path.open("r+b") as file:
            file.write(data)
        await scrubbed.scrub.pass_once()
        assert scrubbed.counted == (1, 0)
        await scrubbed.store.sync()

    scenario(tmp_path, play)

    def look(queue: QueueStore) -> None:
        assert not queue.damaged
        assert queue.state.live.ranges() == [(0, 0), (2, 8)]

    reopened(tmp_path, look)


@pytest.mark.logs(DAMAGE)
def test_damage_in_a_segment_is_found_though_only_its_counts_are_in_memory(tmp_path: Path) -> None:
    async def play(scrubbed: Scrubbed) -> None:
        await scrubbed.publish(600)
        scrubbed.queue.pager.set_lazy(True)
        scrubbed.queue.seal()
        await scrubbed.store.sync()
        await until(lambda: not scrubbed.queue.flushable, "the journal is flushed", within_s=10)
        flip(scrubbed.folder, b"<00007>")
        await scrubbed.scrub.pass_once()
        faults, messages = scrubbed.counted
        assert faults == 1
        # The record that the flush has joined from many small ones is lost as a whole.
        assert messages >= 1
        assert scrubbed.queue.missing.contains_all(7, 7)

    scenario(tmp_path, play)


def test_a_queue_that_is_deleted_during_a_pass_is_passed_over(tmp_path: Path) -> None:
    """A replica that leaves the node and comes back has the same folder. The scrub took the new
    journal for the old one, damaged, and put another one of the old queue in its place."""

    async def play(scrubbed: Scrubbed) -> None:
        await scrubbed.publish(20)
        old = scrubbed.queue
        scrubbed.store.delete_queue("q")
        scrubbed.queue = scrubbed.store.open_queue("q")
        assert scrubbed.queue.directory == old.directory
        with pytest.raises(AssertionError, match="the next queue of this name"):
            old.seal()
        await scrubbed.publish(30)
        # As one that has begun before.
        await Scrub(scrubbed.store, lambda: [old], rate_bytes=FAST, pause_s=0.0).pass_once()
        assert scrubbed.counted == (0, 0)
        await scrubbed.publish(1)

    scenario(tmp_path, play)

    def look(queue: QueueStore) -> None:
        assert [*bodies(queue)] == [*range(31)]

    reopened(tmp_path, look)


@pytest.mark.parametrize(
    "read", [_FileCheck.step, MessageStore.check_record], ids=["journal", "body"]
)
@pytest.mark.parametrize("is_begun", [False, True], ids=["before its turn", "while it is read"])
def test_a_queue_that_is_given_up_during_a_pass_does_not_end_the_scrub(
    read: Callable[..., Any], is_begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it can be written anew."""

    async def play(scrubbed: Scrubbed) -> None:
        is_body = read is MessageStore.check_record
        await scrubbed.publish(20, size_bytes=9000 if is_body else 50)
        await scrubbed.publish(1)
        flip(scrubbed.folder, b"<00007>")
        loop = asyncio.get_running_loop()

        async def give_up() -> None:
            scrubbed.store.abandon(scrubbed.queue)

        def reading(*arguments: object) -> object:
            """In a thread of the scrub."""
            asyncio.run_coroutine_threadsafe(give_up(), loop).result(10)
            return read(*arguments)

        if is_begun:
            monkeypatch.setattr(MessageStore if is_body else _FileCheck, read.__name__, reading)
        else:
            await give_up()
        await scrubbed.scrub.pass_once()
        assert scrubbed.queue.closed
        assert scrubbed.counted == (0, 0)
        assert scrubbed.store.counters.scrub_passes == 1

    scenario(tmp_path, play)


@pytest.mark.logs(DAMAGE)
def test_a_node_scrubs_by_its_settings_and_tells_what_was_found(tmp_path: Path) -> None:
    async def main() -> None:
        node = await lone_node(tmp_path, scrub_pause_s=0.05, scrub_rate_bytes=FAST)
        async with asyncio.timeout(20):
            await node.start()
            try:
                caller = Caller(deadline_s=5.0)
                await node.broker.declare("q", QueueArguments(), caller)
                publishing = await node.broker.open_publisher("q", _Nobody())
                publishing.publish(1, [b"<00007>" * 8], [], transient=False)
                await node.store.sync()
                flip(tmp_path, b"<00007>")
                await until(lambda: node.broker.resources().store.scrub_faults == 1, within_s=10)
                assert node.broker.resources().store.scrub_messages == 1
            finally:
                await node.stop()

    run(main())


class _Nobody:
    """A publisher's door that nobody stands at."""

    def confirmed(self, sequences: Sequence[Range]) -> None:
        return

    def moved(self, reason: Reason) -> None:
        return
