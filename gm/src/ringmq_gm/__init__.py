"""Guaranteed multicast among the members of a ring. See gm/README.md."""

from ringmq_gm.application import Application
from ringmq_gm.core.events import LossAccepted, LossOutcome, PromotionOutcome, Refusal, Role
from ringmq_gm.core.frames import Mark
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import (
    AcceptedLoss,
    BegunAgain,
    Member,
    MemberId,
    View,
    ViewError,
    first_view,
)
from ringmq_gm.errors import (
    DrainingError,
    FullError,
    GroupError,
    LossRefusedError,
    NotMasterError,
    OutOfContactError,
    PromotionError,
    RefusedError,
    RingClosedError,
    RingFailedError,
    SupersededError,
    TooLargeError,
)
from ringmq_gm.group import Group
from ringmq_gm.nodes import NodeRecord, next_incarnation
from ringmq_gm.options import GroupOptions
from ringmq_gm.registry_views import ring_key
from ringmq_gm.rings import Ring

__all__ = [
    "AcceptedLoss",
    "Application",
    "BegunAgain",
    "DrainingError",
    "FullError",
    "Group",
    "GroupError",
    "GroupOptions",
    "LogEnd",
    "LossAccepted",
    "LossOutcome",
    "LossRefusedError",
    "Mark",
    "Member",
    "MemberId",
    "NodeRecord",
    "NotMasterError",
    "OutOfContactError",
    "PromotionError",
    "PromotionOutcome",
    "Refusal",
    "RefusedError",
    "Ring",
    "RingClosedError",
    "RingFailedError",
    "Role",
    "SupersededError",
    "Timing",
    "TooLargeError",
    "View",
    "ViewError",
    "first_view",
    "next_incarnation",
    "ring_key",
]
