"""Faults one after the other, the systems in turn, so that a busy machine slows all alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench.failover.load import Load
from bench.failover.systems import FAILOVER, System
from bench.failover.tally import FaultSeen, contents, longest_gap_s
from bench.measure import BenchError

KILL, CUT = "kill", "cut"
FAULTS = (KILL, CUT)
# Confirms come for so long before a fault, and between the return of service and the restart.
CALM_S = 1.0
SERVED_S_MAX = 60.0
SETTLE_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How the publishers work, and how long a cut lasts."""

    rate_per_s: int
    window: int
    size_bytes: int
    cut_s: float


@dataclass(slots=True)
class Rounds:
    """Plays `faults` faults of each kind on the master of every kind of queue."""

    pace: Pace
    faults: int
    say: Callable[[str], None]
    seen: list[FaultSeen] = field(default_factory=list)
    _next_number: int = 0

    async def play(self, systems: Sequence[System], kinds_of_fault: Sequence[str]) -> None:
        # Where each system's masters have been since its last round, which left all whole.
        whole: dict[System, dict[str, str]] = {}
        for fault in kinds_of_fault:
            wanted = {system: dict.fromkeys(system.kinds, self.faults) for system in systems}
            # A fault counts for the queues whose master it meets. Twice as many rounds are enough
            # if a system's queues never have their masters on one node.
            for _ in range(2 * self.faults):
                for system in systems:
                    if any(wanted[system].values()):
                        masters = whole.get(system)
                        if masters is None:
                            masters = await system.wait_whole(FAILOVER, system.kinds)
                        masters = await system.gather(FAILOVER, masters)
                        whole[system] = await self._round(system, fault, masters, wanted[system])

    async def _round(
        self, system: System, fault: str, masters: Mapping[str, str], wanted: dict[str, int]
    ) -> dict[str, str]:
        """One fault. Returns where the masters are when all is whole again."""
        victim = masters[max(wanted, key=lambda kind: wanted[kind])]
        hit = [kind for kind in system.kinds if masters[kind] == victim and wanted[kind]]
        async with AsyncExitStack() as stack:
            loads = {
                kind: await stack.enter_async_context(self._load(system, kind, masters[kind]))
                for kind in system.kinds
            }
            await self._all_serve(loads.values(), "before the fault")
            await asyncio.sleep(CALM_S)
            began_at = time.monotonic()
            over_at, served = await self._carry_out(
                system, fault, victim, {kind: loads[kind] for kind in hit}
            )
            masters_then = await system.wait_whole(FAILOVER, system.kinds)
            whole_at = time.monotonic()
            await self._all_serve(loads.values(), "with all replicas synchronised")
            ended_at = time.monotonic()
            for load in loads.values():
                await load.settle(within_s=SETTLE_S_MAX)
        for kind, load in loads.items():
            self._next_number = max(self._next_number, load.next_number)
            drained = await system.drain(kind, FAILOVER)
            if kind in hit:
                wanted[kind] -= 1
                seen = FaultSeen(
                    system=kind,
                    fault=fault,
                    number=self.faults - wanted[kind],
                    gap_s=longest_gap_s(load.confirmed_at, began_at, ended_at),
                    whole_s=whole_at - over_at,
                    served_again=served[kind],
                    found=contents(load.confirmed, drained),
                )
                self.seen.append(seen)
                self._tell(seen)
        return masters_then

    def _load(self, system: System, kind: str, master: str) -> Load:
        return Load(
            system.sender(kind),
            FAILOVER,
            master,
            first=self._next_number,
            rate_per_s=self.pace.rate_per_s,
            window=self.pace.window,
            size_bytes=self.pace.size_bytes,
        )

    async def _all_serve(self, loads: Iterable[Load], when: str) -> None:
        for load in loads:
            if not await load.serves(within_s=SERVED_S_MAX):
                raise BenchError(f"no confirm within {SERVED_S_MAX:g} s {when}")

    async def _carry_out(
        self, system: System, fault: str, victim: str, loads: Mapping[str, Load]
    ) -> tuple[float, dict[str, bool]]:
        """When the fault was over, and whether each queue was served again."""
        if fault == KILL:
            system.kill(victim)
            served = await _serve(loads)
            # Its death and its return are two things; a supervisor takes a moment, too.
            await asyncio.sleep(CALM_S)
            await system.bring_back(victim)
            return time.monotonic(), served
        system.cut(victim)
        try:
            await asyncio.sleep(self.pace.cut_s)
        finally:
            system.heal(victim)
        over_at = time.monotonic()
        return over_at, await _serve(loads)

    def _tell(self, seen: FaultSeen) -> None:
        late = "" if seen.served_again else f"; no service within {SERVED_S_MAX:g} s"
        self.say(
            f"{seen.fault} {seen.number} of {self.faults}, {seen.system}: {seen.gap_s:.2f} s "
            f"without confirms, whole after {seen.whole_s:.1f} s, "
            f"{seen.found.confirmed} confirmed, {seen.found.lost} lost, "
            f"{seen.found.duplicated} duplicated{late}"
        )


async def _serve(loads: Mapping[str, Load]) -> dict[str, bool]:
    answers = await asyncio.gather(*(load.serves(within_s=SERVED_S_MAX) for load in loads.values()))
    return dict(zip(loads, answers, strict=True))
