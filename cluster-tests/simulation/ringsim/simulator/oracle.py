"""What must hold, whatever happens: it sees all nodes at once, as nobody in the ring can.

* What is confirmed is in the log of every later master, and (persistent ops) on
  the disk of every synchronised member of the newest view.
* An epoch and a number name one op, and one op before it: logs agree.
* At most one member confirms in an epoch, and only the master of a view.
* Nobody has dropped what a member of its view has yet to receive.

Urgent ops are confirmed when received; they may be lost with the memory of all
synchronised members, that is, by a view that begins the ring again from disks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringmq_gm.core.events import Role, Watermarks
from ringmq_gm.core.views import MemberId, View
from ringsim.simulator.application import BrokenInvariantError, Entry

if TYPE_CHECKING:
    from ringsim.simulator.world import Node, World


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        # By number: what has been confirmed as persisted, and as received; and in which
        # epoch that was first.
        self._confirmed_in: dict[int, int] = {}
        self.persisted: dict[int, Entry] = {}
        self.received: dict[int, Entry] = {}
        self._confirmers: dict[int, MemberId] = {}
        # The newest view that was begun from disks.
        self._restart_epoch = 0
        # (epoch, number) -> the payload, and the epoch of the op before.
        self._ops: dict[tuple[int, int], tuple[bytes, int]] = {}
        # (epoch of the view, number) -> the op that was delivered there.
        self._in_view: dict[tuple[int, int], Entry] = {}

    def delivered(self, node: Node, number: int, epoch: int, payload: bytes) -> None:
        assert node.member is not None
        assert node.member.view is not None
        log = node.app.log
        if not node.app.catching_up:
            before = log[number - 2][0] if number > 1 else 0
            known = self._ops.setdefault((epoch, number), (payload, before))
            _require(known == (payload, before), f"op {number} of epoch {epoch}: two of them")
        entry = self._in_view.setdefault((node.member.view.epoch, number), (epoch, payload))
        _require(entry == (epoch, payload), f"op {number} differs within one view: {entry}")

    def confirmed(self, node: Node, marks: Watermarks) -> None:
        member = node.member
        assert member is not None
        view = member.view
        _require(member.role is Role.MASTER and view is not None, f"{member.me} confirms")
        assert view is not None
        _require(view.master == member.me, f"{member.me} confirms in {view}")
        confirmer = self._confirmers.setdefault(view.epoch, member.me)
        _require(confirmer == member.me, f"{confirmer} and {member.me} confirm in {view.epoch}")
        _require(len(view.synced) >= view.min_insync, f"{member.me} confirms without quorum")
        for number in range(1, marks.persisted + 1):
            if number not in self.persisted:
                self.persisted[number] = node.app.log[number - 1]
                self._confirmed_in.setdefault(number, view.epoch)
                self._check_disks(number)
            _require(
                self.persisted[number] == node.app.log[number - 1], f"op {number} confirmed twice"
            )
        # A master that doesn't know yet that the ring has been begun again promises what
        # is gone; of persisted ops that must not be.
        received = marks.received if view.epoch >= self._restart_epoch else 0
        for number in range(1, received + 1):
            entry = node.app.log[number - 1]
            self._confirmed_in.setdefault(number, view.epoch)
            _require(
                self.received.setdefault(number, entry) == entry, f"op {number} confirmed twice"
            )

    def view_set(self, old: View | None, new: View) -> None:
        """The registry's view has changed."""
        lives = {member.id for member in old.members} if old else set()
        if any(member_id not in lives for member_id in new.synced):
            self._restart_epoch = new.epoch
            log = self._world.nodes[new.master.node].disk.log
            for number in [n for n in self.received if n > len(log)]:
                del self.received[number]
                self._confirmed_in.pop(number)
            for number, entry in list(self.received.items()):
                if log[number - 1] != entry:
                    del self.received[number]
                    self._confirmed_in.pop(number)
        for number in self.persisted:
            self._check_disks(number)

    def became_master(self, node: Node, view: View) -> None:
        """Which may be long after `view` was the newest."""
        log = node.app.log
        for confirmed in (self.persisted, self.received):
            for number, entry in confirmed.items():
                _require(
                    (number <= len(log) and log[number - 1] == entry)
                    or self._confirmed_in[number] > view.epoch,
                    f"{node.name} is master without the confirmed op {number}",
                )

    def catch_up_started(self, node: Node) -> None:
        view = self._world.registry.view
        me = node.member
        assert me is not None
        _require(me.me not in view.synced, f"{me.me} is synchronised, and cuts its log")

    def stepped(self, node: Node) -> None:
        """After each step of a member."""
        mine = node.member
        assert mine is not None
        mine.check()
        if mine.view is None or mine.role is Role.OUTSIDE or mine.awaits_start:
            return
        stable, last = mine.ops.stable, mine.ops.last
        for other_node in self._world.nodes.values():
            other = other_node.member
            if other is None or other is mine or other.role is Role.OUTSIDE or other.awaits_start:
                continue
            if other.view is None or other.view.epoch != mine.view.epoch:
                continue
            _require(stable <= other.ops.last, f"{mine.me} dropped what {other.me} lacks")
            _require(other.ops.stable <= last, f"{other.me} dropped what {mine.me} lacks")

    def _check_disks(self, number: int) -> None:
        entry = self.persisted[number]
        for member_id in self._world.registry.view.synced:
            disk = self._world.nodes[member_id.node].disk
            _require(disk.holds(number, entry), f"{member_id} has not op {number} on disk")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenInvariantError(message)
