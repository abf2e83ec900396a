"""The short way of an op through a member, for a ring in which nothing else is going on.

Nearly every step of a ring is one of five: an op is multicast, an op or marks come in, ops have
come to the disk, on a mirror or on the master. `RingMember.step` takes them through all the
questions that any step may raise, in some sixty calls. Here those questions are asked first, as
looks at a few fields. If one of them has another answer than usual, the step goes the long way.

What must be so (`_is_calm`, and the phase's own conditions): the phase is of the newest view, no
change of the view is under way or may yet take effect, all neighbours live, and the frame is the
next one in order, of this epoch, from a life that has been seen. Then no change can be wanted after
the step either, as its reasons (a death, a joiner, a hand-over, a disk that hangs) come by other
events.

It has no state of its own, and its outcome is that of `RingMember`: the simulator's traces with
either are the same (`cluster-tests/simulation/test_fast_paths.py`). So what is said here is said a
second time, and `member`, `mirror` and `master` say why.
"""

from __future__ import annotations

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.changes import ViewChanger
from ringmq_gm.core.events import (
    Deliver,
    Effect,
    Event,
    Multicast,
    Persisted,
    Received,
    Role,
    Send,
    Watermarks,
)
from ringmq_gm.core.frames import Envelope, Mark, MarksFrame, OpFrame
from ringmq_gm.core.held_ops import HeldOps
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.master import Master
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.mirror import Mirror, Told
from ringmq_gm.core.stalls import look_s
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View


class QuickMember(RingMember):
    """A `RingMember` that takes the short way where it can."""

    def step(self, event: Event, *, now: float) -> list[Effect]:
        effects = self._short_way(event, now)
        return super().step(event, now=now) if effects is None else effects

    def _short_way(self, event: Event, now: float) -> list[Effect] | None:
        """None, and nothing changed, if the step has to go the long way."""
        view, changer, phase = self.view, self._changer, self._phase
        if view is None or not _is_calm(changer, view):
            return None
        # The very classes: a phase that does something else has no short way.
        if type(phase) is Mirror:
            if phase.role is Role.MIRROR and phase.is_greeted and not phase.is_held:
                return _mirror_step(phase, changer.lives, event, self._timing, now)
        elif type(phase) is Master and _is_settled(phase, changer):
            return _master_step(phase, changer.lives, event, self._timing, now)
        return None


def _is_calm(changer: ViewChanger, view: View) -> bool:
    lives = changer.lives
    return lives.all_well_in is view and not lives.down and not lives.gone and changer.is_idle


def _is_expected(lives: Lives, envelope: Envelope, sender: MemberId, epoch: int) -> bool:
    """Whether the frame is of this epoch and from `sender`, of whose life it is no news."""
    return (
        envelope.frame.epoch == epoch
        and envelope.sender == sender
        and lives.incarnations.get(sender.node) == sender.incarnation
    )


def _append(ops: HeldOps, epoch: int, urgent: bool, payload: bytes) -> int:
    """Takes the next op; returns its number."""
    number = ops.last + 1
    ops.cache.append(CachedOp(epoch, number, urgent, payload))
    ops.last = number
    ops.last_epoch = epoch
    if urgent:
        ops.urgent = number
    return number


# --- a mirror ---


def _mirror_step(
    mirror: Mirror, lives: Lives, event: Event, timing: Timing, now: float
) -> list[Effect] | None:
    if mirror.downstream is not None and not mirror.downstream_ready:
        return None
    if isinstance(event, Received):
        envelope = event.envelope
        if not _is_expected(lives, envelope, mirror.upstream, mirror.view.epoch):
            return None
        frame = envelope.frame
        if isinstance(frame, OpFrame):
            if frame.number != mirror.ops.last + 1:
                return None
            effects = _op(mirror, frame)
        elif isinstance(frame, MarksFrame):
            _take_told(mirror, frame)
            effects = _tell(mirror)
        else:
            return None
    elif isinstance(event, Persisted):
        ops = mirror.ops
        if not ops.complete:
            return None
        if event.number <= ops.on_disk:
            effects = []
        else:
            ops.on_disk = event.number
            effects = _tell_marks(mirror)
    else:
        return None
    if mirror.marks_at is None:
        sent = mirror.marks_sent
        if not sent or not mirror.ops.is_at(sent[-1]):
            mirror.marks_at = now + look_s(timing)
    return effects


def _take_told(mirror: Mirror, frame: OpFrame | MarksFrame) -> None:
    """What a frame says beside its op."""
    ops = mirror.ops
    if len(frame.marks) == mirror.index - 1:
        mirror.others = frame.marks
    if frame.stable > ops.cache.stable:
        ops.trim(frame.stable)
    if frame.safe > ops.safe:
        ops.learn_safe(frame.safe)


def _op(mirror: Mirror, frame: OpFrame) -> list[Effect]:
    """The next op: keeps a copy, sends it on with the marks, and delivers it."""
    _take_told(mirror, frame)
    ops, payload = mirror.ops, frame.payload
    number = _append(ops, frame.op_epoch, frame.urgent, payload)
    effects: list[Effect] = []
    downstream = mirror.downstream
    marks: tuple[Mark, ...] = ()
    if downstream is not None:
        stable, safe = ops.cache.stable, ops.safe
        marks = _marks(mirror) if mirror.passes_marks else ()
        if marks:
            _note_told(mirror, marks, _news_in(marks))
        mirror.stable_sent, mirror.safe_sent = stable, safe
        passed = OpFrame(
            ops.ring,
            mirror.view.epoch,
            stable,
            safe,
            frame.op_epoch,
            number,
            frame.urgent,
            marks,
            payload,
        )
        effects.append(Send(downstream.node, passed))
    effects.append(Deliver(number, frame.op_epoch, payload))
    if frame.safe > ops.safe:
        ops.learn_safe(frame.safe)
    if not marks:
        effects += _tell(mirror)
    elif mirror.has_to_tell:
        # The op has taken the marks along.
        effects += mirror.send_stable()
    return effects


