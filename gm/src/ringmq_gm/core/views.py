"""Views: the members of a ring in their order, and the rules for the view that may follow.

A view is one value in the registry, changed only by compare-and-set on its epoch; every frame
carries the epoch that it was sent in. The rules keep one property, on which "nothing confirmed
is lost" rests:

    every synchronised member of a view, and every life in its `eligible`, holds on disk every
    op that was confirmed in that view or in any view before it.

`eligible` are lives that have left the ring since it has too few synchronised members to confirm
anything (`min_insync`). An op is confirmed only when every synchronised member has it on disk. So
a life that leaves a view holds everything confirmed in that view, and in the views after it
nothing is confirmed until there is a quorum again. From that moment on it may lack ops, and
`eligible` is emptied.

* Joiners stand behind all synchronised members. So no synchronised member waits for an op, or the
  master for its marks, until a joiner has passed them on.
* Leaving (`without`) keeps the order of the members that stay. The first synchronised one is
  the master: ops pass from member to member, so it holds all ops that the members after it
  hold.
* Joining (`with_joiner`) puts the newcomer at the end, unsynchronised.
* Only the master declares a member synchronised (`with_synced`), and it waits for that member's
  marks from the proposal on. Joiners before it are left out, and join again. They can't be moved
  behind it, because they may hold an op that it lacks: 1. j has op 8 and passes it on, 2. k, which
  has not got it yet, is synchronised and moves before j, 3. the master dies, and k gives number 8
  to another op, 4. j takes that one for a repeat.
* Hand-over (`with_master`) turns the synchronised members, once all of them hold the same ops.
* Joining takes all entries of the joiner's node out of `eligible`: the joiner is about to cut and
  overwrite its log.
* Another `min_insync` (`with_min_insync`) changes no member.
* Beginning again (`restarted`) comes when no synchronised member is left that could go on. The
  nodes of synchronised and eligible members are the *candidates*: each of them, unless it has
  lost its log, has every confirmed op on its disk. `may_begin_again` says how many have to be
  heard.
* Beginning with a loss (`begun_with_loss`) is an operator's decision, when no candidate that has
  its log can come back. It is the only step that breaks the property above, and the view keeps a
  record of it (`losses`).
* A life that comes back with a longer log than the one that the ring was begun again from, with a
  loss or without (`begun`), is told so (`overrules`). Beside a decision, its log may go further
  because nobody has confirmed its end; or because another disk had lost ops unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

# A view remembers so many accepted losses, and so many times that its ring was begun again without
# one: the newest.
LOSSES_MAX = 16
BEGUN_MAX = 16
# Of epochs, incarnations and all else that is counted: frames have 64 bits for them.
NUMBER_MAX = 2**63 - 1


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
class AcceptedLoss:
    """An operator had the ring begun again in `epoch` from the log of `member`, which ends with op
    `log_number` of epoch `log_epoch`. What the `overruled` lives had confirmed beyond it is lost.

    `position` is what the application calls the end of that log. `at_ms` is the time of the
    decision, since 1970, by the clock of the member's node.
    """

    epoch: int
    member: MemberId
    log_epoch: int
    log_number: int
    position: int
    overruled: tuple[MemberId, ...]
    operator: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class BegunAgain:
    """The ring was begun again in `epoch` from whole logs that end with op `log_number` of epoch
    `log_epoch`."""

    epoch: int
    log_epoch: int
    log_number: int


@dataclass(frozen=True, slots=True)
class View:
    """An epoch of a ring. `members[0]` is the master, and is synchronised; joiners come last.

    `eligible` is sorted, and empty in a view that has a quorum. `losses` and `begun` are in the
    order of their epochs.
    """

    epoch: int
    members: tuple[Member, ...]
    min_insync: int
    eligible: tuple[MemberId, ...] = ()
    losses: tuple[AcceptedLoss, ...] = ()
    # Not compared: no step of a member depends on it, so to the ring such views are the same.
    begun: tuple[BegunAgain, ...] = field(default=(), compare=False)
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
    def joiners(self) -> tuple[MemberId, ...]:
        return self.ids[len(self.synced) :]

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are synchronised for anything to be confirmed."""
        return len(self.synced) >= self.min_insync

    @property
    def candidates(self) -> tuple[MemberId, ...]:
        """The lives whose logs hold everything that was confirmed: the ring can be begun again
        from the disks of their nodes. Synchronised members first, in the order of the ring."""
        return self.synced + self.eligible

    def index_of(self, member_id: MemberId) -> int | None:
        for index, member in enumerate(self.members):
            if member.id == member_id:
                return index
        return None

    def without(self, dead: Collection[MemberId]) -> Self | None:
        """The next view without `dead`; None if no synchronised member is left."""
        left = [member for member in self.members if member.id not in dead]
        # A joiner must not become master: it may lack ops that were confirmed.
        if not left or not left[0].synced:
            return None
        # Joiners may lack confirmed ops: of those who leave, only the synchronised ones become
        # eligible.
        stay = {member.id for member in left}
        dropped = (member_id for member_id in self.synced if member_id not in stay)
        return self._next(left, {*self.eligible, *dropped})

    def _next(self, members: Iterable[Member], eligible: Iterable[MemberId]) -> Self:
        """The next view with these members. Nobody stays eligible beside a quorum: it confirms
        ops that those outside don't get."""
        following = replace(self, epoch=self.epoch + 1, members=tuple(members), eligible=())
        if following.has_quorum:
            return following
        return replace(following, eligible=tuple(sorted(eligible)))

    def with_joiner(self, joiner: MemberId, dead: Collection[MemberId]) -> Self | None:
        """The next view with `joiner` at the end and without `dead`; None as for `without`.

        An earlier life of the joiner's node counts as dead. No life of its node stays eligible:
        the joiner cuts its log, and has again what was confirmed once it is synchronised.
        """
        # One life of a node at a time: frames are addressed to nodes.
        earlier = {member.id for member in self.members if member.id.node == joiner.node}
        rest = self.without({*dead, *earlier})
        if rest is None:
            return None
        eligible = tuple(other for other in rest.eligible if other.node != joiner.node)
        members = (*rest.members, Member(joiner, synced=False))
        return replace(rest, members=members, eligible=eligible)

    def with_synced(self, member_id: MemberId) -> Self:
        """The next view with this joiner synchronised, and without the joiners before it."""
        index = self.index_of(member_id)
        assert index is not None
        synced = (*self.members[: len(self.synced)], Member(member_id, synced=True))
        return self._next((*synced, *self.members[index + 1 :]), self.eligible)

    def with_master(self, member_id: MemberId) -> Self:
        """The ring turned so that `member_id`, which is synchronised, comes first. Joiners stay
        behind: they have no op that any of the others lacks."""
        index = self.index_of(member_id)
        assert index is not None
        count = len(self.synced)
        assert index < count
        synced, joiners = self.members[:count], self.members[count:]
        turned = (*synced[index:], *synced[:index], *joiners)
        return replace(self, epoch=self.epoch + 1, members=turned)

    def with_min_insync(self, count: int) -> Self:
        """The same members, of which `count` have to have an op before it is confirmed.

        `eligible` stays right in both directions. If `count` rises, nobody has left since there
        are too few. If it falls far enough, there is a quorum, and nobody stays eligible.
        """
        return replace(self, min_insync=count)._next(self.members, self.eligible)

    def restarted(self, best: MemberId, equals: Iterable[MemberId], log: tuple[int, int]) -> Self:
        """The ring begun again from the disks of candidates: `best` has the longest log of those
        that were heard, `equals` have the same one. It ends with `log`: an op's epoch and number.

        The other candidates stay eligible as long as the new view can't confirm anything.
        """
        ids = (best, *(other for other in equals if other != best))
        nodes = {member_id.node for member_id in ids}
        assert nodes <= {old.node for old in self.candidates}
        members = tuple(Member(member_id, synced=True) for member_id in ids)
        begun = (*self.begun, BegunAgain(self.epoch + 1, *log))[-BEGUN_MAX:]
        following = self._next(members, (old for old in self.candidates if old.node not in nodes))
        return replace(following, begun=begun)

    def begun_with_loss(self, loss: AcceptedLoss) -> Self:
        """The ring begun again from one log, whatever the candidates may have beyond it."""
        # Nobody stays eligible. Otherwise a candidate that comes back with more would begin the
        # ring again, and take away the ops that were confirmed since the decision.
        return replace(
            self,
            epoch=self.epoch + 1,
            members=(Member(loss.member, synced=True),),
            eligible=(),
            losses=(*self.losses, loss)[-LOSSES_MAX:],
        )

    @property
    def own_loss(self) -> AcceptedLoss | None:
        """The loss that was accepted with this very view."""
        newest = self.losses[-1] if self.losses else None
        return newest if newest is not None and newest.epoch == self.epoch else None

    @property
    def overruled(self) -> tuple[MemberId, ...]:
        """The lives that accepted losses have put out of the ring, whether they have heard of that
        or not. One that has joined again is a member like any other."""
        lives = {life: None for loss in self.losses for life in loss.overruled}
        return tuple(life for life in lives if life not in self.ids)

    def overrules(self, log_epoch: int, log_number: int) -> AcceptedLoss | BegunAgain | None:
        """When the ring was begun again without the end of the log that ends with this op; None if
        it never was. Such a log may hold confirmed ops that no member of the ring has."""
        end = (log_epoch, log_number)
        times: tuple[AcceptedLoss | BegunAgain, ...] = (*self.losses, *self.begun)
        for since in times:
            if log_epoch < since.epoch and end > (since.log_epoch, since.log_number):
                return since
        return None

    def may_begin_again(self, heard: Mapping[str, bool]) -> bool:
        """Whether the ring may be begun again from the longest whole log among those `heard`:
        nodes that have answered, and whether their logs are whole.

        One whole log would do if every loss of a disk were noticed. A log that was cut short
        without anybody noticing says that it is whole, and an empty disk starts fastest. So there
        have to be `min_insync` whole logs to choose from, or else no candidate is left to ask.
        """
        candidates = {member_id.node for member_id in self.candidates}
        whole = sum(heard[node] for node in candidates if node in heard)
        return whole >= self.min_insync or (whole > 0 and candidates <= heard.keys())

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
        value = {
            "epoch": self.epoch,
            "min_insync": self.min_insync,
            "members": members,
            "eligible": _ids_to_json(self.eligible),
            "losses": [_loss_to_json(loss) for loss in self.losses],
            "begun": [[each.epoch, each.log_epoch, each.log_number] for each in self.begun],
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            value = json.loads(data)
            members = tuple(
                Member(_member_id(m), _checked(m["synced"], bool)) for m in value["members"]
            )
            eligible = _ids_from_json(value["eligible"])
            losses = tuple(map(_loss_from_json, value["losses"]))
            begun = tuple(BegunAgain(*(_checked(n, int) for n in each)) for each in value["begun"])
            epoch, min_insync = (_checked(value[name], int) for name in ("epoch", "min_insync"))
            if epoch < 1 or min_insync < 1 or not members or not members[0].synced:
                raise ViewError("epoch or min_insync below 1, or no synchronised master")
            if len({member.id.node for member in members}) < len(members):
                raise ViewError("a node is in it twice")
            view = cls(epoch, members, min_insync, eligible, losses, begun)
            if not all(member.synced for member in members[: len(view.synced)]):
                raise ViewError("a joiner before a synchronised member")
            return view
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ViewError(f"not a view: {error!r} in {data[:80]!r}") from error


T = TypeVar("T", int, str, bool)


def _checked(value: object, kind: type[T]) -> T:
    # Not `isinstance`: for Python a bool is an int.
    if type(value) is not kind:
        raise ViewError(f"{value!r} is no {kind.__name__}")
    if type(value) is int and not 0 <= value <= NUMBER_MAX:
        raise ViewError(f"{value} is not within 0 to {NUMBER_MAX}")
    return value


def _member_id(value: Mapping[str, object]) -> MemberId:
    return MemberId(_checked(value["node"], str), _checked(value["incarnation"], int))


def _ids_to_json(ids: Iterable[MemberId]) -> list[dict[str, Any]]:
    return [{"node": m.node, "incarnation": m.incarnation} for m in ids]


def _ids_from_json(value: Iterable[Mapping[str, Any]]) -> tuple[MemberId, ...]:
    return tuple(map(_member_id, value))


def _loss_to_json(loss: AcceptedLoss) -> dict[str, Any]:
    return {
        "epoch": loss.epoch,
        "node": loss.member.node,
        "incarnation": loss.member.incarnation,
        "log_epoch": loss.log_epoch,
        "log_number": loss.log_number,
        "position": loss.position,
        "overruled": _ids_to_json(loss.overruled),
        "operator": loss.operator,
        "at_ms": loss.at_ms,
    }


def _loss_from_json(value: Mapping[str, Any]) -> AcceptedLoss:
    return AcceptedLoss(
        _checked(value["epoch"], int),
        _member_id(value),
        _checked(value["log_epoch"], int),
        _checked(value["log_number"], int),
        _checked(value["position"], int),
        _ids_from_json(value["overruled"]),
        _checked(value["operator"], str),
        _checked(value["at_ms"], int),
    )


def first_view(members: Iterable[MemberId], min_insync: int) -> View:
    """The view of a new ring: no op has been sent, so all members are synchronised."""
    return View(1, tuple(Member(member_id, synced=True) for member_id in members), min_insync)
