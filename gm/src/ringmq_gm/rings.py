"""One ring as its owner sees it: the member core, and the effects carried out.

The owner implements `Application` and gets a `Ring` from `Group.open`. Everything happens on the
event loop, and nothing awaits except `promote` and `wait_writable`.

Effects are carried out in the order in which the core gave them, also when the application calls
back from within one of its methods: the new effects are put behind those that are left, and all
of them are carried out before the call returns. So `multicast` has delivered the op when it
returns, and `watermarks` for an op may come before `multicast` has returned its number (in a
ring of one).

An exception out of the core or the application ends this member for the rest of the node's life,
as its state can't be trusted: it is logged, the application is told (`ring_failed`), and
`multicast`, `submit`, `promote` and `wait_writable` raise `RingFailedError` from then on. The
other rings of the node go on, and the other members go on without this one (`Group.ended`). A
ring that has ended ignores `persisted`, `caught_up` and `want`, which ask for no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol, assert_never

from ringmq_gm.application import Application
from ringmq_gm.core.events import (
    CaughtUp,
    ContactChanged,
    Deliver,
    Effect,
    Event,
    LossAccepted,
    LossEnded,
    LossOutcome,
    MembershipWanted,
    MinInsyncAsked,
    Multicast,
    Persisted,
    PromotionAsked,
    PromotionEnded,
    PromotionOutcome,
    Propose,
    RefreshView,
    Refusal,
    RemovalAsked,
    RingDeleted,
    Role,
    RoleChanged,
    SeldomEffect,
    Send,
    StartCatchUp,
    Watermarks,
)
from ringmq_gm.core.frames import Frame, Mark, Submit
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId, View
from ringmq_gm.errors import (
    DrainingError,
    FullError,
    LossRefusedError,
    NotMasterError,
    OutOfContactError,
    PromotionError,
    RefusedError,
    RingClosedError,
    RingFailedError,
    TooLargeError,
)

log = logging.getLogger(__name__)

_REFUSED: dict[Refusal, type[RefusedError]] = {
    Refusal.NOT_MASTER: NotMasterError,
    Refusal.OUT_OF_CONTACT: OutOfContactError,
    Refusal.DRAINING: DrainingError,
    Refusal.FULL: FullError,
}


class Shell(Protocol):
    """The group, as far as a ring needs it."""

    @property
    def broadcast_count(self) -> int:
        """How many events for all rings there have been."""
        ...

    def catch_up(self, ring: Ring) -> None:
        """Gives the ring the events for all rings that it lacks."""
        ...

    def now(self) -> float:
        """The event loop's clock, in seconds."""
        ...

    def send(self, node: str, frame: Frame) -> None: ...

    def waiting_bytes(self, node: str, ring: str) -> int:
        """How many bytes of this ring's bodies wait to be sent to `node`."""
        ...

    def propose(self, ring: str, proposal: Propose) -> None: ...

    def refresh(self, ring: str) -> None: ...

    def cached(self, change_bytes: int) -> None:
        """`Ring.cached_bytes` of a ring has changed by so much."""
        ...

    def arm(self, ring: Ring, deadline: float) -> None:
        """The core wants a `Tick` at `deadline`, earlier than the shell would look at it."""
        ...

    def view_entered(self, ring: Ring) -> None: ...

    def ended(self, ring: Ring, failure: RingFailedError | None) -> None:
        """The ring takes no more events: it was deleted, or has failed."""
        ...


