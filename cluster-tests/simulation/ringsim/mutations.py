"""Planted bugs: what the simulator and the explorer have to catch to be believed.

Each is a class that makes one mistake which somebody could make. A mistake in the
rules of views is made by a member that hands its `View`s over changed.
"""

from __future__ import annotations

from dataclasses import replace

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.events import Effect, Event, Propose, Role
from ringmq_gm.core.frames import Hello, Mark, MarksFrame, OpFrame, Resume, Submit
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.place import Place
from ringmq_gm.core.views import MemberId, View

EpochFrame = Hello | Resume | OpFrame | MarksFrame | Submit


class ForwardsOnlyNewOps(RingMember):
    """Forwards what comes in, and nothing from its cache: what a dead member had not
    passed on, its upstream doesn't send again."""

    def _ops_to_resend(self, last: int) -> list[CachedOp]:
        return []


class AppliesBeforeForwarding(RingMember):
    """Delivers an op to its application before it passes it on, and may die between the two.

    Alone this loses nothing: the upstream keeps its copy until the op is stable, and sends
    it to whoever comes next. It is `ForwardsOnlyNewOps` that makes it a loss. What the order
    buys is time: the others write to their disks while this one does.
    """

    def _accept(self, place: Place, op: CachedOp) -> list[Effect]:
        effects = super()._accept(place, op)
        return [effects[-1], *effects[:-1]]


class AppliesFirstAndForgets(AppliesBeforeForwarding, ForwardsOnlyNewOps):
    """The same, in a ring where nobody sends again what a dead member had not passed on."""


class ConfirmsAtReceived(RingMember):
    """Takes an op that all have in memory for one that all have on disk."""

    def _persisted_by_all(self, counted: list[Mark]) -> int:
        return min(mark.received for mark in counted)


class AcceptsStaleEpochs(RingMember):
    """Goes on answering frames of the epoch before as if it were still in it."""

    _before: tuple[View | None, Role, Place | None] = (None, Role.OUTSIDE, None)

    def _enter(self, view: View, now: float) -> list[Effect]:
        self._before = (self.view, self.role, self._place)
        return super()._enter(view, now)

    def _ring_frame(self, sender: MemberId, frame: EpochFrame, now: float) -> list[Effect]:
        view, _, place = self._before
        if place is None or view is None or frame.epoch != view.epoch:
            return super()._ring_frame(sender, frame, now)
        present = (self.view, self.role, self._place)
        self.view, self.role, self._place = self._before
        effects = super()._ring_frame(sender, frame, now)
        self.view, self.role, self._place = present
        return effects


class DropsBeforeStable(RingMember):
    """Drops its copy of an op as soon as it has passed it on."""

    def _trim_to(self, stable: int) -> int:
        return self.progress.last


class PromotesTheSecond(RingMember):
    """When the master dies, the second synchronised member becomes master, not the first."""

    def step(self, event: Event, *, now: float) -> list[Effect]:
        return [_promoting_the_second(effect, self.view) for effect in super().step(event, now=now)]


def _promoting_the_second(effect: Effect, current: View | None) -> Effect:
    if not isinstance(effect, Propose) or current is None:
        return effect
    view = effect.view
    if current.master in view.ids or len(view.synced) < 2:
        return effect
    second = view.synced[1]
    return replace(effect, view=replace(view.with_master(second), epoch=view.epoch))


class CountsAJoinerLate(RingMember):
    """Waits for a new synchronised member only once it knows that the view has changed."""

    def _confirm(self, place: Place) -> list[Effect]:
        unresolved, self._changer.unresolved = self._changer.unresolved, []
        effects = super()._confirm(place)
        self._changer.unresolved = unresolved
        return effects


class CountsAJoinerTooSoon(RingMember):
    """Proposes a joiner that has caught up, whether or not it has what is confirmed."""

    def _joiner_to_count(self, place: Place) -> MemberId | None:
        for member, mark in zip(place.view.members[1:], place.others or (), strict=False):
            if not member.synced and mark.complete:
                return member.id
        return None


class CallsOffAProposedHandover(RingMember):
    """Takes ops again while the registry may yet turn the ring."""

    def _may_be_turned(self) -> bool:
        return False
