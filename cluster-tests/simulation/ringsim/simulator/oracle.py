"""The rules that must hold at every moment, checked with a view of all machines at once.

* A confirmed op is in the log of every later master, and (persistent ops) on the disk of every
  synchronised member of the newest view.
* An epoch and a number name one op, and one op before it: logs agree.
* At most one member confirms in an epoch, and only the master of a view.
* No member has dropped an op that a member of its view has yet to receive.

Urgent ops are confirmed when received. They may be lost with the memory of all synchronised
members, that is, by a view that begins the ring again from disks.
"""

from __future__ import annotations

from ringmq_gm.core.events import Role, Watermarks
from ringmq_gm.core.views import MemberId, View
from ringsim.simulator.application import BrokenInvariantError, LogEntry
from ringsim.simulator.machines import Machine, Machines


class Oracle:
    """Told of every step, delivery, confirm and view; raises `BrokenInvariantError`."""

    def __init__(self, machines: Machines, first: View) -> None:
        self._machines = machines
        self._view = first
        # The confirmed ops by number, as persisted and as received; and the epoch of the first
        # confirm of each.
        self._confirmed_in: dict[int, int] = {}
        self.persisted: dict[int, LogEntry] = {}
        self.received: dict[int, LogEntry] = {}
        self._confirmers: dict[int, MemberId] = {}
        # The newest view that was begun from disks.
        self._restart_epoch = 0
        # (epoch, number) -> the payload, and the epoch of the op before.
        self._ops: dict[tuple[int, int], tuple[bytes, int]] = {}
        # (epoch of the view, number) -> the op that was delivered there.
        self._in_view: dict[tuple[int, int], LogEntry] = {}

    def delivered(self, machine: Machine, number: int, epoch: int, payload: bytes) -> None:
        assert machine.member is not None
        assert machine.member.view is not None
        log = machine.app.log
        if not machine.app.catching_up:
            before = log[number - 2][0] if number > 1 else 0
            known = self._ops.setdefault((epoch, number), (payload, before))
            _require(known == (payload, before), f"op {number} of epoch {epoch}: two of them")
        entry = self._in_view.setdefault((machine.member.view.epoch, number), (epoch, payload))
        _require(entry == (epoch, payload), f"op {number} differs within one view: {entry}")

    def confirmed(self, machine: Machine, marks: Watermarks) -> None:
        member = machine.member
        assert member is not None
        view = member.view
        _require(member.role is Role.MASTER and view is not None, f"{member.me} confirms")
        assert view is not None
        _require(view.master == member.me, f"{member.me} confirms in {view}")
        confirmer = self._confirmers.setdefault(view.epoch, member.me)
        _require(confirmer == member.me, f"{confirmer} and {member.me} confirm in {view.epoch}")
        _require(view.has_quorum, f"{member.me} confirms without quorum")
        log = machine.app.log
        for number in range(1, marks.persisted + 1):
            if number not in self.persisted:
                self.persisted[number] = log[number - 1]
                self._confirmed_in.setdefault(number, view.epoch)
                self._check_disks(number)
            _require(self.persisted[number] == log[number - 1], f"op {number} confirmed twice")
        # A master that doesn't know yet that the ring has been begun again promises received
        # ops that are gone. Persisted ones it must not promise so.
        received = marks.received if view.epoch >= self._restart_epoch else 0
        for number in range(1, received + 1):
            entry = log[number - 1]
            self._confirmed_in.setdefault(number, view.epoch)
            _require(
                self.received.setdefault(number, entry) == entry, f"op {number} confirmed twice"
            )

    def view_set(self, old: View, new: View) -> None:
        """The registry's view has changed."""
        self._view = new
        lives = {member.id for member in old.members}
        if any(member_id not in lives for member_id in new.synced):
            self._restart_epoch = new.epoch
            self._forget_lost(self._machines[new.master.node].disk.log)
        for number in self.persisted:
            self._check_disks(number)

    def _forget_lost(self, log: list[LogEntry]) -> None:
        """The ring begins again with this log: received ops that aren't in it are lost."""
        for number, entry in list(self.received.items()):
            if number > len(log) or log[number - 1] != entry:
                del self.received[number]
                self._confirmed_in.pop(number)

    def became_master(self, machine: Machine, view: View) -> None:
        """May come long after `view` was the newest."""
        log = machine.app.log
        for confirmed in (self.persisted, self.received):
            for number, entry in confirmed.items():
                _require(
                    (number <= len(log) and log[number - 1] == entry)
                    or self._confirmed_in[number] > view.epoch,
                    f"{machine.name} is master without the confirmed op {number}",
                )

    def catch_up_started(self, machine: Machine) -> None:
        me = machine.me
        _require(me not in self._view.synced, f"{me} is synchronised, and cuts its log")

    def stepped(self, machine: Machine) -> None:
        """After each step of a member."""
        mine = machine.member
        assert mine is not None
        mine.check()
        if mine.view is None or mine.role is Role.OUTSIDE or mine.awaits_start:
            return
        stable, last = mine.ops.stable, mine.ops.last
        for other_machine in self._machines.values():
            other = other_machine.member
            if other is None or other is mine or other.role is Role.OUTSIDE or other.awaits_start:
                continue
            if other.view is None or other.view.epoch != mine.view.epoch:
                continue
            _require(stable <= other.ops.last, f"{mine.me} dropped an op that {other.me} lacks")
            _require(other.ops.stable <= last, f"{other.me} dropped an op that {mine.me} lacks")

    def _check_disks(self, number: int) -> None:
        entry = self.persisted[number]
        for member_id in self._view.synced:
            disk = self._machines[member_id.node].disk
            _require(disk.holds(number, entry), f"{member_id} has not op {number} on disk")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenInvariantError(message)
