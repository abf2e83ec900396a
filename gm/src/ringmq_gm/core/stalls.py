"""Which synchronised members have a disk that hangs, by the marks that their master knows. Pure.

A confirm waits for the disk of every synchronised member. A disk that takes nothing for a while
would stop the ring, though enough other members have the ops on theirs. No link shows it: the
process answers, and takes all that it is sent. So the master looks at the marks, as long as ops
wait to be confirmed: a member is stalled that has received ops, and has written none of them for
`Timing.disk_stall_s`.

It is put out only if `min_insync` members have ops on their disks that the stalled ones lack. Where
all disks are slow alike (they may be one) nobody is any better, and nobody is put out. A member
that receives nothing is no case for this: `PeerStalled` has another measure for it.

The master hears of most disks through other members, so it probes those that would stay before it
proposes their view (`ViewChanger.seek_stalled`). Without that:

1. the ring is b, c, a, and b hears of c's disk through a, 2. a is cut off, and the last mark of c
that came through lacks an op, 3. that mark is old before the ring time-out has shown that a is
gone, 4. b puts c out, and keeps a. Its view can confirm nothing until a is given up as well.

The master itself may be the one that is stalled. Then it proposes the view without itself: for the
others that is as if it had died.

Whoever was put out joins again, and isn't synchronised before its disk has everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq_gm.core.frames import Mark
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View

# How often the marks are looked at in `Timing.disk_stall_s`.
LOOKS = 4


def look_s(timing: Timing) -> float:
    """The time between two looks. A mirror tells its marks as often, even if no confirm follows."""
    return timing.disk_stall_s / LOOKS


class DiskWatch:
    """See the module. For one epoch; `due` is when to `look`, None while no op waits."""

    __slots__ = ("_seen", "due", "stalled")

    def __init__(self) -> None:
        self.due: float | None = None
        self.stalled: frozenset[MemberId] = frozenset()
        # What each member had on disk, and since when it has had no more than that.
        self._seen: dict[MemberId, tuple[int, float]] = {}

    def clear(self) -> None:
        """No op waits to be confirmed."""
        self.due, self.stalled = None, frozenset()
        self._seen.clear()

    def look(self, view: View, marks: Sequence[Mark], timing: Timing, now: float) -> None:
        """`marks` are those of `view.synced`, in that order."""
        self.due = now + look_s(timing)
        suspects: dict[MemberId, int] = {}
        others: list[int] = []
        for member_id, mark in zip(view.synced, marks, strict=True):
            persisted, since = self._seen.get(member_id, (-1, now))
            if mark.persisted != persisted or mark.persisted >= mark.received:
                since = now
            self._seen[member_id] = (mark.persisted, since)
            if now - since >= timing.disk_stall_s:
                suspects[member_id] = mark.persisted
            else:
                others.append(mark.persisted)
        ahead = sum(persisted > max(suspects.values(), default=0) for persisted in others)
        self.stalled = frozenset(suspects) if ahead >= view.min_insync else frozenset()
