"""One run of one case: its time, and the processor time of Spark and of the nodes."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench import procs
from bench.measure import BenchError
from bench.pipeline.place import Place
from bench.pipeline.work import WORK

MEGA = 1e6


@dataclass(frozen=True, slots=True)
class Measured:
    """`bytes`: of the bodies. `job_cpu_s`: of this process, the JVM and its Python workers;
    `node_cpu_s`: of all nodes. `others_cores`: what the rest of the machine took meanwhile."""

    case: str
    round: int
    messages: int
    bytes: int
    seconds: float
    job_cpu_s: float
    node_cpu_s: float
    others_cores: float

    @property
    def rate_per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / MEGA

    @property
    def mb_per_cpu_s(self) -> float:
        return self.bytes / (self.job_cpu_s + self.node_cpu_s) / MEGA

    @property
    def job_cpu_us(self) -> float:
        """Of each message."""
        return self.job_cpu_s / self.messages * MEGA

    @property
    def node_cpu_us(self) -> float:
        """Of each message."""
        return self.node_cpu_s / self.messages * MEGA

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "rate_per_s": self.rate_per_s,
            "mb_per_s": self.mb_per_s,
            "mb_per_cpu_s": self.mb_per_cpu_s,
        }


def measure(place: Place, case: str, number: int, messages_wanted: int | None = None) -> Measured:
    """Raises `BenchError` if the case did its work with another number of messages."""
    nodes = _node_cpu_s(place)
    job = _job_cpu_s(place)
    machine = procs.machine_cpu()
    began = time.monotonic()
    messages = WORK[case](place)
    seconds = time.monotonic() - began
    machine = procs.machine_cpu().since(machine)
    job, nodes = _job_cpu_s(place) - job, _node_cpu_s(place) - nodes
    if messages_wanted is not None and messages != messages_wanted:
        raise BenchError(f"{case}: {messages} messages, not {messages_wanted}")
    return Measured(
        case=case,
        round=number,
        messages=messages,
        bytes=messages * place.size,
        seconds=seconds,
        job_cpu_s=job,
        node_cpu_s=nodes,
        others_cores=max(0.0, machine.busy_s - job - nodes) / machine.elapsed_s,
    )


def _node_cpu_s(place: Place) -> float:
    return procs.tree_cpu_s(place.pids)


def _job_cpu_s(place: Place) -> float:
    """Without the nodes, which are this process's children as well."""
    return procs.tree_cpu_s([os.getpid()]) - procs.tree_cpu_s(place.pids)
