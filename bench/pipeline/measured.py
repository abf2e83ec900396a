"""One run of one case: its time, and the processor time of Spark and of the nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from bench import procs
from bench.ended import EndedChildren
from bench.measure import BenchError

MEGA = 1e6


@dataclass(frozen=True, slots=True)
class Done:
    """What a case has done. `duplicates`: messages that are in the queue more than once."""

    messages: int
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Which:
    """`setting`: a size or a number of executors, in the rows that have such; else empty."""

    row: str
    case: str
    round: int
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """`bytes`: of the bodies, or of a history. `job_cpu_s`: of this process, the JVM and its Python
    workers, also of those that have ended; `node_cpu_s`: of all nodes. `others_cores`: what the
    rest of the machine took."""

    row: str
    case: str
    round: int
    setting: str
    messages: int
    duplicates: int
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

    @property
    def cpu_us(self) -> float:
        """Of each message, Spark's and the nodes'."""
        return self.job_cpu_us + self.node_cpu_us

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "rate_per_s": self.rate_per_s,
            "mb_per_s": self.mb_per_s,
            "mb_per_cpu_s": self.mb_per_cpu_s,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Measured:
        return cls(**{each.name: content[each.name] for each in fields(cls)})

    def line(self) -> str:
        where = f", {self.setting}" if self.setting else ""
        return (
            f"{self.case}{where}, round {self.round}: {self.rate_per_s:.0f}/s, "
            f"{self.mb_per_s:.0f} MB/s, CPU us/message {self.job_cpu_us:.1f} "
            f"and {self.node_cpu_us:.1f} of the nodes"
        )


def measure(
    which: Which,
    work: Callable[[], Done],
    *,
    message_bytes: float,
    pids: Sequence[int] = (),
    wanted: int | None = None,
) -> Measured:
    """`pids`: the nodes'. Raises `BenchError` if the work was done with another number of messages
    than `wanted`."""
    # Spark kills the Python workers of tasks that fail, and those that were idle for a minute.
    with EndedChildren([os.getpid()]) as ended:
        nodes = procs.tree_cpu_s(pids)
        job = _job_cpu_s(pids)
        machine = procs.machine_cpu()
        began = time.monotonic()
        done = work()
        seconds = time.monotonic() - began
        machine = procs.machine_cpu().since(machine)
        job = _job_cpu_s(pids) + ended.cpu_s() - job
        nodes = procs.tree_cpu_s(pids) - nodes
    if wanted is not None and done.messages != wanted:
        raise BenchError(f"{which.case}: {done.messages} messages, not {wanted}")
    return Measured(
        row=which.row,
        case=which.case,
        round=which.round,
        setting=which.setting,
        messages=done.messages,
        duplicates=done.duplicates,
        bytes=round(done.messages * message_bytes),
        seconds=seconds,
        job_cpu_s=job,
        node_cpu_s=nodes,
        others_cores=max(0.0, machine.busy_s - job - nodes) / machine.elapsed_s,
    )


def _job_cpu_s(pids: Sequence[int]) -> float:
    """Without the nodes, which are this process's children as well."""
    return procs.tree_cpu_s([os.getpid()]) - procs.tree_cpu_s(pids)
