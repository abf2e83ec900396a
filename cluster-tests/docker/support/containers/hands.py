"""Carries out faults of the shared vocabulary on a cluster that Compose runs, as its users would.

What a fault needs and what Compose has differ in one thing: a node that has crashed is started by
the engine, by the file's `restart`, and not after the fault's `down_s`. So `down_s` is 0 here.
"""

from __future__ import annotations

import asyncio
import time

from faults.vocabulary import Crash, Fault, Promote, Restart, nodes_of
from healthcheck import why_not_serving
from history.records import Nemesis, Record

from containers.compose import Compose
from containers.container import wait_until

RESTARTED_S_MAX = 60
HEALTHY_S_MAX = 90
PROBE_S_MAX = 2.0


class Hands:
    """Of one project and one of its queues. `records` has the faults, for the history."""

    def __init__(self, compose: Compose, queue: str) -> None:
        self._compose, self._queue = compose, queue
        self.records: list[Record] = []

    async def play(self, fault: Fault) -> None:
        """Returns when it is over. `ValueError` for a fault that this stage doesn't have."""
        self._note(fault, begins=True)
        # Compose's commands block, and clients go on meanwhile.
        await asyncio.to_thread(self._carry_out, fault)
        self._note(fault, begins=False)

    def _note(self, fault: Fault, *, begins: bool) -> None:
        name = type(fault).__name__
        self.records.append(Nemesis(time.monotonic(), begins, 0, name, nodes_of(fault), str(fault)))

    def _carry_out(self, fault: Fault) -> None:
        compose = self._compose
        match fault:
            case Crash(node=node):
                restarts = compose.restarts(node)
                compose.crash(node)
                wait_until(
                    lambda: compose.restarts(node) == restarts + 1,
                    f"{node} was restarted",
                    deadline_s=RESTARTED_S_MAX,
                )
                wait_serving(compose, node)
            case Restart(node=node):
                compose.run("restart", node)
                wait_serving(compose, node)
            case Promote(target=target):
                promoted = compose.ringmq(target, "promote", self._queue, target)
                assert promoted["new_master"] == target
            case _:
                raise ValueError(f"no stage of Compose has {fault}")


def wait_healthy(compose: Compose, service: str) -> None:
    wait_until(
        lambda: compose.health(service) == "healthy",
        f"a healthy {service}",
        deadline_s=HEALTHY_S_MAX,
    )


def wait_serving(compose: Compose, node: str) -> None:
    """Returns when the node says at its published port what its own probe asks: the engine sends
    the first probe of each life ten seconds after its start."""
    (address,) = compose.seeds([node])
    wait_until(
        lambda: why_not_serving(address, PROBE_S_MAX) is None,
        f"{node} serves",
        deadline_s=HEALTHY_S_MAX,
    )
