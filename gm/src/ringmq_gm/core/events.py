"""The events that a ring member takes (facts), and the effects that it returns (commands).

The caller carries effects out in the order of the list. The order is part of the protocol: an
op, for instance, is sent on before it is delivered.
"""

from __future__ import annotations

from enum import Enum

from ringmq_base.values import value
from ringmq_gm.core.frames import Envelope, Frame
from ringmq_gm.core.views import MemberId, View

# --- events ---


@value
class ViewLearned:
    """The registry holds this view. None: it holds none, the ring has been deleted."""

    view: View | None


@value
class LeasesLearned:
    """These lives of nodes hold a registry lease; every other one's has run out."""

    alive: frozenset[MemberId]


@value
class NodesKnown:
    """Operators have forgotten every node but these: its disk is lost to the cluster."""

    nodes: frozenset[str]


@value
class LinkUp:
    """A link to this life of a node has been opened, for the first time or again. Frames that
    were sent on the link before it may be lost."""

    life: MemberId


@value
class LinkDown:
    """This node can't be reached, or has been silent for the ring time-out."""

    node: str


@value
class PeerStalled:
    """In the slow time-out this node has not taken a window of the frames that wait for it."""

    node: str


@value
class Received:
    """A frame has come in; its envelope says from which life of a node."""

    envelope: Envelope


@value
class Multicast:
    """The application wants this op sent. Only where `RingMember.refusal()` is None.

    `urgent`: its publisher waits for it to be received everywhere, not for it to be on disk.
    """

    payload: bytes
    urgent: bool = False


@value
class Persisted:
    """Every op up to `number` is on this member's disk."""

    number: int


@value
class CaughtUp:
    """A joiner's application has everything from before it joined on disk, and every op up to
    `persisted`. Until then `Persisted` counts for nothing: the application may mean the log that
    it had when it joined, which has been cut."""

    persisted: int


@value
class MembershipWanted:
    """Whether this member should be in the ring; if it isn't, it joins."""

    wanted: bool


@value
class PromotionAsked:
    """An operator, or this node's shutdown, wants another master. Only the master can do it."""

    target: MemberId


@value
class LossAccepted:
    """An operator wants the ring begun again from the application's log here, which ends with op
    `log_number` of epoch `log_epoch`, and is on disk; confirmed ops may be lost by it. The log
    keeps that end while `RingMember.loss_is_open`.

    For a member that isn't synchronised. The other fields are for the record (`AcceptedLoss`).
    """

    log_epoch: int
    log_number: int
    position: int
    operator: str
    at_ms: int


@value
class RemovalAsked:
    """This member shouldn't be in the ring any more. Only the master can do it, and it forgets
    the question if it can't now: whoever asks looks at the view, and asks again."""

    target: MemberId


@value
class MinInsyncAsked:
    """So many synchronised members should have an op before it is confirmed. To the master, and
    forgotten like `RemovalAsked`."""

    count: int


class Refusal(Enum):
    """Why a member can't take a `Multicast` now."""

    NOT_MASTER = "not master"
    # The master is handing over: it takes no op until it knows the next view.
    DRAINING = "draining"
    # The master hears too few members: another one may have followed it.
    OUT_OF_CONTACT = "out of contact with the ring"
    # As many bytes as allowed are not yet held by every member.
    FULL = "full"


class ProposalOutcome(Enum):
    """How a compare-and-set of the view ended."""

    WON = "won"
    LOST = "lost"
    # The answer was lost, or the registry could not be reached: it may still take effect.
    UNKNOWN = "unknown"


@value
class ProposalEnded:
    """The answer to `Propose`."""

    view: View
    outcome: ProposalOutcome


@value
class Tick:
    """The time of `next_deadline()` has come."""


Event = (
    ViewLearned
    | LeasesLearned
    | NodesKnown
    | LinkUp
    | LinkDown
    | PeerStalled
    | Received
    | Multicast
    | Persisted
    | CaughtUp
    | MembershipWanted
    | PromotionAsked
    | LossAccepted
    | RemovalAsked
    | MinInsyncAsked
    | ProposalEnded
    | Tick
)

# --- effects ---


class Role(Enum):
    """A member's part in the newest view that it knows."""

    MASTER = "master"
    # Synchronised: it holds every confirmed op.
    MIRROR = "mirror"
    # In the view, but not synchronised: it still fetches the ops from before it joined.
    JOINER = "joiner"
    # Not in the view: it serves nobody.
    OUTSIDE = "outside"


@value
class Send:
    """Pass this frame to a node. If no link is up it is dropped: after `LinkUp` the core shakes
    hands again, and sends the ops that are missing."""

    node: str
    frame: Frame


@value
class Deliver:
    """Apply this op, and begin to write it to disk."""

    number: int
    epoch: int
    payload: bytes


@value
class Watermarks:
    """To the master's application: the ops up to these numbers are received by (on the disk of)
    every synchronised member, and there are at least `min_insync` of these."""

    received: int
    persisted: int


@value
class RoleChanged:
    """Entered `view`. An application whose member is OUTSIDE now answers every pending publish
    with "unknown": the next master may or may not have it."""

    role: Role
    view: View


@value
class ContactChanged:
    """To the master's application. Without contact it serves nobody: another member may be master.
    With contact again it is still the master. A new view begins with contact."""

    has_contact: bool


@value
class StartCatchUp:
    """This member has joined: ops after `number` will be delivered; fetch those before."""

    number: int


@value
class Propose:
    """Compare-and-set the registry's view from `current_epoch` to `view` (0: from nothing)."""

    current_epoch: int
    view: View


@value
class RefreshView:
    """Read the view from the registry, linearizably."""


class PromotionOutcome(Enum):
    """How a `PromotionAsked` ended. The values are for error messages."""

    DONE = "done"
    # Refused; nothing has been done.
    NOT_MASTER = "not master"
    ALREADY_MASTER = "already master"
    NOT_A_MEMBER = "not a member"
    NOT_SYNCHRONISED = "not synchronised"
    ANOTHER_UNDER_WAY = "another promotion is under way"
    # Begun, and called off; the ring is as the registry says.
    NOT_DRAINED = "the ring did not drain in time"
    RING_CHANGED = "the ring has changed meanwhile"
    RING_DELETED = "the ring is deleted"


@value
class PromotionEnded:
    """The answer to `PromotionAsked`. Each of these gets exactly one."""

    outcome: PromotionOutcome


class LossOutcome(Enum):
    """How a `LossAccepted` ended. The values are for error messages."""

    DONE = "done"
    # Refused; nothing has been done.
    IN_RING = "it is a synchronised member of the ring"
    NO_VIEW = "it knows no view of the ring yet"
    BUSY = "a change of the view is under way"
    MEMBERS_LIVE = "a synchronised member of the ring lives, or holds its lease yet"
    NOT_NEEDED = "the ring begins again by itself, without a loss"
    LONGER_LOG = "another candidate that answers has a longer whole log"
    # Proposed; the ring is as the registry says.
    RING_CHANGED = "the ring has changed meanwhile"
    UNKNOWN = "the registry did not answer: it may still take effect"
    RING_DELETED = "the ring is deleted"


@value
class LossEnded:
    """The answer to `LossAccepted`. Each of these gets exactly one."""

    outcome: LossOutcome


@value
class RingDeleted:
    """The ring is no more. A member's last effect."""


# All but those of a trip.
SeldomEffect = (
    ContactChanged
    | RoleChanged
    | StartCatchUp
    | Propose
    | RefreshView
    | PromotionEnded
    | LossEnded
    | RingDeleted
)
Effect = Send | Deliver | Watermarks | SeldomEffect
