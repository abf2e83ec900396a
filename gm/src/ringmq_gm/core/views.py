"""Views: who is in a ring, in which order, and what may follow.

A view is one value in the registry, changed only by compare-and-set on its
epoch; every frame carries the epoch that it was sent in. The rules here say
which views may follow which. They keep one property, on which "nothing
confirmed is lost" rests:

    every synchronised member of a view holds every op that was confirmed in it
    or in any view before it.

* Leaving (`without`) keeps the order of those who stay. The first synchronised
  one is the master: ops pass from member to member, so it holds all that those
  after it hold. Unsynchronised members before it are left out as well (they may
  hold what it doesn't) and join again.
* Joining (`with_joiner`) puts the newcomer at the end, unsynchronised.
* Synchronised (`with_synced`) is said of a member by the master alone, and the
  master waits for that member from before it asks.
* Hand-over (`with_master`) turns the ring, once all hold the same.
* A fresh start (`restarted`), when every synchronised member has been restarted:
  any of them holds all that was confirmed, as what is confirmed is on its disk.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Self


class ViewError(ValueError):
    """These bytes are not a view."""


@dataclass(frozen=True, slots=True, order=True)
class MemberId:
    """One life of a node: a node gets a higher incarnation at each start."""

    node: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node}#{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Member:
    """A place in a ring. `synced`: holds every confirmed op, and must hold the next ones
    on disk before they are confirmed."""

    id: MemberId
    synced: bool


@dataclass(frozen=True, slots=True)
class View:
    """An epoch of a ring. `members[0]` is the master, and is synchronised."""

    epoch: int
    members: tuple[Member, ...]
    min_insync: int
    # Both follow from `members`; asked for with every op, so worked out once.
    ids: tuple[MemberId, ...] = field(init=False, compare=False, repr=False)
    synced: tuple[MemberId, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(m.id for m in self.members))
        object.__setattr__(self, "synced", tuple(m.id for m in self.members if m.synced))

    @property
    def master(self) -> MemberId:
        return self.members[0].id

    def index_of(self, member_id: MemberId) -> int | None:
        for index, member in enumerate(self.members):
            if member.id == member_id:
                return index
        return None

    def without(self, dead: Collection[MemberId]) -> Self | None:
        """The next view when `dead` are gone; None if no synchronised member is left."""
        left = [member for member in self.members if member.id not in dead]
        while left and not left[0].synced:
            left.pop(0)
        return replace(self, epoch=self.epoch + 1, members=tuple(left)) if left else None

    def with_joiner(self, joiner: MemberId, dead: Collection[MemberId]) -> Self | None:
        """The next view with `joiner` at the end and `dead` gone; None as for `without`.

        An earlier life of the joiner's node counts as dead.
        """
        earlier = {member.id for member in self.members if member.id.node == joiner.node}
        rest = self.without({*dead, *earlier})
        if rest is None:
            return None
        return replace(rest, members=(*rest.members, Member(joiner, synced=False)))

    def with_synced(self, member_id: MemberId) -> Self:
        members = tuple(
            replace(member, synced=True) if member.id == member_id else member
            for member in self.members
        )
        return replace(self, epoch=self.epoch + 1, members=members)

    def with_master(self, member_id: MemberId) -> Self:
        """The ring turned so that `member_id`, who is synchronised, comes first."""
        index = self.index_of(member_id)
        assert index is not None
        assert self.members[index].synced
        turned = self.members[index:] + self.members[:index]
        return replace(self, epoch=self.epoch + 1, members=turned)

    def restarted(self, best: MemberId, equals: Iterable[MemberId]) -> Self:
        """The next view when all synchronised members have been restarted: `best` has the
        most of what was on their disks, `equals` have the same."""
        ids = (best, *(other for other in equals if other != best))
        assert {member_id.node for member_id in ids} <= {old.node for old in self.synced}
        members = tuple(Member(member_id, synced=True) for member_id in ids)
        return replace(self, epoch=self.epoch + 1, members=members)

    def may_follow(
        self, current: View, *, reached: Collection[MemberId], lapsed: Collection[MemberId]
    ) -> bool:
        """Whether its proposer can close this view: has just `reached` every member, and
        isn't voting out the healthy majority because it can't see them.

        `lapsed` are those whose registry lease has run out: they will not come back.
        """
        if not set(self.ids) <= set(reached):
            return False
        dropped = set(current.synced) - set(self.ids)
        return not dropped or len(self.synced) >= self.min_insync or dropped <= set(lapsed)

    def encode(self) -> bytes:
        members = [
            {"node": m.id.node, "incarnation": m.id.incarnation, "synced": m.synced}
            for m in self.members
        ]
        value = {"epoch": self.epoch, "min_insync": self.min_insync, "members": members}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            value = json.loads(data)
            members = tuple(
                Member(MemberId(m["node"], m["incarnation"]), m["synced"]) for m in value["members"]
            )
            return cls(value["epoch"], members, value["min_insync"])
        except (ValueError, KeyError, TypeError) as error:
            raise ViewError(f"not a view: {error!r} in {data[:80]!r}") from error


def first_view(members: Iterable[MemberId], min_insync: int) -> View:
    """The view of a new ring: nothing has been said, so all have heard everything."""
    return View(1, tuple(Member(member_id, synced=True) for member_id in members), min_insync)
