"""A mirror in one view: takes ops from upstream, passes them on, and tells how far it is.

A mirror that isn't synchronised yet is a joiner: it passes ops on like any other mirror, while
its application fetches everything from before it joined.

Marks travel with the ops. A frame from member k carries the marks of members 1 to k, so the
last member knows all of them and tells the master (docs/decisions/0001-vector-of-marks.md has
the reason for a vector). Within an epoch no mark ever falls: links keep order, and a member's
own progress only rises.

Invariants: a mirror answers nobody but its upstream neighbour, and only once it has been
greeted. A greeted mirror knows that all members before it, and the master, are in the epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.events import Effect, Role, Send, StartCatchUp
from ringmq_gm.core.frames import (
    EpochFrame,
    Hello,
    Mark,
    MarksFrame,
    OpFrame,
    Resume,
    Submit,
    ViewTold,
)
from ringmq_gm.core.held_ops import HeldOps, LogEnd
from ringmq_gm.core.in_view import InView
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.stalls import look_s
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View


class Told(NamedTuple):
    """The facts in a vector of marks that the master may wait for.

    None of them falls, unless `counts` rises: then a joiner has become complete.
    """

    counts: int
    persisted: int
    received: int


NOTHING_TOLD = Told(-1, -1, -1)


class Mirror(InView):
    """See the module. `awaits_start`: it has joined, and no Hello has said where it begins. If
    none has come by `tell_due`, it tells its upstream neighbour the view."""

    # It multicasts nothing.
    waiting_bytes = 0

    __slots__ = (
        "awaits_start",
        "gap_at",
        "held_hello",
        "is_greeted",
        "is_held",
        "marks_at",
        "marks_due",
        "marks_sent",
        "tell_due",
        "told",
        "upstream",
    )

    def __init__(self, ops: HeldOps, view: View, index: int, *, awaits_start: bool) -> None:
        assert index > 0, index
        role = Role.MIRROR if view.members[index].synced else Role.JOINER
        super().__init__(ops, view, index, role)
        self.awaits_start = awaits_start
        self.upstream = view.ids[index - 1]
        self.is_greeted = False
        # Whether nothing is taken from upstream, and the greeting that has come meanwhile.
        self.is_held = False
        self.held_hello: Hello | None = None
        self.tell_due: float | None = None
        # The news in the last marks that were sent.
        self.told = NOTHING_TOLD
        # The last marks that were sent, and when to send others though they tell nothing new.
        self.marks_sent: tuple[Mark, ...] = ()
        self.marks_at: float | None = None
        # The next marks go even without news: the ones before may have been lost.
        self.marks_due = True
        # The last op before the newest gap that was asked for.
        self.gap_at = -1

    def received(self, sender: MemberId, frame: EpochFrame) -> list[Effect]:
        if self.is_held and not isinstance(frame, Resume):
            if isinstance(frame, Hello) and sender == self.upstream:
                self.held_hello = frame
            return []
        match frame:
            case OpFrame():
                return self._op_received(sender, frame)
            case MarksFrame():
                return self._marks_received(sender, frame)
            case Hello():
                return self.hello_received(sender, frame)
            case Resume():
                return self._resume_received(sender, frame)
            case Submit():
                return []  # Its sender has missed a view, and took this member for the master.

    # --- a loss that an operator accepts ---

    def hold(self) -> None:
        """The end of this joiner's log has been named: no op is taken until `go_on`."""
        assert self.role is Role.JOINER, self.role
        self.is_held = True

    def go_on(self) -> list[Effect]:
        """The decision came to nothing. Whatever was not taken since is asked for again."""
        hello, self.held_hello = self.held_hello, None
        self.is_held = False
        if hello is not None:
            return self.hello_received(self.upstream, hello)
        return [self._resume()] if self.is_greeted else []

    # --- handshakes ---

    def hello(self) -> list[Effect]:
        """Greets the downstream neighbour, once this member has been greeted itself.

        Otherwise that neighbour's marks could reach a master that hasn't entered the epoch: it
        would drop them, and they would never be sent again.
        """
        return super().hello() if self.is_greeted else []

    def hello_received(self, sender: MemberId, hello: Hello) -> list[Effect]:
        if sender != self.upstream:
            return []
        is_first = not self.is_greeted
        self.is_greeted, self.tell_due = True, None
        effects: list[Effect] = []
        if self.awaits_start or (is_first and self.is_behind(hello)):
            # Here the past ends: every op after `last` will come around the ring, and the
            # application fetches those up to it.
            self.awaits_start = False
            self.ops.begin_after(LogEnd(hello.last_epoch, hello.last))
            effects.append(StartCatchUp(hello.last))
        elif self.is_behind(hello):
            # Not again in the same view: a joiner that is too slow for the ring would fetch the
            # state over and over. The master is about to put it out, and it comes back later.
            return []
        else:
            self.ops.trim(hello.stable)
        self.ops.learn_safe(hello.safe)
        effects.append(self._resume())
        if is_first:
            effects += self.hello()
        # The greeting follows a new view or a new link: marks sent before it may be lost.
        self.marks_due = True
        return effects + self.pass_on()

    def is_behind(self, hello: Hello) -> bool:
        """Whether this joiner was left behind: nobody keeps the next op for it any more."""
        return self.role is Role.JOINER and self.ops.last < hello.stable

    def _resume(self) -> Send:
        resume = Resume(self.ops.ring, self.view.epoch, self.ops.last)
        return Send(self.upstream.node, resume)

    def _resume_received(self, sender: MemberId, resume: Resume) -> list[Effect]:
        if sender == self.downstream:
            self.marks_due = True
        return super()._resume_received(sender, resume)

    def link_up(self, node: str) -> list[Effect]:
        effects = super().link_up(node)
        if self.upstream.node == node:
            effects.append(self._resume() if self.is_greeted else self._tell_view())
        if not self.passes_marks and self.view.master.node == node:
            effects += self.send_marks(due=True)
        return effects

    # --- time ---

    def next_deadline(self) -> float | None:
        if self.tell_due is None or self.marks_at is None:
            return self.marks_at if self.tell_due is None else self.tell_due
        return min(self.tell_due, self.marks_at)

    def look_around(self, lives: Lives, timing: Timing, now: float) -> list[Effect]:
        """After each step. If the marks have no news for a while, this member's disk hangs, or that
        of a member before it. The master must see whose it is (`stalls`)."""
        if self.marks_at is None and self.is_greeted and self._has_untold_mark():
            self.marks_at = now + look_s(timing)
        return []

    def tick(self, now: float) -> list[Effect]:
        """Nobody has greeted this member yet: its upstream neighbour may not know the view.

        Once is enough: the frame is lost only with its link, and the next one begins with it
        (`link_up`).
        """
        effects: list[Effect] = []
        if self.marks_at is not None and now >= self.marks_at:
            self.marks_at = None
            if self._has_untold_mark():
                effects += self.send_marks(due=True)
        if self.tell_due is not None and now >= self.tell_due:
            self.tell_due = None
            effects.append(self._tell_view())
        return effects

    def _tell_view(self) -> Send:
        told = ViewTold(self.ops.ring, self.view.epoch, self.view)
        return Send(self.upstream.node, told)

    # --- a trip ---

    def _op_received(self, sender: MemberId, frame: OpFrame) -> list[Effect]:
        if sender != self.upstream or not self.is_greeted:
            return []
        last = self.ops.last
        if frame.number > last + 1:
            # Ops between were lost. They are asked for once: each op behind the gap would
            # otherwise ask again, and all of them would be sent as often.
            if self.gap_at == last:
                return []
            self.gap_at = last
            return [self._resume()]
        # An op that is here already has come again after a handshake. Its marks and `stable` may
        # be news all the same.
        self._take_marks(frame.marks)
        self.ops.trim(frame.stable)
        # Before the op goes on, or it would say the `safe` of the one before, and this one would
        # cost each op a frame of its own.
        self.ops.learn_safe(frame.safe)
        effects: list[Effect] = []
        if frame.number == last + 1:
            op = CachedOp(frame.op_epoch, frame.number, frame.urgent, frame.payload)
            effects = self.accept(op)
            # An op that is sent again may say that ops up to itself, or behind it, are safe.
            self.ops.learn_safe(frame.safe)
        return effects + self.pass_on()

    def _marks_received(self, sender: MemberId, frame: MarksFrame) -> list[Effect]:
        if sender != self.upstream or not self.is_greeted:
            return []
        self._take_marks(frame.marks)
        self.ops.trim(frame.stable)
        self.ops.learn_safe(frame.safe)
        return self.pass_on()

    def caught_up(self, persisted: int) -> list[Effect]:
        """The application has fetched everything from before this member joined.

        It must not have more than the ring has brought here: 1. b joins, fetches ops 16 and 17 from
        a, and has received 15, 2. it is counted, as nothing above 15 is confirmed, 3. a dies, b is
        master and gives 16 to another op, 4. its application has the old one there, and keeps it.
        """
        if self.role is not Role.JOINER or self.awaits_start:
            return []  # This was a joining that has been overtaken by another view.
        assert persisted <= self.ops.last, (persisted, self.ops.last)
        self.ops.complete = True
        self.ops.on_disk = persisted
        return self.send_marks(due=True)

    # --- marks ---

    def pass_on(self) -> list[Effect]:
        """Sends downstream the news: marks, or only how far the ring is stable."""
        effects = self.send_marks()
        return effects + self.send_stable() if self.has_to_tell else effects

    def send_marks(self, *, due: bool = False) -> list[Effect]:
        """Sends the marks on if they tell anything new: downstream, or else to the master."""
        self.marks_due |= due
        # Not before the handshakes: the receiver may not be in the epoch yet, would drop the
        # marks, and this member would take them for told.
        target = self.downstream if self.passes_marks else None
        if not self.is_greeted or (target is not None and not self.downstream_ready):
            return []
        marks = self._known_marks()
        if not marks or self._were_told(marks):
            return []
        told = self._news_in(marks)
        if not self._has_news(told):
            return []
        self._note_told(marks, told)
        ops = self.ops
        frame = MarksFrame(ops.ring, self.view.epoch, ops.stable, ops.safe, marks)
        if target is None:
            return [Send(self.view.master.node, frame)]
        self._note_sent()
        return [Send(target.node, frame)]

    def _take_marks(self, marks: tuple[Mark, ...]) -> None:
        """Remembers the marks in a frame, if they are those of all members before this one.

        A master that only says `stable` sends no marks: those known already still hold.
        """
        if self.role is not Role.JOINER and len(marks) == self.index - 1:
            self.others = marks

    def _known_marks(self) -> tuple[Mark, ...]:
        own = self.ops.mark()
        if self.index == 1 or self.role is Role.JOINER:
            return (own,)
        return () if self.others is None else (*self.others, own)

    def _carried_marks(self) -> tuple[Mark, ...]:
        marks = self._known_marks() if self.passes_marks else ()
        if marks:
            self._note_told(marks, self._news_in(marks))
        return marks

    def _were_told(self, marks: tuple[Mark, ...]) -> bool:
        """Whether these very marks were sent: as after each op that has taken them along."""
        return marks == self.marks_sent and not self.marks_due

    def _has_news(self, now: Told) -> bool:
        """Whether marks with these facts are worth a frame of their own.

        "Received" alone is worth it only if a publisher waits for just that (`urgent`), or from a
        joiner that doesn't say "persisted" yet; else it goes with the next mark that does. Without
        it no op becomes stable, and the ring fills up.
        """
        if self.marks_due:
            return True
        before = self.told
        return (
            now.counts > before.counts
            or now.persisted > before.persisted
            or (now.received > before.received and before.received < self.ops.urgent)
        )

    def _note_told(self, marks: tuple[Mark, ...], told: Told) -> None:
        self.told = told
        self.marks_due, self.marks_sent, self.marks_at = False, marks, None

    def _has_untold_mark(self) -> bool:
        return not self.marks_sent or not self.ops.is_at(self.marks_sent[-1])

    def _news_in(self, marks: tuple[Mark, ...]) -> Told:
        own = marks[-1]
        if self.role is Role.JOINER and not own.complete:
            # It has holes below the ops on its disk, so it doesn't say "persisted" at all.
            return Told(0, own.received, own.received)
        persisted, received = own.persisted, own.received
        for mark in marks:  # A third of the time of two calls of min().
            if mark.persisted < persisted:
                persisted = mark.persisted
            if mark.received < received:
                received = mark.received
        return Told(1, persisted, received)
