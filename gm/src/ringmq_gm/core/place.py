"""Where a member stands in one epoch, and what it knows there of how far the others are.

Marks travel with the ops: a frame from member k carries the marks of members 1
to k, so the last member knows all of them and tells the master (docs/decisions/
0001-vector-of-marks.md says why a vector). Within an epoch no mark ever falls:
links keep order, and a member's own progress only rises.

What the master may confirm is decided by `counted`: the marks of every member
that is synchronised in the view, or that a proposal of this master which may yet
take effect would make so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ringmq_gm.core.frames import Mark
from ringmq_gm.core.views import MemberId, View


@dataclass(slots=True)
class Progress:
    """How far this member is. Only ever rises while it is in the ring."""

    last: int = 0
    # Of the op `last`; 0 if that was before it joined.
    last_epoch: int = 0
    # As the application says it. May be ahead of `last`, if it fetched more than it was sent.
    on_disk: int = 0
    complete: bool = True
    # The last op that somebody waits for to be received, not persisted.
    urgent: int = 0
    confirmed: tuple[int, int] = (0, 0)

    @property
    def persisted(self) -> int:
        return min(self.on_disk, self.last)

    def mark(self) -> Mark:
        return Mark(self.last, self.persisted, self.complete)


class Told(NamedTuple):
    """What a vector of marks says that the master may wait for. No field falls, but when
    `complete_count` rises: then there is one more to count."""

    complete_count: int
    persisted: int
    received: int


NOTHING_TOLD = Told(-1, -1, -1)


@dataclass(slots=True)
class Place:
    """Made on entering a view; nothing in it outlives the epoch."""

    view: View
    index: int
    # The last op that this member had on entering: an earlier master may have confirmed it.
    entered_at: int
    upstream: MemberId | None = field(init=False)
    downstream: MemberId | None = field(init=False)
    # My upstream has said Hello. The master, who has none, begins.
    is_greeted: bool = field(init=False)
    # Where among the marks of the others those of synchronised members are.
    synced_others: tuple[int, ...] = field(init=False)
    # My downstream has said where to resume.
    downstream_ready: bool = False
    # A mirror: the marks of those between the master and me. The master: of all others.
    others: tuple[Mark, ...] | None = None
    told: Told = NOTHING_TOLD
    # Marks are to be sent whatever they say: the ones before may have been lost.
    marks_due: bool = True
    stable_sent: int = 0
    # Where the last gap was: it is asked for once.
    gap_at: int = -1

    def __post_init__(self) -> None:
        ids = self.view.ids
        self.upstream = ids[self.index - 1] if self.index > 0 else None
        self.downstream = ids[self.index + 1] if self.index + 1 < len(ids) else None
        self.is_greeted = self.index == 0
        self.synced_others = tuple(
            index for index, member in enumerate(self.view.members[1:]) if member.synced
        )

    # --- marks ---

    def take(self, marks: tuple[Mark, ...]) -> None:
        """Remembers the marks that have come in, if they are those of the members before me.

        Some are not: a master that says `stable` doesn't repeat what it was told.
        """
        expected = len(self.view.members) - 1 if self.index == 0 else self.index - 1
        if len(marks) == expected:
            self.others = marks

    def to_send(self, own: Mark) -> tuple[Mark, ...] | None:
        """The marks of members 1 to me; None while those before me haven't told theirs."""
        if self.index == 0:
            return ()
        if self.index == 1:
            return (own,)
        return None if self.others is None else (*self.others, own)

    def news_in(self, marks: tuple[Mark, ...], urgent: int) -> Told | None:
        """What these marks tell, if it is worth a frame of its own.

        "Received" alone is worth it only if somebody waits for just that (`urgent`), or if no
        member before me or I will ever say "persisted"; else it goes with the next one that
        does. Without it nothing becomes stable, and the ring fills up.
        """
        now, before = self._told_by(marks), self.told
        if (
            self.marks_due
            or now.complete_count > before.complete_count
            or now.persisted > before.persisted
            or (now.received > before.received and before.received < urgent)
        ):
            return now
        return None

    def marks_sent(self, marks: tuple[Mark, ...]) -> None:
        if marks:
            self.told = self._told_by(marks)
            self.marks_due = False

    def _told_by(self, marks: tuple[Mark, ...]) -> Told:
        synced = self.synced_others
        counted = [m for index, m in enumerate(marks) if index in synced or m.complete]
        if not counted:
            # Joiners, who have holes below what is on their disk, and say nothing of it.
            received = marks[-1].received
            return Told(0, received, received)
        complete_count = sum(mark.complete for mark in marks)
        return Told(
            complete_count, min(m.persisted for m in counted), min(m.received for m in counted)
        )

    # --- for the master ---

    def stable(self, last: int) -> int | None:
        """Up to where every member has received everything; None if that isn't known."""
        if len(self.view.members) == 1:
            return last
        return None if self.others is None else min(mark.received for mark in self.others)

    def counted(self, own: Mark, unresolved: Sequence[View]) -> list[Mark] | None:
        """The marks that a confirm has to wait for; None if some aren't known.

        Of every member that is synchronised, or may have become so without my knowing yet:
        1. I propose that C is synchronised, and the answer is lost, 2. it took effect,
        3. were I to confirm an op now that C hasn't, 4. and die, C could be master.
        """
        wanted = self.synced_others
        if unresolved:
            counted = {*self.view.synced, *(m for view in unresolved for m in view.synced)}
            wanted = tuple(i for i, m in enumerate(self.view.ids[1:]) if m in counted)
        if not wanted:
            return [own]
        others = self.others
        return None if others is None else [own, *(others[index] for index in wanted)]

    def joiner_to_count(self, confirmed: int) -> MemberId | None:
        """A joiner that lacks nothing, and has on disk all that has been confirmed so far:
        by me, and, for all I know, by the master before me."""
        needed = max(confirmed, self.entered_at)
        for member, mark in zip(self.view.members[1:], self.others or (), strict=False):
            if not member.synced and mark.complete and mark.persisted >= needed:
                return member.id
        return None
