"""What one replica has at some positions, for a comparison with the others (`comparing`)."""

from __future__ import annotations

import asyncio

from ringmq_base.limits import KIB
from ringmq_base.ranges import RangeSet
from ringmq_node.queue.run import Run
from ringmq_node.replica.comparing import Digests, digests_of
from ringmq_node.replica.reading import read_whole
from ringmq_node.storage import QueueStore

# One answer. What it reads and looks at holds the loop, so it is small; one message may be larger.
ANSWER_BYTES_MAX = 512 * KIB
ANSWER_MESSAGES_MAX = 1024
# More is hashed in a thread.
HASHED_HERE_BYTES_MAX = 64 * KIB


async def digests_at(store: QueueStore, first: int, last: int, *, node: str, epoch: int) -> Digests:
    """Of `first..last`, or of the first part of it. Raises `StoreError`."""
    # Up to the end of `_look` in one turn of the loop: state and bodies have to be of one moment.
    state = store.state
    runs, covered = _look(store, first, last)
    bytes_read = sum(run.block.sent_bytes() for run in runs)
    live, redelivered, transient, missing = (
        RangeSet(ranges.intersection(first, covered))
        for ranges in (state.live, state.redelivered, state.transient, store.missing)
    )
    number, next_position = state.last_number, state.next_position
    state_digest = state.digest()
    if bytes_read > HASHED_HERE_BYTES_MAX:
        hashes = await asyncio.to_thread(digests_of, runs)
    else:
        hashes = digests_of(runs)
    return Digests(
        node=node,
        epoch=epoch,
        number=number,
        next_position=next_position,
        first=first,
        last=covered,
        live=live,
        redelivered=redelivered,
        transient=transient,
        missing=missing,
        digests=hashes,
        bytes_read=bytes_read,
        state_digest=state_digest,
    )


def _look(store: QueueStore, first: int, last: int) -> tuple[list[Run], int]:
    """The live messages that have bodies, and the position up to which these are all."""
    runs: list[Run] = []
    bytes_left, messages_left = ANSWER_BYTES_MAX, ANSWER_MESSAGES_MAX
    at = first
    while at <= last:
        if bytes_left <= 0 or messages_left <= 0:
            return runs, at - 1
        found = read_whole(
            store, at, last, bytes_max=bytes_left, messages_max=messages_left, ahead=False
        )
        for run in found:
            runs.append(run)
            bytes_left -= run.block.sent_bytes()
            messages_left -= run.block.count
            at = run.last_position + 1
        if found:
            continue
        gaps = store.missing.intersection(at, last)
        if not gaps:
            break
        # Each gap takes one of the answer's messages, or a damaged queue would be an endless one.
        messages_left -= 1
        at = gaps[0][1] + 1
    return runs, last
