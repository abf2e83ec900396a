"""The rules that must hold in every state, with an account of the events that broke one."""

from __future__ import annotations

from ringmq_gm.core.events import Role, Watermarks
from ringmq_gm.core.views import View
from ringsim.explorer.states import Case, ExploredError, Path, State, Tables


class Rules:
    """Each raises `ExploredError` if it doesn't hold. `path` are the events so far."""

    def __init__(self, case: Case, tables: Tables, index_of: dict[str, int]) -> None:
        self._case = case
        self._tables = tables
        self._index = index_of
        # By the node's number, the watermark and the ops confirmed before: those after.
        self._confirms: dict[tuple[int, int, int], int] = {}
        # Where `check_stable` has looked already: it depends on nothing else.
        self._stable: set[tuple[int, tuple[int, ...]]] = set()

    def require(self, holds: bool, path: Path | None, message: str) -> None:
        if holds:
            return
        events: list[str] = []
        while path is not None:
            name, path = path
            events.append(name)
        raise ExploredError(f"{message}\nin {self._case}\nafter: {', '.join(reversed(events))}")

    def check_stable(self, state: State, index: int, path: Path | None) -> None:
        """Nobody has dropped an op that a member of the same epoch has yet to receive.

        There are too few ops here for a joiner to be left behind."""
        place = (index, state.nodes)
        if place in self._stable:
            return
        self._stable.add(place)
        mine = self._tables.facts[state.nodes[index]]
        if mine.role is Role.OUTSIDE:
            return
        for number in state.nodes:
            other = self._tables.facts[number]
            if other.up and other.epoch == mine.epoch and other.role is not Role.OUTSIDE:
                fine = mine.stable <= other.last and other.stable <= mine.last
                self.require(fine, path, "dropped an op that another member lacks")

    def check_confirm(
        self, state: State, index: int, marks: Watermarks, path: Path | None
    ) -> State:
        """The state with the ops that the node at `index` has just confirmed."""
        upto = marks.received if self._case.urgent else marks.persisted
        place = (state.nodes[index], upto, state.confirmed)
        number = self._confirms.get(place)
        if number is None:
            number = self._confirms[place] = self._confirmed_after(*place, path)
        if number != state.confirmed:
            state = state._replace(confirmed=number)
        self.check_disks(state, path)
        return state

    def _confirmed_after(self, number: int, upto: int, before: int, path: Path | None) -> int:
        node = self._tables.nodes[number]
        member = node.member
        assert member is not None
        view = member.view
        assert view is not None
        self.require(view.master == node.me, path, f"{node.me} confirms, and isn't master")
        self.require(view.has_quorum, path, f"{node.me} has no quorum")
        confirmed = dict(self._tables.confirmed[before])
        for op in range(1, upto + 1):
            entry = node.log[op - 1]
            known = confirmed.setdefault(op, (entry, view.epoch))
            self.require(known[0] == entry, path, f"op {op} confirmed twice")
        return self._tables.confirmed_number(confirmed)

    def check_disks(self, state: State, path: Path | None) -> None:
        """Every synchronised member, and every eligible life, has every confirmed op on disk;
        urgent ones need not be."""
        if self._case.urgent:
            return
        for member_id in self._tables.views[state.view].candidates:
            node = self._tables.nodes[state.nodes[self._index[member_id.node]]]
            if not node.whole and node.me != member_id:
                continue  # This life has died since, and its disk is lost.
            for number, (entry, _) in self._tables.confirmed[state.confirmed].items():
                fine = node.holds(number, entry)
                self.require(fine, path, f"{member_id} has not op {number} on disk")

    def view_set(self, state: State, view: View, path: Path | None) -> State:
        """The state after the registry has taken this view."""
        state = state._replace(view=self._tables.view_number(view))
        self.check_disks(state, path)
        return state

    def check_master(self, state: State, index: int, view: View, path: Path | None) -> None:
        """The new master of `view` has every op that was confirmed in that view or before it."""
        node = self._tables.nodes[state.nodes[index]]
        for number, (entry, epoch) in self._tables.confirmed[state.confirmed].items():
            fine = epoch > view.epoch or (number <= len(node.log) and node.log[number - 1] == entry)
            self.require(fine, path, f"{node.me} is master without op {number}")

    def check_end(self, state: State, path: Path | None) -> None:
        """No event but a fault is left: the ring must be whole, and all its ops confirmed."""
        nodes = [self._tables.nodes[n] for n in state.nodes if self._tables.facts[n].up]
        view = self._tables.views[state.view]
        if len(nodes) == len(state.nodes) and not view.has_quorum:
            whole = {node.me.node for node in nodes if node.whole}
            lost = whole.isdisjoint(member_id.node for member_id in view.candidates)
            self.require(lost, path, f"it ends with {view}, and all are up")
        if not nodes or not view.has_quorum:
            return
        # By now every member has had the time to learn of each death.
        up = {node.me for node in nodes}
        self.require(set(view.ids) <= up, path, f"it ends with {view}, up are {sorted(up)}")
        self.require(not state.ops, path, "it ends, and no member takes ops")
        logs = {node.log for node in nodes}
        self.require(len(logs) == 1, path, f"it ends with different logs: {logs}")
        for node in nodes:
            assert node.member is not None
            self.require(
                len(node.member.ops.cache) == 0,
                path,
                f"{node.me} ends with ops that are not stable",
            )
        count = len(self._tables.confirmed[state.confirmed])
        self.require(count == len(nodes[0].log), path, f"it ends with {count} ops confirmed")
