"""The verbs of the message store's tests."""

from __future__ import annotations

from pathlib import Path

from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import CompactionJob, MessageStore, compact, write

DIRECTORY = Path("/data/messages/persistent")
# Files of a few records each.
SMALL = StoreLimits(
    store_file_bytes_max=4096,
    compaction_piece_bytes_max=700,
    store_cache_bytes_max=0,
    recent_ids_max=8,
)


def block_of(number: int, size: int = 200) -> Block:
    """A block like no other."""
    body = number.to_bytes(8, "little") * (size // 8 + 1)
    return Block.of([body[:size]])


def open_store(
    disk: Disk,
    limits: StoreLimits = SMALL,
    *,
    persistent: bool = True,
    directory: Path = DIRECTORY,
) -> MessageStore:
    return MessageStore(directory, disk, limits, persistent=persistent)


def commit(store: MessageStore, disk: Disk) -> None:
    job = store.take()
    if job is not None:
        write(disk, job)
        store.committed(job)
    store.check()


def put_all(store: MessageStore, disk: Disk, blocks: list[Block]) -> list[RecordLocation]:
    places = [store.put(block)[0] for block in blocks]
    commit(store, disk)
    return places


def step(store: MessageStore, disk: Disk, now: float = 1e9) -> CompactionJob | None:
    """One step of compaction, at a time at which the rate limit allows it."""
    job = store.plan(now)
    if job is None and store.next_plan_at is not None:
        job = store.plan(store.next_plan_at)
    if job is not None:
        compact(disk, job)
        store.done(job)
        store.check()
    return job


def collect(store: MessageStore, disk: Disk) -> int:
    """Runs steps until none is left; returns their number."""
    steps = 0
    while step(store, disk) is not None:
        steps += 1
        assert steps < 10_000, "compaction does not come to an end"
    return steps


def names(disk: SimulatedDisk, directory: Path = DIRECTORY) -> list[str]:
    return sorted(disk.list(directory))
