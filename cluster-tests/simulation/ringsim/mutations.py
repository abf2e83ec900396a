"""Planted bugs: if the simulator and the explorer don't catch these, their silence means nothing.

Each is a member that makes one mistake which somebody could make, most of them in one of its
phases. A mistake in the rules of views is made by a member that changes the `View` it proposes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeGuard

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.chance import Chance
from ringmq_gm.core.changes import ViewChanger
from ringmq_gm.core.events import Effect, Event, Propose, Send
from ringmq_gm.core.frames import EpochFrame, Hello, Mark, Pong, ViewTold
from ringmq_gm.core.held_ops import HeldOps
from ringmq_gm.core.in_view import InView
from ringmq_gm.core.master import Master
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.mirror import Mirror
from ringmq_gm.core.phases import OUTSIDE, Phase
from ringmq_gm.core.stages import Log, Probing, Purpose
from ringmq_gm.core.views import MemberId, View


class _OtherPhases(RingMember):
    """A member with phases of its own."""

    MasterPhase: type[Master] = Master
    MirrorPhase: type[Mirror] = Mirror

    def _new_master(self, view: View) -> Master:
        return self.MasterPhase(self.ops, view, self._timing, self._budgets)

    def _new_mirror(self, view: View, index: int, *, awaits_start: bool) -> Mirror:
        return self.MirrorPhase(self.ops, view, index, awaits_start=awaits_start)


class _ResendsNothing(InView):
    __slots__ = ()

    def ops_to_resend(self, last: int) -> Iterable[CachedOp]:
        return ()


class _DeliversFirst(InView):
    __slots__ = ()

    def accept(self, op: CachedOp) -> list[Effect]:
        effects = super().accept(op)
        return [effects[-1], *effects[:-1]]


class ForwardsOnlyNewOps(_OtherPhases):
    """Forwards incoming ops, and nothing from its cache: an op that a dead member had not passed
    on isn't sent again by its upstream neighbour."""

    class MasterPhase(_ResendsNothing, Master):
        __slots__ = ()

    class MirrorPhase(_ResendsNothing, Mirror):
        __slots__ = ()


class AppliesBeforeForwarding(_OtherPhases):
    """Delivers an op to its application before it passes it on, and may die between the two.

    Alone this loses nothing: the upstream neighbour keeps its copy until the op is stable, and
    sends it to the next downstream neighbour. Only together with `ForwardsOnlyNewOps` is it a
    loss. The order buys time: the others write to their disks while this member does.
    """

    class MasterPhase(_DeliversFirst, Master):
        __slots__ = ()

    class MirrorPhase(_DeliversFirst, Mirror):
        __slots__ = ()


class AppliesFirstAndForgets(_OtherPhases):
    """The same, in a ring where nobody sends again the ops that a dead member had not passed on."""

    class MasterPhase(_DeliversFirst, _ResendsNothing, Master):
        __slots__ = ()

    class MirrorPhase(_DeliversFirst, _ResendsNothing, Mirror):
        __slots__ = ()


class ConfirmsAtReceived(_OtherPhases):
    """Takes an op that all have in memory for one that all have on disk."""

    class MasterPhase(Master):
        __slots__ = ()

        def persisted_by_all(self, counted: Sequence[Mark]) -> int:
            return min(mark.received for mark in counted)


class AnswersAGreetingOnce(_OtherPhases):
    """Takes it for granted that the member before it greets again when a stream was broken: but
    its own stream may have broken alone, and the answer got lost."""

    class MirrorPhase(Mirror):
        __slots__ = ()

        def link_up(self, node: str) -> list[Effect]:
            return InView.link_up(self, node)


class AcceptsStaleEpochs(RingMember):
    """Goes on answering frames of the epoch before as if it were still in it."""

    _before: tuple[View | None, Phase] = (None, OUTSIDE)

    def _enter(self, view: View, now: float) -> list[Effect]:
        self._before = (self.view, self._phase)
        return super()._enter(view, now)

    def _ring_frame(self, sender: MemberId, frame: EpochFrame, now: float) -> list[Effect]:
        view, phase = self._before
        if phase is OUTSIDE or view is None or frame.epoch != view.epoch:
            return super()._ring_frame(sender, frame, now)
        present = (self.view, self._phase)
        self.view, self._phase = self._before
        effects = super()._ring_frame(sender, frame, now)
        self.view, self._phase = present
        return effects


