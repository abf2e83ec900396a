"""What is measured, of any system of three nodes.

The victim is the first node. A phase ends at the first look that finds all queues well, so a
system whose looks take long has durations that are too long by half a look or so; the report says
how long they took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench import procs
from bench.measure import BenchError

NODES = 3
IDLE_S = 20.0
# Queues whose declares are measured together.
PART = 1000
# No queue may be without a master, or a mirror not synchronised, for longer than this.
PHASE_S_MAX = 600.0
# The pause between two looks is as long as the look has taken, within these bounds: to list ten
# thousand queues is work for the nodes, too.
_POLL_S = 0.2
_POLL_S_MAX = 5.0


class System(Protocol):
    """Three nodes, which `start` starts. Queues have the numbers from 0 on."""

    name: str
    #: Whether a node that has lost its directory comes back by itself.
    refills: bool

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Raises `BenchError` if a node has logged what it shouldn't."""

    def pids(self) -> Sequence[int]:
        """Of all that runs now."""

    async def declare(self, queues: Sequence[int]) -> None: ...

    async def publish(self, queues: Sequence[int], messages: int) -> None:
        """So many to each queue, confirmed."""

    async def well(self, replicas: int) -> int:
        """How many queues have a master that answers, and so many synchronised replicas (0: any
        number). 0 as well if no node answers now."""

    async def kill(self) -> None:
        """The victim, by SIGKILL."""

    async def bring_back(self) -> None:
        """Starts the victim; returns at once."""

    async def wait_ready(self) -> None:
        """Until the victim takes clients."""

    def empty(self) -> None:
        """Removes what the victim, which is dead, has on its disk."""


@dataclass(slots=True)
class ScaleResult:
    """Of one system; memory and CPU are of all its nodes together. None: not measured."""

    system: str
    queues: int
    messages_in_each: int
    declared_at_once: int
    declare_rate_per_s: float = 0.0
    # Of each `PART` queues, one after the other: it must not grow.
    declare_cpu_ms_per_queue: list[float] = field(default_factory=list)
    memory_bytes_per_queue_and_node: int = 0
    idle_cpu_percent_of_a_core: float = 0.0
    # From the kill of a node until every queue has a master, and from its start until every
    # replica is synchronised; and the CPU time of all nodes for that.
    death_s: float = 0.0
    death_cpu_s: float = 0.0
    rejoin_s: float = 0.0
    rejoin_cpu_s: float = 0.0
    # The same for a node whose data directory was removed; and until it was ready.
    empty_ready_s: float | None = None
    empty_rejoin_s: float | None = None
    # The longest look at all queues.
    look_s_max: float = 0.0


class Course:
    """One system from its start to its end."""

    def __init__(self, system: System, result: ScaleResult, say: Callable[[str], None]) -> None:
        self._system = system
        self._result = result
        self._say = say

    async def play(self) -> ScaleResult:
        """Raises `BenchError` if a phase doesn't end."""
        await self._system.start()
        try:
            await self._declare()
            await self._die_and_return()
            if self._system.refills:
                await self._return_empty()
        finally:
            await self._system.stop()
        return self._result

    async def _declare(self) -> None:
        system, result, pids = self._system, self._result, self._system.pids()
        before = procs.tree_use(pids)
        began = time.perf_counter()
        for first in range(0, result.queues, PART):
            part = range(first, min(first + PART, result.queues))
            cpu_s = procs.tree_cpu_s(pids)
            await system.declare(part)
            cpu_s = procs.tree_cpu_s(pids) - cpu_s
            result.declare_cpu_ms_per_queue.append(1e3 * cpu_s / len(part))
            self._say(f"{part[-1] + 1} queues")
        result.declare_rate_per_s = result.queues / (time.perf_counter() - began)
        await self._all_well(NODES)
        after = procs.tree_use(pids)
        grown = max(after.rss_bytes - before.rss_bytes, 0)
        result.memory_bytes_per_queue_and_node = grown // result.queues // NODES
        await asyncio.sleep(IDLE_S)
        idle_s = procs.tree_cpu_s(pids) - after.cpu_s
        result.idle_cpu_percent_of_a_core = 100 * idle_s / IDLE_S
        if result.messages_in_each:
            await system.publish(range(result.queues), result.messages_in_each)

    async def _die_and_return(self) -> None:
        system, result = self._system, self._result
        await system.kill()
        survivors = system.pids()
        before_s = procs.tree_cpu_s(survivors)
        result.death_s = await self._timed(lambda: self._all_well(0))
        died_s = procs.tree_cpu_s(survivors)
        result.death_cpu_s = died_s - before_s
        self._say(f"masters again after {result.death_s:.1f} s")
        await system.bring_back()
        result.rejoin_s = await self._timed(lambda: self._all_well(NODES))
        result.rejoin_cpu_s = procs.tree_cpu_s(system.pids()) - died_s
        self._say(f"synchronised after {result.rejoin_s:.1f} s")

    async def _return_empty(self) -> None:
        system, result = self._system, self._result
        await system.kill()
        await self._all_well(0)
        system.empty()
        began = time.perf_counter()
        await system.bring_back()
        await system.wait_ready()
        result.empty_ready_s = time.perf_counter() - began
        await self._all_well(NODES)
        result.empty_rejoin_s = time.perf_counter() - began
        self._say(f"synchronised after {result.empty_rejoin_s:.1f} s, from an empty directory")

    async def _timed(self, work: Callable[[], Awaitable[None]]) -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    async def _all_well(self, replicas: int) -> None:
        deadline = time.perf_counter() + PHASE_S_MAX
        well = 0
        while (began := time.perf_counter()) < deadline:
            well = await self._system.well(replicas)
            look_s = time.perf_counter() - began
            self._result.look_s_max = max(self._result.look_s_max, look_s)
            if well == self._result.queues:
                return
            await asyncio.sleep(min(_POLL_S_MAX, max(_POLL_S, look_s)))
        raise BenchError(
            f"{self._system.name}: {well} of {self._result.queues} queues are well after "
            f"{PHASE_S_MAX:.0f} s"
        )
