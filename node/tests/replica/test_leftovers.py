"""A replica that no record names any more is kept for a while, over restarts, and then removed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loops import run
from waiting import until

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove, encode
from ringmq_node.replica.leftovers import Leftovers
from ringmq_node.storage import QueueStore, Store, opening
from ringmq_node.storage.queue import recovery
from ringmq_node.storage.queue.recovery import Recovered

KEEP_S = 100.0


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    store = Store.open(folder, cluster_id="c", node="a")
    try:
        yield store
    finally:
        store.close()


def append(queue: QueueStore, bodies: list[bytes]) -> None:
    state = queue.state
    if state.epoch == 0:
        queue.begin_epoch(1)
    op = Publish(state.next_position, Block.of(bodies), False, b"", 0)
    queue.append(state.last_number + 1, op, encode(op))


def with_leftover(folder: Path) -> None:
    """A directory with a queue of five messages, small and large ones."""
    with store_in(folder) as store:
        queue = store.open_queue("id", label="orders")
        append(queue, [bytes(100)] * 3)
        append(queue, [bytes(10_000)] * 2)


def test_a_leftover_is_kept_and_described_and_its_time_goes_on_over_restarts(
    tmp_path: Path,
) -> None:
    with_leftover(tmp_path)
    clock = Clock()
    for _ in range(2):
        with store_in(tmp_path) as store:
            leftovers = Leftovers(store, keep_s=KEEP_S, now=clock)
            run(leftovers.keep(["id"]))
            (left,) = leftovers.describe()
            assert (left.id, left.queue, left.messages) == ("id", "orders", 5)
            assert left.removed_at_s == 1_000_100
        clock.time += 60.0
    with store_in(tmp_path) as store:
        leftovers = Leftovers(store, keep_s=KEEP_S, now=clock)
        run(leftovers.keep(["id"]))
        assert leftovers.describe() == ()
        assert store.queue_names() == []


def test_a_leftover_is_removed_when_its_time_is_over(tmp_path: Path) -> None:
    with_leftover(tmp_path)
    clock = Clock()

    async def main() -> None:
        with store_in(tmp_path) as store:
            leftovers = Leftovers(store, keep_s=KEEP_S, now=clock)
            await leftovers.keep(["id"])
            running = asyncio.create_task(leftovers.run())
            clock.time += KEEP_S
            await until(lambda: store.queue_names() == [])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert leftovers.describe() == ()

    run(main())


def test_a_record_that_comes_back_finds_its_messages(tmp_path: Path) -> None:
    """The registry was put back, for example, and then put right. No body has been collected."""
    with_leftover(tmp_path)
    clock = Clock()
    with store_in(tmp_path) as store:
        leftovers = Leftovers(store, keep_s=KEEP_S, now=clock)
        run(leftovers.keep(["id"]))
        leftovers.claim("id")
        assert leftovers.describe() == ()
        queue = store.open_queue("id")
        assert len(queue.state.live) == 5
        assert not queue.missing
        assert not queue.partial
    clock.time += 2 * KEEP_S
    # Its time begins anew when it is left over again.
    with store_in(tmp_path) as store:
        leftovers = Leftovers(store, keep_s=KEEP_S, now=clock)
        run(leftovers.keep(["id"]))
        assert len(leftovers.describe()) == 1


def test_on_a_disk_that_is_not_trusted_a_leftover_is_partial(tmp_path: Path) -> None:
    with_leftover(tmp_path)
    with store_in(tmp_path) as store:
        leftovers = Leftovers(store, keep_s=KEEP_S, disk_is_trusted=False, now=Clock())
        run(leftovers.keep(["id"]))
        leftovers.claim("id")
        assert store.open_queue("id").partial


def test_nothing_is_kept_for_no_time(tmp_path: Path) -> None:
    with_leftover(tmp_path)
    with store_in(tmp_path) as store:
        run(Leftovers(store, keep_s=0.0, now=Clock()).keep(["id"]))
        assert store.queue_names() == []


@pytest.mark.parametrize("is_noted", [False, True], ids=["later", "noted"])
def test_a_record_that_comes_back_while_a_leftover_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    """Both want to open it. One reads it, in a thread, and the bodies are counted once: also if it
    `is_noted` already, when the thread is done, that the replica is about to be opened."""
    monkeypatch.setattr(opening, "ASIDE_BYTES_MIN", 100)
    with_leftover(tmp_path)
    entered, goes_on = threading.Event(), threading.Event()
    reads: list[int] = []
    real = recovery.recover

    def recover(*arguments: Any) -> Recovered:
        reads.append(threading.get_ident())
        entered.set()
        assert goes_on.wait(10)
        return real(*arguments)

    monkeypatch.setattr(opening, "recover", recover)
    used: dict[str, QueueStore] = {}

    async def main() -> None:
        with store_in(tmp_path) as store:
            leftovers = Leftovers(store, keep_s=KEEP_S, now=Clock())

            under_way: set[str] = set()

            async def open_replica() -> None:
                if is_noted:
                    under_way.add("id")
                found = await store.recover("id")
                used["id"] = store.open_queue("id", found=found)
                leftovers.claim("id")

            def is_used(queue_id: str) -> bool:
                return queue_id in used or queue_id in under_way

            keeping = asyncio.create_task(leftovers.keep(["id"], is_used))
            await until(entered.is_set)
            opened = asyncio.create_task(open_replica())
            # The loop turns while the thread reads.
            await asyncio.sleep(0)
            goes_on.set()
            await asyncio.gather(keeping, opened)
            assert reads != [threading.get_ident()]
            assert len(reads) == 1
            assert leftovers.describe() == ()
            running = asyncio.create_task(store.run())
            queue = used["id"]
            queue.check()
            assert store.statistics().messages.records_now == 2
            removal = Remove(((0, 4),))
            queue.append(queue.state.last_number + 1, removal, encode(removal))
            await store.sync()
            assert store.statistics().messages.records_now == 0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(main())


def test_a_leftover_whose_record_came_back_first_is_no_leftover(tmp_path: Path) -> None:
    with_leftover(tmp_path)
    with store_in(tmp_path) as store:
        leftovers = Leftovers(store, keep_s=0.0, now=Clock())
        run(leftovers.keep(["id"], {"id"}.__contains__))
        assert store.queue_names() == ["id"]