class Ring:
    """This node's member of one ring. Made by `Group.open`."""

    def __init__(
        self,
        member: RingMember,
        application: Application,
        shell: Shell,
        *,
        payload_bytes_max: int,
        submit_bytes_max: int,
    ) -> None:
        self.name = member.ring
        self.me = member.me
        # When the group's timer will look at this ring again; the group's own.
        self.armed_at: float | None = None
        # On the master: payloads that some synchronised member hasn't received yet. Elsewhere 0.
        self.cached_bytes = 0
        # How many of the events for all rings it has taken; the group's own.
        self.broadcasts_taken = shell.broadcast_count
        self._member = member
        self._application = application
        self._shell = shell
        self._payload_bytes_max = payload_bytes_max
        self._submit_bytes_max = submit_bytes_max
        self._effects: deque[Effect] = deque()
        self._promotions: list[tuple[MemberId, asyncio.Future[PromotionOutcome]]] = []
        self._loss: asyncio.Future[LossOutcome] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closed = False
        self._failure: RingFailedError | None = None

    # --- questions of the application ---

    @property
    def view(self) -> View | None:
        """The newest view that this member knows; None before the registry has told one."""
        return self._member.view

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are synchronised for anything to be confirmed."""
        return self._member.has_quorum

    @property
    def last_number(self) -> int:
        """The number of the last op that this member has."""
        return self._member.ops.last

    @property
    def stable_number(self) -> int:
        """Up to this op every member has received everything, as far as this one knows."""
        return self._member.ops.stable

    @property
    def log_is_whole(self) -> bool:
        """Whether this log counts when the ring is begun again."""
        return self._member.log_is_whole

    @property
    def safe_number(self) -> int:
        """Up to this op, this member knows that all are confirmed as on disk: by this master or an
        earlier one. It never falls while this member is in the ring. A mirror hears of it a little
        later than the master; a member that has just started knows of none."""
        return self._member.ops.safe

    @property
    def loss_is_open(self) -> bool:
        """Whether a loss that was accepted here may take effect in this epoch."""
        return not self._closed and self._member.loss_is_open

    @property
    def closed(self) -> bool:
        return self._closed

    def refusal(self) -> Refusal | None:
        """Why `multicast` would be refused now; None if it would be taken."""
        return self._member.refusal()

    def marks(self) -> dict[MemberId, Mark]:
        """How far each member is, as far as this one knows (the master knows best)."""
        return self._member.marks()

    def next_deadline(self) -> float | None:
        """When the core wants a `Tick`, on the clock of `Shell.now`."""
        return None if self._closed else self._member.next_deadline()

    # --- commands of the application ---

    def multicast(self, payload: bytes, *, urgent: bool = False) -> int:
        """Sends `payload` to all members; returns its number, having delivered it here.

        `urgent`: its publisher waits for it to be received everywhere, not for it to be on
        disk. Raises `TooLargeError` or one of the kinds of `RefusedError`; then nothing was
        done.
        """
        self._ensure_open()
        self._ensure_size(payload)
        refusal = self._member.refusal()
        if refusal is not None:
            raise _REFUSED[refusal](f"ring {self.name!r} at {self.me}: {refusal.value}")
        number = self._member.ops.last + 1
        self.step(Multicast(payload, urgent))
        self._ensure_open()
        return number

    def submit(self, payload: bytes, *, urgent: bool = False) -> None:
        """On any member: asks the master to multicast `payload`, which happens at most once.

        Only its delivery shows that it did. Raises as `multicast` on the master; elsewhere
        `NotMasterError` if no master is known, `FullError` if more than `submit_bytes_max` wait
        to be sent, `TooLargeError`.
        """
        self._ensure_open()
        self._ensure_size(payload)
        view = self.view
        if self.role is Role.MASTER:
            self.multicast(payload, urgent=urgent)
            return
        if view is None or view.master.node == self.me.node:
            raise NotMasterError(f"ring {self.name!r} at {self.me}: no master is known")
        node = view.master.node
        if self._shell.waiting_bytes(node, self.name) > self._submit_bytes_max:
            raise FullError(
                f"ring {self.name!r} at {self.me}: more than {self._submit_bytes_max} bytes"
                f" wait to be sent to the master at {node!r}"
            )
        self._shell.send(node, Submit(self.name, view.epoch, urgent, payload))

    def persisted(self, number: int) -> None:
        """Every op up to `number` is on this member's disk."""
        self.step(Persisted(number))

    def caught_up(self, persisted: int) -> None:
        """All ops from before this member joined are on its disk, and every op up to
        `persisted`."""
        self.step(CaughtUp(persisted))

    def want(self, wanted: bool) -> None:
        """Whether this member should be in the ring; if it isn't, it joins."""
        self.step(MembershipWanted(wanted))

    def remove(self, target: MemberId) -> None:
        """On the master: puts `target` out of the ring, if that leaves a quorum.

        Nothing says that it hasn't been done: the view shows it. To be kept out, `target` itself
        mustn't want to be in the ring any more.
        """
        self.step(RemovalAsked(target))

    def set_min_insync(self, count: int) -> None:
        """On the master: so many synchronised members have to have an op from now on, if there
        are as many. The view shows whether it has been done."""
        self.step(MinInsyncAsked(count))

    async def promote(self, target: MemberId) -> None:
        """On the master: drains the ring, then makes `target`, which is synchronised, master.

        Raises `PromotionError` if that is refused, or if the ring doesn't drain within
        `Timing.drain_s`; `RingClosedError` if the ring ends meanwhile.
        """
        self._ensure_open()
        ended: asyncio.Future[PromotionOutcome] = asyncio.get_running_loop().create_future()
        # The core answers a refused one within the step, while an earlier one is still open.
        self._promotions.append((target, ended))
        self.step(PromotionAsked(target))
        outcome = await ended
        if outcome is not PromotionOutcome.DONE:
            raise PromotionError(self.name, target, outcome)

    async def accept_loss(self, accepted: LossAccepted) -> None:
        """Where this member isn't synchronised: begins the ring again from the application's log,
        though it may lack confirmed ops. An operator has to decide that.

        From the call on, and while `loss_is_open`, that log must keep its end (`accepted`).
        Raises `LossRefusedError`, which says whether it may still take effect, and
        `RingClosedError` if the ring ends meanwhile.
        """
        self._ensure_open()
        if self._loss is not None:
            raise LossRefusedError(self.name, self.me, LossOutcome.BUSY)
        ended = self._loss = asyncio.get_running_loop().create_future()
        self.step(accepted)
        outcome = await ended
        if outcome is not LossOutcome.DONE:
            raise LossRefusedError(self.name, self.me, outcome)

    async def wait_writable(self) -> None:
        """Returns when `refusal()` isn't `Refusal.FULL`; it may be another one.

        Raises `RingClosedError` if the ring ends meanwhile.
        """
        self._ensure_open()
        while self._member.refusal() is Refusal.FULL:
            if self._writable is None:
                self._writable = asyncio.get_running_loop().create_future()
            # All waiters share this future: one that is cancelled must not cancel it.
            await asyncio.shield(self._writable)
            self._ensure_open()

    # --- the group's side ---

    def step(self, event: Event) -> None:
        """Gives the event to the core and carries out the effects. Never raises: a failure ends
        this member, and the application is told."""
        if self.broadcasts_taken != self._shell.broadcast_count:
            self._shell.catch_up(self)
        self.take(event)

    def take(self, event: Event) -> None:
        """`step`, without the events for all rings that come before."""
        if self._closed:
            return
        effects, member = self._effects, self._member
        try:
            effects.extend(member.step(event, now=self._shell.now()))
            while effects:
                effect = effects.popleft()
                # These three make up a trip: each without a call more.
                if isinstance(effect, Send):
                    self._shell.send(effect.node, effect.frame)
                elif isinstance(effect, Deliver):
                    self._application.deliver(effect.number, effect.epoch, effect.payload)
                elif isinstance(effect, Watermarks):
                    self._application.watermarks(effect.received, effect.persisted)
                else:
                    self._perform(effect)
            if self._closed:
                return  # By one of the effects.
            if self._writable is not None and member.refusal() is not Refusal.FULL:
                self._writable.set_result(None)
                self._writable = None
            waiting_bytes = member.waiting_bytes
            if waiting_bytes != self.cached_bytes:
                self._note_cached(waiting_bytes)
            # Inside the `try` as well: the caller may be a link, which would break at an
            # exception from here and be dialled again, while this ring has lost its timer.
            # Nearly always the timer is set for a moment that is early enough.
            deadline, at = member.next_deadline(), self.armed_at
            if deadline is not None and (at is None or at > deadline):
                self._shell.arm(self, deadline)
        except Exception as error:
            self._fail(error)

    def _note_cached(self, size_bytes: int) -> None:
        if size_bytes != self.cached_bytes:
            change, self.cached_bytes = size_bytes - self.cached_bytes, size_bytes
            self._shell.cached(change)

    def close(self) -> None:
        """Takes no more events; `promote` and `wait_writable` that wait raise
        `RingClosedError`."""
        if self._closed:
            return
        self._closed = True
        # It has this ring, and nothing is told to it any more: a cycle that would have to be found.
        del self._application
        self._effects.clear()
        self._note_cached(0)
        closed = self._failure or RingClosedError(f"ring {self.name!r} at {self.me} was closed")
        promotions, self._promotions = self._promotions, []
        for _, ended in promotions:
            if not ended.done():
                ended.set_exception(closed)
        loss, self._loss = self._loss, None
        if loss is not None and not loss.done():
            loss.set_exception(closed)
        if self._writable is not None:
            # The waiters look at the ring themselves. An exception set here would be logged as
            # "never retrieved" if all of them have gone.
            self._writable.set_result(None)
            self._writable = None

    def fail(self, error: Exception) -> None:
        """The ring can't go on because of `error`."""
        self._fail(error)

    def _ensure_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RingClosedError(f"ring {self.name!r} at {self.me} was closed")

    def _ensure_size(self, payload: bytes) -> None:
        if len(payload) > self._payload_bytes_max:
            raise TooLargeError(
                f"ring {self.name!r}: op of {len(payload)} bytes,"
                f" at most {self._payload_bytes_max} are allowed"
            )

    def _fail(self, error: Exception) -> None:
        if self._closed:
            return  # A nested step, from within the application, has failed already.
        log.error("ring %r at %s has failed", self.name, self.me, exc_info=error)
        text = f"ring {self.name!r} at {self.me} has failed: {error!r}"
        self._failure = RingFailedError(text)
        self._failure.__cause__ = error
        application = self._application
        self.close()
        self._shell.ended(self, self._failure)
        try:
            application.ring_failed(self._failure)
        except Exception:
            # The caller may be the step of a link, or of a timer for many rings.
            log.exception("ring %r at %s: its application failed to end", self.name, self.me)

    def _perform(self, effect: SeldomEffect) -> None:
        match effect:
            case ContactChanged(has_contact):
                self._application.contact_changed(has_contact)
            case RoleChanged(role, view):
                self._shell.view_entered(self)
                self._application.role_changed(role, view)
            case StartCatchUp(number):
                assert self._member.view is not None
                self._application.start_catch_up(number, self._member.view.master)
            case Propose():
                self._shell.propose(self.name, effect)
            case RefreshView():
                self._shell.refresh(self.name)
            case PromotionEnded(outcome):
                self._promotion_ended(outcome)
            case LossEnded(outcome):
                loss, self._loss = self._loss, None
                # Its caller may have run out of time.
                if loss is not None and not loss.done():
                    loss.set_result(outcome)
                self._application.loss_ended()
            case RingDeleted():
                self._application.ring_deleted()
                self.close()
                self._shell.ended(self, None)
            case _:
                assert_never(effect)

    def _promotion_ended(self, outcome: PromotionOutcome) -> None:
        # Of two, the newest is the one just refused; the oldest is under way.
        refused = len(self._promotions) > 1
        _, ended = self._promotions.pop(-1 if refused else 0)
        if not ended.done():
            ended.set_result(outcome)
