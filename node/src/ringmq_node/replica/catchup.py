"""How a replica that has joined its ring gets the earlier state and bodies. Pure.

The queue stays open all the time. From the op at which it joined, the replica receives every op
around the ring. Beside that, it

1. asks the master for the state as of some op `p`, not before its joining;
2. keeps the bodies on its own disk that are live in that state and were published before the two
   logs part (`keep_below`: in an epoch that both know, at positions that both gave out in it). It
   drops the rest: its own tail may have diverged;
3. applies the ops after `p`, which were held back, and from then on each op as it comes;
4. fetches the missing bodies, the oldest first, in pieces bounded in bytes. Bodies that are
   damaged at the master come from the other synchronised members. A message that is acknowledged
   meanwhile stops being missing by itself;
5. has caught up when all is on disk, and the only bodies missing are those that every one of these
   members has lost.

If the source fails (it dies, or ceases to be master), the joiner starts again at 1 with the next
master. Bodies that it has fetched are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq_base.limits import MIB
from ringmq_node.queue.state import EpochStart

# One call for bodies: how much it may bring, and how many ranges it may name.
FETCH_BYTES_MAX = 8 * MIB
FETCH_RANGES_MAX = 1000


def keep_below(
    mine: Sequence[EpochStart],
    my_next_position: int,
    theirs: Sequence[EpochStart],
    their_next_position: int,
) -> int:
    """The position below which two logs gave the same positions to the same messages.

    Within an epoch one master numbers. So two logs that have the same epoch, begun at the same op,
    agree in it as far as both go (the log matching of Raft, section 5.3).
    """
    # Backwards: the newest epoch that both logs have in common decides. An older one would give a
    # smaller position, and throw away bodies that are as good.
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