def _marks(mirror: Mirror) -> tuple[Mark, ...]:
    """Those of members 1 to this one; empty while some are unknown."""
    own = mirror.ops.mark()
    if mirror.index == 1:
        return (own,)
    return () if mirror.others is None else (*mirror.others, own)


def _news_in(marks: tuple[Mark, ...]) -> Told:
    own = marks[-1]
    persisted, received = own.persisted, own.received
    for mark in marks:
        if mark.persisted < persisted:
            persisted = mark.persisted
        if mark.received < received:
            received = mark.received
    return Told(1, persisted, received)


def _note_told(mirror: Mirror, marks: tuple[Mark, ...], told: Told) -> None:
    mirror.told = told
    mirror.marks_due, mirror.marks_sent, mirror.marks_at = False, marks, None


def _tell(mirror: Mirror) -> list[Effect]:
    """Sends on what is news: marks, or only how far the ring is stable and safe."""
    effects = _tell_marks(mirror)
    if mirror.downstream is not None and mirror.has_to_tell:
        effects += mirror.send_stable()
    return effects


def _tell_marks(mirror: Mirror) -> list[Effect]:
    marks = _marks(mirror)
    if not marks:
        return []
    now, before, ops = _news_in(marks), mirror.told, mirror.ops
    if not (
        now.persisted > before.persisted
        or mirror.marks_due
        or now.counts > before.counts
        or (now.received > before.received and before.received < ops.urgent)
    ):
        return []
    _note_told(mirror, marks, now)
    stable, safe = ops.cache.stable, ops.safe
    frame = MarksFrame(ops.ring, mirror.view.epoch, stable, safe, marks)
    if not mirror.passes_marks:
        return [Send(mirror.view.master.node, frame)]
    assert mirror.downstream is not None
    mirror.stable_sent, mirror.safe_sent = stable, safe
    return [Send(mirror.downstream.node, frame)]


# --- the master ---


def _is_settled(master: Master, changer: ViewChanger) -> bool:
    """Whether this master has nothing in hand but ops, and hears its ring. (The step that learns
    of a later epoch, or that a node is down, has set `contact_due`.)"""
    return (
        master.others is not None
        and master.has_contact
        and master.contact_due is None
        and master.handover is None
        and not master.joiner_ids
        and not master.disks.stalled
        and not changer.unresolved
        and master.view.has_quorum
    )


def _master_step(
    master: Master, lives: Lives, event: Event, timing: Timing, now: float
) -> list[Effect] | None:
    if isinstance(event, Multicast):
        effects = _multicast(master, event)
    elif isinstance(event, Persisted):
        ops = master.ops
        if not ops.complete:
            return None
        if event.number <= ops.on_disk:
            effects = []
        else:
            ops.on_disk = event.number
            effects = _advance(master, timing, now)
    elif isinstance(event, Received):
        envelope, view = event.envelope, master.view
        if not _is_expected(lives, envelope, view.synced[-1], view.epoch):
            return None
        frame = envelope.frame
        if not isinstance(frame, MarksFrame):
            return None
        if len(frame.marks) == len(view.synced) - 1:
            master.others = frame.marks
        effects = _advance(master, timing, now)
    else:
        return None
    disks = master.disks
    if disks.due is None and master.ops.confirmed[1] < master.ops.last:
        disks.due = now + look_s(timing)
    return effects


def _multicast(master: Master, event: Multicast) -> list[Effect]:
    ops, epoch, payload = master.ops, master.view.epoch, event.payload
    number = _append(ops, epoch, event.urgent, payload)
    effects: list[Effect] = []
    downstream = master.downstream
    if downstream is not None and master.downstream_ready:
        stable, safe = ops.cache.stable, ops.safe
        master.stable_sent, master.safe_sent, master.stable_due = stable, safe, None
        frame = OpFrame(ops.ring, epoch, stable, safe, epoch, number, event.urgent, (), payload)
        effects.append(Send(downstream.node, frame))
    effects.append(Deliver(number, epoch, payload))
    _confirm(master, *_held_by_all(master), effects)
    return effects


def _held_by_all(master: Master) -> tuple[int, int]:
    """How far all synchronised members are: received, persisted."""
    ops = master.ops
    received, persisted = ops.last, min(ops.on_disk, ops.last)
    for mark in master.others or ():
        if mark.received < received:
            received = mark.received
        if mark.persisted < persisted:
            persisted = mark.persisted
    return received, persisted


def _advance(master: Master, timing: Timing, now: float) -> list[Effect]:
    """Marks have changed: drops the copies that nobody needs, and confirms."""
    received, persisted = _held_by_all(master)
    ops = master.ops
    if received > ops.cache.stable:
        ops.trim(received)
    effects: list[Effect] = []
    _confirm(master, received, persisted, effects)
    if master.stable_due is None and master.has_to_tell:
        master.stable_due = now + timing.stable_delay_s
    return effects


def _confirm(master: Master, received: int, persisted: int, effects: list[Effect]) -> None:
    ops = master.ops
    before = ops.confirmed
    # Watermarks never fall.
    confirmed = (max(received, before[0]), max(persisted, before[1]))
    if confirmed != before:
        ops.confirmed = confirmed
        ops.safe = max(ops.safe, confirmed[1])
        effects.append(Watermarks(*confirmed))
