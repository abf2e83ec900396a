"""Views: the members of a ring in their order, and the rules for the view that may follow.

A view is one value in the registry, changed only by compare-and-set on its epoch; every frame
carries the epoch that it was sent in. The rules keep one property, on which "nothing confirmed
is lost" rests:

    every synchronised member of a view holds every op that was confirmed in it
    or in any view before it.

* Leaving (`without`) keeps the order of the members that stay. The first synchronised one is
  the master: ops pass from member to member, so it holds all ops that the members after it
  hold. Unsynchronised members before it are left out as well, because they may hold an op that
  it lacks; they join again.
* Joining (`with_joiner`) puts the newcomer at the end, unsynchronised.
* Only the master declares a member synchronised (`with_synced`), and it waits for that member's
  marks from the proposal on.
* Hand-over (`with_master`) turns the ring, once all members hold the same ops.
* A fresh start (`restarted`) comes after all synchronised members have been restarted. Any of
  them has every confirmed op on its disk.
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
    """A place in a ring. `synced`: this member holds every confirmed op, and an op is confirmed
    only once it is on this member's disk."""

    id: MemberId
    synced: bool


@dataclass(frozen=True, slots=True)
class View:
    """An epoch of a ring. `members[0]` is the master, and is synchronised."""

    epoch: int
    members: tuple[Member, ...]
    min_insync: int
    # Both follow from `members`. Each op asks for them, so they are worked out once.
    ids: tuple[MemberId, ...] = field(init=False, compare=False, repr=False)
    synced: tuple[MemberId, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(m.id for m in self.members))
        object.__setattr__(self, "synced", tuple(m.id for m in self.members if m.synced))

    @property
    def master(self) -> MemberId:
        return self.members[0].id

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are synchronised for anything to be confirmed."""
        return len(self.synced) >= self.min_insync

    def index_of(self, member_id: MemberId) -> int | None:
        for index, member in enumerate(self.members):
            if member.id == member_id:
                return index
        return None

    def without(self, dead: Collection[MemberId]) -> Self | None:
        """The next view without `dead`; None if no synchronised member is left."""
        left = [member for member in self.members if member.id not in dead]
        # A joiner must not become master: it may lack ops that were confirmed.
        while left and not left[0].synced:
            left.pop(0)
        return replace(self, epoch=self.epoch + 1, members=tuple(left)) if left else None

    def with_joiner(self, joiner: MemberId, dead: Collection[MemberId]) -> Self | None:
        """The next view with `joiner` at the end and without `dead`; None as for `without`.

        An earlier life of the joiner's node counts as dead.
        """
        # One life of a node at a time: frames are addressed to nodes.
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
        """The ring turned so that `member_id`, which is synchronised, comes first."""
        index = self.index_of(member_id)
        assert index is not None
        assert self.members[index].synced
        turned = self.members[index:] + self.members[:index]
        return replace(self, epoch=self.epoch + 1, members=turned)

    def restarted(self, best: MemberId, equals: Iterable[MemberId]) -> Self:
        """The next view after all synchronised members have been restarted: `best` has the
        longest log of them, `equals` have the same one."""
        ids = (best, *(other for other in equals if other != best))
        assert {member_id.node for member_id in ids} <= {old.node for old in self.synced}
        members = tuple(Member(member_id, synced=True) for member_id in ids)
        return replace(self, epoch=self.epoch + 1, members=members)

    def may_follow(
        self, current: View, *, reached: Collection[MemberId], lapsed: Collection[MemberId]
    ) -> bool:
        """Whether its proposer can close this view: it has just `reached` every member, and
        isn't voting out the healthy majority because it can't see it.

        `lapsed` are the lives whose registry lease has run out: they will not come back.
        """
        if not set(self.ids) <= set(reached):
            return False
        # Below `min_insync` nothing more is confirmed. Dropping a synchronised member that may
        # still live would stop the ring, although that member and others could go on.
        dropped = set(current.synced) - set(self.ids)
        return not dropped or self.has_quorum or dropped <= set(lapsed)

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
    """The view of a new ring: no op has been sent, so all members are synchronised."""
    return View(1, tuple(Member(member_id, synced=True) for member_id in members), min_insync)
