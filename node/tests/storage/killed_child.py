"""Writes to a store as fast as it can and prints which ops are durable, until it is killed.

Op 2n+1 publishes 20 messages, op 2n+2 removes the first 10 of them. Bodies begin with their
position. Goes on where an earlier run was killed. A second argument is how long a file may be.

As in a node, ops wait while too many of them are not durable. Without this limit, each round of a
slow disk would have more to write than the round before, until the disk is full.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from loops import run

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreError, StoreLimits

LIMITS = StoreLimits(
    queue_memory_bytes_max=200_000, journal_entries_max=2_000, journal_bytes_max=400_000
)
BODY_BYTES = 200
# Ops that may wait for their round.
WINDOW = 200


def next_op(queue: QueueStore) -> Op:
    state = queue.state
    if state.last_number % 2:
        first = state.next_position - 20
        return Remove(((first, first + 9),))
    first = state.next_position
    return Publish(
        first, Block.of([b"%d:".ljust(BODY_BYTES) % at for at in range(first, first + 20)])
    )


async def main(directory: Path) -> None:
    store = Store.open(directory, cluster_id="c", node="n1", limits=LIMITS)
    queue = store.open_queue("q")
    failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()

    durable = asyncio.Event()

    def say(queue: QueueStore) -> None:
        durable.set()
        print("durable", queue.durable_number, flush=True)

    store.on_durable = say

    def fail(failure: StoreError) -> None:
        durable.set()
        failed.set_result(failure)

    store.on_failed = fail
    running = asyncio.create_task(store.run())
    while not failed.done():
        if queue.state.last_number - queue.durable_number >= WINDOW:
            durable.clear()
            await durable.wait()
            continue
        op = next_op(queue)
        queue.append(queue.state.last_number + 1, op, ops.encode(op))
        # Some ops share a round, and some are alone.
        await asyncio.sleep(0 if queue.state.last_number % 7 else 0.0002)
    print("failed", type(failed.result()).__name__, flush=True)
    store.close()
    await running


if __name__ == "__main__":
    if sys.argv[2:]:
        file_bytes_max = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    run(main(Path(sys.argv[1])))
