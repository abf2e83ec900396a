"""How a replica that has joined its ring gets what was before: state, then bodies.

The queue stays open all the time. From the op at which it joined the replica
receives every op around the ring; beside that, it

1. asks the master for the state as of some op `p`, not before its joining;
2. keeps of its own disk the bodies that are live there and were published before
   the two logs part (`keep_below`: in an epoch that both know, at positions that
   both gave out in it), and drops the rest: its own tail may have diverged;
3. applies the ops after `p`, which have been waiting, and from then on each as it comes;
4. fetches the missing bodies, the oldest first, in pieces bounded in bytes; those that are
   damaged at the master, from the other synchronised members. What is acknowledged
   meanwhile stops being missing by itself;
5. when nothing is missing but what all of these have lost, and all is on disk, it has caught up.

Any failure of the source (it may die, or cease to be master) starts again at 1
with whoever is master then; the bodies that have been fetched are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq.v1 import ring_pb2 as wire
from ringmq.v1.common_pb2 import Range as WireRange
from ringmq_base.ranges import RangeSet
from ringmq_node.queue.state import EpochStart, ReplicatedState

FETCH_BYTES_MAX = 8 * 1024 * 1024
FETCH_RANGES_MAX = 1000


def keep_below(
    mine: Sequence[EpochStart],
    my_next_position: int,
    theirs: Sequence[EpochStart],
    their_next_position: int,
) -> int:
    """The position up to which two logs gave out the same positions to the same messages.

    Within an epoch one master numbers, so two logs that have the same epoch, begun at
    the same op, agree in it as far as both go (the log matching of Raft, section 5.3).
    """
    their_starts = {start.epoch: index for index, start in enumerate(theirs)}
    for index in range(len(mine) - 1, -1, -1):
        there = their_starts.get(mine[index].epoch)
        if there is None or theirs[there] != mine[index]:
            continue
        my_end = mine[index + 1].first_position if index + 1 < len(mine) else my_next_position
        their_end = (
            theirs[there + 1].first_position if there + 1 < len(theirs) else their_next_position
        )
        return min(my_end, their_end)
    return 0


def state_to_wire(state: ReplicatedState) -> wire.FetchStateResponse:
    return wire.FetchStateResponse(
        number=state.last_number,
        next_position=state.next_position,
        live=_ranges_to_wire(state.live),
        redelivered=_ranges_to_wire(state.redelivered),
        transient=_ranges_to_wire(state.transient),
        producers=[
            wire.ProducerState(producer_id=producer_id, last_sequence=sequence)
            for producer_id, sequence in state.producers.items()
        ],
        epochs=[
            wire.EpochStart(
                epoch=start.epoch,
                first_number=start.first_number,
                first_position=start.first_position,
            )
            for start in state.epochs
        ],
    )


def state_from_wire(response: wire.FetchStateResponse) -> ReplicatedState:
    return ReplicatedState(
        last_number=response.number,
        next_position=response.next_position,
        epochs=[
            EpochStart(start.epoch, start.first_number, start.first_position)
            for start in response.epochs
        ],
        live=_ranges_from_wire(response.live),
        redelivered=_ranges_from_wire(response.redelivered),
        transient=_ranges_from_wire(response.transient),
        producers={entry.producer_id: entry.last_sequence for entry in response.producers},
    )


def _ranges_to_wire(ranges: RangeSet) -> list[WireRange]:
    return [WireRange(first=first, last=last) for first, last in ranges]


def _ranges_from_wire(ranges: Sequence[WireRange]) -> RangeSet:
    return RangeSet((pair.first, pair.last) for pair in ranges)
