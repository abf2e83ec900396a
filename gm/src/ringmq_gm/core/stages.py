"""The stages of a change of the view. `changes` says which follows which."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.views import MemberId


class Purpose(Enum):
    """Why the view should change."""

    DROP = "drop"
    STALLED = "drop members whose disks hang"
    JOIN = "join"
    RESTART = "restart"
    LOSS = "begin with a loss"


@dataclass(frozen=True, slots=True)
class Log:
    """A member's log as the others are told: its end, and whether nothing of it is missing."""

    end: LogEnd
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """No change is under way."""


@dataclass(slots=True)
class Probing:
    """The members of the wanted view have been asked; `replies` by node, until `deadline`."""

    purpose: Purpose
    targets: tuple[str, ...]
    deadline: float
    # It waits for longer than a first probe does.
    is_patient: bool = False
    replies: dict[str, tuple[MemberId, Log]] = field(default_factory=dict)

    @property
    def asks_all(self) -> bool:
        """Whether it asks all candidates for their logs."""
        return self.purpose in (Purpose.RESTART, Purpose.LOSS)

    @property
    def may_wait(self) -> bool:
        """Whether another change, for a member that turns out to be dead, comes first."""
        return self.is_patient or self.purpose is Purpose.STALLED

    def logs(self, me: MemberId, mine: Log) -> dict[MemberId, Log]:
        """Of those who have answered, and of this member."""
        return {me: mine, **dict(self.replies.values())}

    @property
    def is_answered(self) -> bool:
        return len(self.replies) >= len(self.targets)


@dataclass(frozen=True, slots=True)
class Proposing:
    """The registry has been asked; its answer always comes."""


@dataclass(slots=True)
class Waiting:
    """The last try has failed; the next one comes after `deadline`, or with the answers that the
    last one lacked."""

    deadline: float
    lacking: Probing | None = None


Stage = Idle | Probing | Proposing | Waiting

IDLE = Idle()
PROPOSING = Proposing()
