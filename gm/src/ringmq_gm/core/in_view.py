"""A member's place in one view, as far as the master and the mirrors have it in common.

It is the sending side of the link to the downstream neighbour: the handshake (Hello down,
Resume back), the ops, and `stable`. `master.py` and `mirror.py` build on it. An object lives
for one epoch: entering a view makes a new one, so that nothing learnt in an earlier epoch (a
mark, a finished handshake) can be taken for a fact of this one.

A trip. The master numbers an op, sends it downstream and delivers it to itself; it keeps a copy.
A mirror forwards, then delivers. Each frame carries the marks (received, persisted) of the
members that it has passed, so the last member knows all of them and sends them to the master:
the op's own bytes need not come back. The master sends `stable` with the next frame, and all
members drop their copies up to there.

A link that has been opened anew, or a new view, begins with a handshake: Hello downstream,
Resume with the last number upstream, and then the ops after that number, from the cache. A
member that dies is left out; its upstream shakes hands with the next one. Re-forwarding is no
more than that. In a new epoch the handshakes go around the ring, from the master on: a mirror
that has been greeted knows that all members before it, and the master, are in the epoch and
will take its frames.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.events import Deliver, Effect, Role, Send
from ringmq_gm.core.frames import Hello, Mark, MarksFrame, OpFrame, Resume
from ringmq_gm.core.held_ops import HeldOps
from ringmq_gm.core.views import MemberId, View


class InView:
    """See the module."""

    __slots__ = (
        "downstream",
        "downstream_ready",
        "index",
        "ops",
        "others",
        "passes_marks",
        "role",
        "safe_sent",
        "stable_sent",
        "view",
    )

    def __init__(self, ops: HeldOps, view: View, index: int, role: Role) -> None:
        self.ops = ops
        self.view = view
        self.index = index
        self.role = role
        ids = view.ids
        self.downstream: MemberId | None = ids[index + 1] if index + 1 < len(ids) else None
        # Whether the downstream neighbour has said where to resume.
        self.downstream_ready = False
        # How far the downstream neighbour has been told that the ring is stable.
        self.stable_sent = 0
        # How far the downstream neighbour has been told that ops are safe.
        self.safe_sent = 0
        # The marks of other synchronised members; None until they have been told. A mirror gets
        # those of the members between the master and itself, the master those of all the others.
        self.others: tuple[Mark, ...] | None = None

        # Whether the downstream neighbour is synchronised, and adds its mark to those before it.
        # The last synchronised member tells the master the marks, and each joiner its own: a
        # joiner that takes nothing must not be on their way.
        self.passes_marks = index + 1 < len(view.synced)

    def view_without_slow(self, node: str) -> View | None:
        """The next view without the downstream neighbour `node`, if a quorum is left."""
        if self.downstream is None or self.downstream.node != node:
            return None
        if not len(self.ops.cache):
            # All rings of this node are told. Nobody waits for a quiet one, and a node whose disk
            # is too slow for one queue isn't put out of all the others for it.
            return None
        proposal = self.view.without({self.downstream})
        return proposal if proposal is not None and proposal.has_quorum else None

    # --- frames for the downstream neighbour ---

    def hello(self) -> list[Effect]:
        """Greets the downstream neighbour."""
        if self.downstream is None:
            return []
        ops = self.ops
        self._note_sent()
        hello = Hello(ops.ring, self.view.epoch, ops.last_epoch, ops.last, ops.stable, ops.safe)
        return [Send(self.downstream.node, hello)]

    def accept(self, op: CachedOp) -> list[Effect]:
        """Takes the next op: keeps a copy, sends it on, then delivers it.

        In this order the members after this one write to their disks while this one does.
        """
        self.ops.append(op)
        effects = self._forward(op)
        effects.append(Deliver(op.number, op.epoch, op.payload))
        return effects

    def _forward(self, op: CachedOp) -> list[Effect]:
        if self.downstream is None or not self.downstream_ready:
            return []  # The copy stays here. It goes when Resume says from where on.
        marks = self._carried_marks()
        self._note_sent()
        frame = OpFrame(
            self.ops.ring,
            self.view.epoch,
            self.ops.stable,
            self.ops.safe,
            op.epoch,
            op.number,
            op.urgent,
            marks,
            op.payload,
        )
        return [Send(self.downstream.node, frame)]

    def _carried_marks(self) -> tuple[Mark, ...]:
        """The marks that an op takes along, which count as told from then on."""
        return ()

    def _known_marks(self) -> tuple[Mark, ...]:
        """The marks of members 1 to this one; empty while some are unknown."""
        return ()

    def pass_on(self) -> list[Effect]:
        """Tells downstream how far the ring is stable and safe, if that is news there."""
        return self.send_stable() if self.has_to_tell else []

    @property
    def has_to_tell(self) -> bool:
        """Whether downstream doesn't know how far the ring is stable, or safe."""
        return self.stable_sent < self.ops.stable or self.safe_sent < self.ops.safe

    def _note_sent(self) -> None:
        self.stable_sent, self.safe_sent = self.ops.stable, self.ops.safe

    def send_stable(self) -> list[Effect]:
        if self.downstream is None or not self.downstream_ready:
            return []
        self._note_sent()
        ops = self.ops
        marks = self._known_marks() if self.passes_marks else ()
        frame = MarksFrame(ops.ring, self.view.epoch, ops.stable, ops.safe, marks)
        return [Send(self.downstream.node, frame)]

    # --- answers of the downstream neighbour ---

    def _resume_received(self, sender: MemberId, resume: Resume) -> list[Effect]:
        if sender != self.downstream:
            return []
        if not self.passes_marks and resume.last < self.ops.stable:
            # A joiner that was left behind, whose ops are gone; or an answer to an earlier Hello
            # (see `ops_to_resend`). The newest Hello tells which.
            self.downstream_ready = False
            return self.hello()
        self.downstream_ready = True
        effects: list[Effect] = []
        for op in self.ops_to_resend(resume.last):
            effects += self._forward(op)
        return effects + self.pass_on()

    def ops_to_resend(self, last: int) -> Iterable[CachedOp]:
        """The ops that the downstream neighbour lacks, which says that it has those up to `last`.

        A synchronised one never lacks a stable op, even if `last` says so: 1. I say Hello twice
        (the link was opened anew), 2. it answers Resume(5) twice, 3. the first answer comes, I
        send 6 to 10, 4. its marks reach the master, whose `stable` 10 reaches me and drops my
        copies, 5. the second answer comes.
        """
        return list(self.ops.after(max(last, self.ops.stable)))

    def link_up(self, node: str) -> list[Effect]:
        """The link to `node` has been opened anew: frames on the one before may be lost."""
        if self.downstream is None or self.downstream.node != node:
            return []
        # An op that went now would arrive behind a gap: the lost ones have to go first.
        self.downstream_ready = False
        return self.hello()

    # --- marks ---

    def marks_known(self) -> dict[MemberId, Mark]:
        """How far each member is, as far as it is known here."""
        known = {self.view.ids[self.index]: self.ops.mark()}
        known.update(zip(self.view.ids[1:], self.others or (), strict=False))
        return known
