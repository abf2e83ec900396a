"""The errors of a group, by the remedy of the caller.

GroupError
+-- RefusedError          a multicast can't be taken now; nothing was sent
|   +-- NotMasterError    ask the master (`Ring.view.master`), or `Ring.submit`
|   +-- OutOfContactError another member may be master by now: ask the registry's view
|   +-- DrainingError     a hand-over is under way: ask the next master in a moment
|   `-- FullError         wait (`Ring.wait_writable`), then try again
+-- TooLargeError         no frame may be so large (`GroupOptions.payload_bytes_max`)
+-- PromotionError        the hand-over was refused or called off; `outcome` says why
+-- LossRefusedError      the ring was not begun again with a loss; `outcome` says why
+-- RingClosedError       the ring was closed, deleted, or its group has ended
|   `-- RingFailedError   the ring's core or its application has raised: a bug, report it
`-- SupersededError       a later life of this node has registered: stop
"""

from __future__ import annotations

from ringmq_gm.core.events import LossOutcome, PromotionOutcome
from ringmq_gm.core.views import MemberId


class GroupError(Exception):
    """The root of all errors of a group."""


class RefusedError(GroupError):
    """This member can't take a multicast now. Nothing was sent."""


class NotMasterError(RefusedError):
    """Only the master numbers ops."""


class OutOfContactError(RefusedError):
    """The master hears too few members to be sure that it is still the master."""


class DrainingError(RefusedError):
    """The master is handing over."""


class FullError(RefusedError):
    """More bytes than allowed are not yet held by every member."""


class TooLargeError(GroupError, ValueError):
    """The payload doesn't fit into a frame that the other members take."""


class PromotionError(GroupError):
    """The hand-over was refused or called off; the ring is as the registry says."""

    def __init__(self, ring: str, target: MemberId, outcome: PromotionOutcome) -> None:
        super().__init__(f"ring {ring!r}: {target} was not made master: {outcome.value}")
        self.outcome = outcome


class LossRefusedError(GroupError):
    """The ring was not begun again from a log that may lack ops, or that isn't known yet."""

    def __init__(self, ring: str, member: MemberId, outcome: LossOutcome) -> None:
        super().__init__(
            f"ring {ring!r}: not begun again from the log of {member}: {outcome.value}"
        )
        self.outcome = outcome


class RingClosedError(GroupError):
    """The ring was closed or deleted, or its group has ended."""


class RingFailedError(RingClosedError):
    """The ring's core or application raised (`__cause__`). The ring has stopped here."""


class SupersededError(GroupError):
    """A later life of this node has registered; this one must stop."""
