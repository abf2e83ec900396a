"""The rules that must hold at every moment, checked with a view of all machines at once.

* A confirmed op is in the log of every later master, and (persistent ops) on the disk of every
  synchronised member of the newest view.
* The same holds for the disks of eligible lives, as long as their logs are whole.
* An epoch and a number name one op, and one op before it: logs agree.
* An op that a new master takes for confirmed (`HeldOps.safe`) is.
* At most one member confirms in an epoch, and only the master of a view.
* No member has dropped an op that a synchronised member of its view has yet to receive.

Disks may be lost, or be replaced by older copies. As long as that is noticed nothing confirmed is
lost: a ring is begun again only from a whole log, or not at all. One node in a run may have its log
cut without anybody noticing. With `min_insync` of 2 or more nothing is lost even then, as long as
one more candidate has its log (`_may_have_lost`).

A loss that an operator has accepted is one of what the log lacks that he has named, and no more:
confirmed before, or by a master that he has overruled, until that one hears of it (`overruled`).

Urgent ops are confirmed when received. They may be lost with the memory of all synchronised
members, that is, by a view that begins the ring again from disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ringmq_gm.core.events import Role, Watermarks
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId, View
from ringsim.simulator.application import BrokenInvariantError, LogEntry, VirtualDisk
from ringsim.simulator.machines import Machine, Machines
from ringsim.simulator.overruled import Overruled


class Oracle:
    """Told of every step, delivery, confirm and view; raises `BrokenInvariantError`."""

    def __init__(
        self, machines: Machines, first: View, *, reached: Counter[str] | None = None
    ) -> None:
        self._machines = machines
        self._overruled = Overruled(machines, Counter() if reached is None else reached)
        self._view = first
        # The confirmed ops by number, as persisted and as received; and the epoch of the first
        # confirm of each.
        self._confirmed_in: dict[int, int] = {}
        self.persisted: dict[int, LogEntry] = {}
        # How many ops have been confirmed as persisted.
        self.confirms = 0
        self.received: dict[int, LogEntry] = {}
        self._confirmers: dict[int, MemberId] = {}
        self._compared = _Compared()
        # By machine: what the rules of `stepped` looked at when they were checked last.
        self._checked: dict[str, tuple[object, ...]] = {}
        # Told of each op that is confirmed as persisted, once.
        self.on_confirmed: Callable[[LogEntry], None] = lambda entry: None
        # How many confirmed ops have been lost, all of them as they may be.
        self.lost = 0
        # Ops that a log had with which an operator has let the ring go on, and whose bodies it had
        # not fetched: those messages are damaged from then on.
        self.without_bodies: dict[int, LogEntry] = {}
        # How many of them had not been confirmed by then.
        self.unconfirmed_without_bodies = 0
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
            if known != (payload, before):
                raise BrokenInvariantError(f"op {number} of epoch {epoch}: two of them")
        entry = self._in_view.setdefault((machine.member.view.epoch, number), (epoch, payload))
        if entry != (epoch, payload):
            raise BrokenInvariantError(f"op {number} differs within one view: {entry}")

    def confirmed(self, machine: Machine, marks: Watermarks) -> None:
        member = machine.member
        assert member is not None
        view = member.view
        if member.role is not Role.MASTER or view is None or view.master != member.me:
            raise BrokenInvariantError(f"{member.me} confirms in {view}")
        confirmer = self._confirmers.setdefault(view.epoch, member.me)
        if confirmer != member.me:
            raise BrokenInvariantError(f"{confirmer} and {member.me} confirm in {view.epoch}")
        if not view.has_quorum:
            raise BrokenInvariantError(f"{member.me} confirms without quorum")
        log = machine.app.log
        compared = self._compared
        if compared.log is not log:
            # A log is only appended to, until another one takes its place.
            compared.log, compared.persisted, compared.received = log, 0, 0
        for number in range(compared.persisted + 1, marks.persisted + 1):
            entry = log[number - 1]
            if self._overruled.excuses(member.me, view, number, entry):
                self.lost += self._overruled.confirmed(view, number, entry)
                continue
            if number not in self.persisted:
                self.persisted[number] = entry
                self.confirms += 1
                self._confirmed_in.setdefault(number, view.epoch)
                self._check_disks(number)
                self.on_confirmed(entry)
            if self.persisted[number] != entry:
                raise BrokenInvariantError(f"op {number} confirmed twice")
        compared.persisted = max(compared.persisted, marks.persisted)
        # A master that doesn't know yet that the ring has been begun again promises received
        # ops that are gone. Persisted ones it must not promise so.
        received = marks.received if view.epoch >= self._restart_epoch else 0
        for number in range(compared.received + 1, received + 1):
            entry = log[number - 1]
            self._confirmed_in.setdefault(number, view.epoch)
            if self.received.setdefault(number, entry) != entry:
                raise BrokenInvariantError(f"op {number} confirmed twice")
            compared.received = number

    def view_set(self, old: View, new: View) -> None:
        """The registry's view has changed."""
        self._view = new
        lives = {member.id for member in old.members}
        loss = new.own_loss
        if loss is not None or any(member_id not in lives for member_id in new.synced):
            self._restart_epoch = new.epoch
            log = self._log_of(new.master)
            self._forget_lost(self.received, log)
            if loss is not None:
                end = LogEnd(log[-1][0], len(log)) if log else LogEnd()
                recorded = LogEnd(loss.log_epoch, loss.log_number)
                _require(recorded == end, f"the record says {recorded}, the log ends at {end}")
                # The operator takes it for whole, though its machine may not have heard yet.
                self._machines[new.master.node].disk.whole = True
                self._overruled.decided(loss, log)
            if loss is not None or self._may_have_lost(old):
                lost = self._forget_lost(self.persisted, log)
                for number, entry in lost if loss is not None else ():
                    self._overruled.lost(number, entry)
            if loss is not None:
                self._forget_bodies(self._machines[new.master.node].disk)
            for member_id in new.synced:
                machine = self._machines[member_id.node]
                # A life that has ended since it told of its log may have been cut after that.
                if machine.me == member_id:
                    machine.disk.is_cut_unseen = False
        for number in self.persisted:
            self._check_disks(number)

    def _log_of(self, member_id: MemberId) -> list[LogEntry]:
        """In memory if this life runs; it may have been put out of the ring, and never died.

        A log that isn't whole stays on the disk: a life that began with one has none in memory.
        """
        machine = self._machines[member_id.node]
        is_running = machine.member is not None and machine.me == member_id
        return machine.app.log if is_running and machine.disk.whole else machine.disk.log

    def _may_have_lost(self, old: View) -> bool:
        """Whether the node whose log was cut unseen was the last candidate with a whole log."""
        disks = [self._machines[member_id.node].disk for member_id in old.candidates]
        return any(d.is_cut_unseen for d in disks) and not any(d.is_intact for d in disks)

    def _forget_lost(
        self, confirmed: dict[int, LogEntry], log: list[LogEntry]
    ) -> list[tuple[int, LogEntry]]:
        """The ring begins again with this log: ops that aren't in it are lost. Returns these."""
        self._compared.log = None
        lost = [
            (number, entry)
            for number, entry in confirmed.items()
            if number > len(log) or log[number - 1] != entry
        ]
        for number, _ in lost:
            del confirmed[number]
            self._confirmed_in.pop(number, None)
        self.lost += len(lost)
        return lost

    def _forget_bodies(self, disk: VirtualDisk) -> None:
        """The ring goes on with this one, which may lack bodies of ops that it has.

        Confirmed before or not: the members agree on the op, and its publisher will be told so.
        """
        for number, entry in enumerate(disk.log, start=1):
            if not disk.holds(number, entry):
                self.without_bodies[number] = entry
                self.unconfirmed_without_bodies += number not in self.persisted
                self.lost += 1

    def became_master(self, machine: Machine, view: View) -> None:
        """May come long after `view` was the newest."""
        log = machine.app.log
        for confirmed in (self.persisted, self.received):
            for number, entry in confirmed.items():
                has_it = number <= len(log) and log[number - 1] == entry
                if not has_it and self._confirmed_in[number] <= view.epoch:
                    raise BrokenInvariantError(
                        f"{machine.name} is master without the confirmed op {number}"
                    )
        assert machine.member is not None
        # A master of before the ring was begun again may know of ops that are gone by now.
        if view.epoch >= self._restart_epoch:
            ops = machine.member.ops
            # Those that it confirms itself, in this very step, come to `confirmed`.
            for number in range(1, 0 if ops.safe == ops.confirmed[1] else ops.safe + 1):
                _require(
                    self.persisted.get(number) == log[number - 1],
                    f"{machine.name} takes op {number} for confirmed",
                )

    def catch_up_started(self, machine: Machine) -> None:
        me = machine.me
        _require(me not in self._view.synced, f"{me} is synchronised, and cuts its log")
        assert machine.member is not None
        assert machine.member.view is not None
        self._overruled.cut(machine.member.view, self._log_of(me))

    def stepped(self, machine: Machine) -> None:
        """After each step of a member.

        All that is compared here changes only by steps of the members, so a step that has changed
        nothing of it needs no second look.
        """
        mine = machine.member
        assert mine is not None
        ops, view, phase = mine.ops, mine.view, mine._phase
        cache = ops.cache
        checked = (
            phase,
            view,
            mine.awaits_start,
            ops.last,
            cache.stable,
            cache.held,
            ops.confirmed,
            ops.safe,
            ops.complete,
        )
        before = self._checked.get(machine.name)
        if before == checked and before[0] is phase:
            return
        self._checked[machine.name] = checked
        mine.check()
        if view is None or mine.role is Role.OUTSIDE or mine.awaits_start:
            return
        for other_machine in self._machines.values():
            other = other_machine.member
            if other is None or other is mine or other.view is None:
                continue
            if other.view.epoch == view.epoch and not other.awaits_start:
                _check_copies(mine, other)
                _check_copies(other, mine)

    def _check_disks(self, number: int) -> None:
        entry = self.persisted[number]
        for member_id in self._view.candidates:
            machine = self._machines[member_id.node]
            if not machine.disk.is_intact and machine.me != member_id:
                continue  # This life has died since, and its disk is lost.
            if number in self.without_bodies and machine.disk.has_op(number, entry):
                continue
            if not machine.disk.holds(number, entry):
                raise BrokenInvariantError(f"{member_id} has not op {number} on disk")

    @property
    def confirmed_last(self) -> int:
        """The last op that was confirmed as being on disk."""
        return max(self.persisted, default=0)


class _Compared:
    """Up to where the log of the present master has been compared with what is confirmed."""

    __slots__ = ("log", "persisted", "received")

    def __init__(self) -> None:
        self.log: list[LogEntry] | None = None
        self.persisted = self.received = 0


def _check_copies(one: RingMember, other: RingMember) -> None:
    """Members of one epoch: `one` has dropped no op that `other` has yet to receive."""
    # A joiner may be left behind: then it fetches that op. What it has when it says that it is
    # complete is compared at the end.
    if other.role in (Role.JOINER, Role.OUTSIDE) or one.role is Role.OUTSIDE:
        return
    if one.ops.cache.stable > other.ops.last:
        raise BrokenInvariantError(f"{one.me} dropped an op that {other.me} lacks")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenInvariantError(message)