class _ForgetfulOps(HeldOps):
    __slots__ = ()

    def trim(self, stable: int) -> None:
        super().trim(self.last)


class DropsBeforeStable(RingMember):
    """Drops its copy of an op as soon as it has passed it on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ops = _ForgetfulOps(self.ring, self.ops.end)


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


class CountsAJoinerLate(_OtherPhases):
    """Waits for a new synchronised member only once it knows that the view has changed."""

    class MasterPhase(Master):
        __slots__ = ()

        def confirm(self, unresolved: Sequence[View]) -> list[Effect]:
            return super().confirm(())


class CountsAJoinerTooSoon(_OtherPhases):
    """Proposes a joiner that has caught up, whether or not it has all that is confirmed."""

    class MasterPhase(Master):
        __slots__ = ()

        def joiner_to_count(self) -> MemberId | None:
            return next((joiner for joiner, _ in self.complete_joiners()), None)


class ForgetsTheMasterBefore(_OtherPhases):
    """Proposes a joiner that has all that this master has confirmed. The one before it may have
    confirmed more."""

    class MasterPhase(Master):
        __slots__ = ()

        def joiner_to_count(self) -> MemberId | None:
            needed = max(self.ops.confirmed)
            found = (j for j, mark in self.complete_joiners() if mark.persisted >= needed)
            return next(found, None)


class GoesOnBehindAGap(_OtherPhases):
    """A joiner that was left behind takes the next op that comes, and fetches none before it."""

    class MirrorPhase(Mirror):
        __slots__ = ()

        def hello_received(self, sender: MemberId, hello: Hello) -> list[Effect]:
            if self.is_behind(hello):
                self.ops.last, self.ops.last_epoch = hello.last, hello.last_epoch
                self.ops.cache.reset(hello.last)
            return super().hello_received(sender, hello)


class CountsOneLeftBehind(_OtherPhases):
    """A joiner that was left behind may be counted, in a view that confirms nothing."""

    class MasterPhase(Master):
        __slots__ = ()

        def complete_joiners(self) -> Iterator[tuple[MemberId, Mark]]:
            return ((j, mark) for j, mark in self.joiners.items() if mark.complete)

        def next_view(self) -> View | None:
            return super().next_view() if not self.left_behind else self._counting()

        def _counting(self) -> View | None:
            joiner = self.joiner_to_count()
            return None if joiner is None else self.view.with_synced(joiner)


class CallsOffAProposedHandover(_OtherPhases):
    """Takes ops again while the registry may yet turn the ring."""

    class MasterPhase(Master):
        __slots__ = ()

        def may_be_turned(self, unresolved: Sequence[View]) -> bool:
            return False


class TellsNoViews(RingMember):
    """Leaves it to the registry to tell the others a view."""

    def step(self, event: Event, *, now: float) -> list[Effect]:
        return [effect for effect in super().step(event, now=now) if not _tells_view(effect)]


def _tells_view(effect: Effect) -> TypeGuard[Send]:
    return isinstance(effect, Send) and isinstance(effect.frame, ViewTold)


class LeavesTheOverruledAlone(RingMember):
    """Leaves it to the registry to tell the overruled lives of an accepted loss."""

    def step(self, event: Event, *, now: float) -> list[Effect]:
        effects = super().step(event, now=now)
        if self.view is None or not self.view.losses:
            return effects
        overruled = {life.node for life in self.view.overruled}
        return [e for e in effects if not (_tells_view(e) and e.node in overruled)]


class _OtherChanger(RingMember):
    """A member with a view changer of its own."""

    changer_class: type[ViewChanger] = ViewChanger

    def __init__(self, *arguments: Any, chance: Chance, **options: Any) -> None:
        super().__init__(*arguments, chance=chance, **options)
        self._changer = self.changer_class(self.me, self.ring, self._timing, chance)


class _KeepsNoRecord(ViewChanger):
    def _propose(self, proposal: View) -> list[Effect]:
        kept = proposal if proposal.own_loss is not None else replace(proposal, losses=())
        return super()._propose(kept)


class ForgetsTheDecision(_OtherChanger):
    """The views that follow an accepted loss have no record of it."""

    changer_class = _KeepsNoRecord


class BeginsFromADamagedLog(RingMember):
    """Takes the log for whole that its application has found damaged."""

    def __init__(self, *arguments: Any, log_is_whole: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)


class _ClosesAnyView(View):
    """May be proposed whoever was reached."""

    def may_follow(self, current: View, **_: object) -> bool:
        return True


class _ProposesUnseen(ViewChanger):
    def _changed(self, purpose: Purpose, view: View, reached: set[MemberId]) -> View | None:
        members = {field.name: getattr(view, field.name) for field in fields(View) if field.init}
        found = super()._changed(purpose, _ClosesAnyView(**members), reached)
        if found is None:
            return None
        return View(**{name: getattr(found, name) for name in members})


class ProposesUnseen(_OtherChanger):
    """Proposes a view though it can't close it: it hasn't reached the members, or leaves out too
    many that may live."""

    changer_class = _ProposesUnseen


class _DeafToTheEligible(ViewChanger):
    def _none_can_go_on(self, view: View) -> bool:
        return super()._none_can_go_on(replace(view, eligible=()))


class IgnoresTheEligible(_OtherChanger):
    """A life that has left a view too small to confirm anything may not begin the ring again."""

    changer_class = _DeafToTheEligible


class KeepsTheEligible(RingMember):
    """Whoever leaves stays eligible, though the others go on confirming without it."""

    def step(self, event: Event, *, now: float) -> list[Effect]:
        return [_keeping_the_eligible(effect, self.view) for effect in super().step(event, now=now)]


def _keeping_the_eligible(effect: Effect, current: View | None) -> Effect:
    if not isinstance(effect, Propose) or current is None:
        return effect
    nodes = {member_id.node for member_id in effect.view.ids}
    left = (member_id for member_id in current.candidates if member_id.node not in nodes)
    return replace(effect, view=replace(effect.view, eligible=tuple(sorted(left))))


class _TakesOneForEnough(ViewChanger):
    def _restarted(self, probe: Probing, view: View, log: Log) -> View | None:
        found = super()._restarted(probe, replace(view, min_insync=1), log)
        return None if found is None else replace(found, min_insync=view.min_insync)


class BeginsAlone(_OtherChanger):
    """The first one that is up begins the ring again with whatever log it has."""

    changer_class = _TakesOneForEnough


class _PromotesWhoeverIsNext(ViewChanger):
    def _changed(self, purpose: Purpose, view: View, reached: set[MemberId]) -> View | None:
        left = [m for m in view.members if not self.lives.is_dead(m.id)]
        if purpose is Purpose.DROP and left and not left[0].synced:
            members = (replace(left[0], synced=True), *left[1:])
            return replace(view, epoch=view.epoch + 1, members=members)
        return super()._changed(purpose, view, reached)


class PromotesAJoiner(_OtherChanger):
    """When the master dies, the next member becomes master, synchronised or not."""

    changer_class = _PromotesWhoeverIsNext


class MovesTheNamedEnd(RingMember):
    """A log of which an operator has named the end gets another one, by ops and by a state that are
    on their way."""

    @property
    def loss_is_open(self) -> bool:
        return False


class _CountsAnyAnswer(ViewChanger):
    def pong(self, sender: MemberId, frame: Pong, view: View, log: Log, now: float) -> list[Effect]:
        return super().pong(sender, replace(frame, epoch=view.epoch), view, log, now)


class CountsStaleAnswers(_OtherChanger, TellsNoViews):
    """Begins the ring again with the logs of members that still believe an older view.

    In a ring whose members tell each other no views: with the question they would hear of the newer
    one, and have a few milliseconds left to take an op in the older.
    """

    changer_class = _CountsAnyAnswer
