"""The simulated machines: each has a disk, and a process that runs on it or doesn't."""

from __future__ import annotations

from collections.abc import Callable

from ringmq_gm.core.events import Event
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId
from ringsim.simulator.application import LogApplication, VirtualDisk

# Brings an event to the member on the machine of this name, if there is one.
Give = Callable[[str, Event], None]


class Machine:
    """One machine. Its incarnation rises with each start of the process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = VirtualDisk(incarnation=1)
        self.app = LogApplication(self.disk)
        # None while the process is down.
        self.member: RingMember | None = None
        # How many pauses overlap; the events of that time wait in `backlog`.
        self.paused = 0
        self.backlog: list[Event] = []
        self.tick_at: float | None = None
        # The process dies in the next step with more effects than this, after so many of them.
        self.crash_after: int | None = None
        self.down_s = 0.0
        self.sync_delay_s = 0.0

    @property
    def me(self) -> MemberId:
        return MemberId(self.name, self.disk.incarnation)

    @property
    def is_running(self) -> bool:
        return self.member is not None and not self.paused


Machines = dict[str, Machine]
