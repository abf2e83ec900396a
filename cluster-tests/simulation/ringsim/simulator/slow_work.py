"""The work of an application that takes time: group commit, and catching up.

Both end in an event for the member (`Persisted`, `CaughtUp`), unless the process has died or a
later catch-up has begun meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ringmq_gm.core.events import CaughtUp, Persisted
from ringmq_gm.core.member import RingMember
from ringsim.simulator.application import LogApplication, LogEntry
from ringsim.simulator.clock import Clock
from ringsim.simulator.machines import Give, Machine, Machines
from ringsim.simulator.network import Network
from ringsim.simulator.scenarios import Latencies


class SlowWork:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        machines: Machines,
        network: Network,
        give: Give,
        latencies: Latencies,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._machines = machines
        self._network = network
        self._give = give
        self._latencies = latencies

    # --- group commit ---

    def write(self, machine: Machine) -> None:
        """One sync at a time, of all ops that are there when it begins."""
        app = machine.app
        if app.writing or app.catching_up:
            return
        app.writing = True
        delay = self._latencies.sync_s * self._rng.random() + machine.sync_delay_s
        self._clock.after(delay, self._written, machine, app, app.log_count, len(app.log))

    def _written(self, machine: Machine, app: LogApplication, log_count: int, count: int) -> None:
        if machine.app is not app or machine.member is None or app.log_count != log_count:
            return
        app.writing = False
        # An operator's decision may have had more of it written already.
        app.sync(max(count, len(app.disk.log)))
        self._give(machine.name, Persisted(count))
        if machine.app is app and count < len(app.log):
            self.write(machine)

    # --- catching up ---

    def catch_up(self, machine: Machine, number: int) -> None:
        """The member has joined: the ring sends it the ops after `number`."""
        count = machine.app.start_catch_up(number)
        delay = self._latencies.fetch_s * self._rng.random()
        self._clock.after(delay, self._fetch, machine, machine.member, count)

    def _fetch(self, machine: Machine, member: RingMember, catch_up_count: int) -> None:
        """Asks the master, or the upstream neighbour, for its state. Only a member in the same
        epoch answers, and only if it has a state itself."""
        app = machine.app
        if machine.member is not member or app.catch_up_count != catch_up_count:
            return
        state = None if machine.paused else self._state_of_source(machine, member)
        if state is None:
            self._again(self._fetch, machine, member, catch_up_count)
            return
        assert member.view is not None
        epoch = member.view.epoch
        delay = self._latencies.fetch_s * self._rng.random() + machine.sync_delay_s
        self._clock.after(delay, self._fetched, machine, member, catch_up_count, state, epoch)

    def _again(self, call: Callable[..., None], *args: object) -> None:
        self._clock.after(self._latencies.fetch_s, call, *args)

    def _state_of_source(self, machine: Machine, member: RingMember) -> list[LogEntry] | None:
        assert member.view is not None
        index = member.view.index_of(member.me)
        if not index:
            return None
        source_id = member.view.ids[0 if self._latencies.fetch_from_master else index - 1]
        source = self._machines[source_id.node]
        if source.member is None or not source.is_running or source.app.catching_up:
            return None
        if source.me != source_id:
            return None  # Another life of that node: not a member of this view.
        if source.member.view != member.view:
            return None
        if not self._network.can_reach(machine.name, source.name):
            return None
        return list(source.app.log)

    def _fetched(
        self,
        machine: Machine,
        member: RingMember,
        catch_up_count: int,
        state: list[LogEntry],
        epoch: int,
    ) -> None:
        app = machine.app
        if machine.member is not member or app.catch_up_count != catch_up_count:
            return
        if machine.paused or member.loss_is_open:
            self._again(self._fetched, machine, member, catch_up_count, state, epoch)
            return
        if not app.has_delivered(state):
            # The source may be ahead of this member, which may become master without these ops:
            # the state is of use once its last op has come here too. In another view that op may
            # never come.
            assert member.view is not None
            if member.view.epoch == epoch:
                self._again(self._fetched, machine, member, catch_up_count, state, epoch)
            else:
                self._fetch(machine, member, catch_up_count)
            return
        app.take_state(state)
        app.sync(len(app.log))
        self._give(machine.name, CaughtUp(len(app.log)))
