"""The words of the benchmark: a point, a measurement, a peer.

A *point* is a question: so many messages of this size, so many unconfirmed at a time. A *peer* is
a broker cluster, or the bare disk, that answers. A *measurement* is one answer. A peer knows its
publisher's figures only; `measure` adds the CPU that its brokers took, and that of all other
processes on the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from bench import procs

# Brokers put work off until they are idle (index flushes, acks around the ring). That work
# belongs to the messages, so the count of CPU and of bytes goes on for this long.
SETTLE_S = 1.0
# Replicas of a queue, of every cluster that is measured.
COPIES = 3


class BenchError(Exception):
    """The run can't go on. The text has the reason and the way out."""


@dataclass(frozen=True, slots=True)
class Point:
    """One question: `count` messages of `size_bytes`, spread over `queues` queues.

    Each queue has a publisher of its own, with at most `window` messages unconfirmed. With
    `consumed` a consumer takes and acknowledges the messages meanwhile.
    """

    count: int
    size_bytes: int
    window: int
    queues: int = 1
    consumed: bool = False

    def label(self) -> str:
        each = f"{self.size_bytes} B, window {self.window}"
        if self.consumed:
            return f"{each}, consumed"
        return each if self.queues == 1 else f"{each}, {self.queues} queues"

    def shares(self) -> list[int]:
        """The messages of each queue."""
        share, rest = divmod(self.count, self.queues)
        return [share + (number < rest) for number in range(self.queues)]

    def share(self, divisor: int) -> Point:
        """The same question with a fraction of the messages, and one for each queue at least."""
        return replace(self, count=max(self.count // divisor, self.queues))


@dataclass(frozen=True, slots=True)
class ClientReport:
    """A publisher's figures. Latencies run from hand-over to confirm; percentiles: nearest rank.

    `client_cpu_s` is user and system time of the publisher over the timed part. `consumed_per_s`
    runs from the first hand-over to the last delivery; None if nobody consumes.
    """

    seconds: float
    rate_per_s: float
    acked: int
    nacked: int
    client_cpu_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    consumed_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one peer at one point.

    `broker_cpu_s` is user and system time of all broker processes from just before the publisher
    starts to `SETTLE_S` after it ends, and `written_bytes` what they have had written to the disk
    in that time, in whole pages. `handed_bytes` is what they have given to write(2) for messages
    then, as they count it themselves; None for a peer that doesn't. `others_cores` is the CPU that
    all other processes of the machine took then, in cores: noise, and the other peers' idling.
    """

    peer: str
    point: Point
    round: int
    client: ClientReport
    broker_cpu_s: float
    others_cores: float
    written_bytes: int = 0
    handed_bytes: int | None = None

    @property
    def written_per_body_byte(self) -> float:
        """Of each of the copies."""
        return self.written_bytes / self._body_bytes

    @property
    def handed_per_body_byte(self) -> float | None:
        """Of each of the copies."""
        return None if self.handed_bytes is None else self.handed_bytes / self._body_bytes

    @property
    def _body_bytes(self) -> int:
        return self.point.count * self.point.size_bytes * COPIES

    @property
    def broker_cpu_s_per_million(self) -> float:
        return self.broker_cpu_s / self.point.count * 1e6

    @property
    def client_cpu_s_per_million(self) -> float:
        return self.client.client_cpu_s / self.point.count * 1e6

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "broker_cpu_s_per_million": self.broker_cpu_s_per_million,
            "client_cpu_s_per_million": self.client_cpu_s_per_million,
            "written_per_body_byte": self.written_per_body_byte,
            "handed_per_body_byte": self.handed_per_body_byte,
        }


class Peer(Protocol):
    """A started cluster that can be published to. Started and ended by its owner."""

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, str]:
        """Versions and settings, for the result file."""
        ...

    def broker_pids(self) -> Sequence[int]:
        """The processes whose trees are the brokers. Empty for the bare disk."""
        ...

    def handed_bytes(self) -> int | None:
        """Bytes that the brokers have given to write(2) for messages since they were started;
        None if they don't count them."""
        ...

    def prepare(self, queues: Sequence[str]) -> None:
        """Makes the new queues. Their cost isn't counted."""
        ...

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        """Publishes into `queues`, as many as the point says, and awaits every confirm.

        Raises `BenchError` if the publisher fails.
        """
        ...

    def remove(self, queues: Sequence[str]) -> None:
        """Checks that the queues have the replicas that the peer claims, and deletes them.

        Raises `BenchError` if they aren't: the measurement would be worth nothing.
        """
        ...


def measure(peer: Peer, point: Point, round_number: int) -> Measurement:
    queues = [f"w{point.window}.r{round_number}.{number}" for number in range(point.queues)]
    peer.prepare(queues)
    pids = peer.broker_pids()
    # Asked before the brokers' CPU is looked at, and after: an answer costs some.
    handed_before = peer.handed_bytes()
    brokers_before = procs.tree_cpu_s(pids)
    written_before = procs.tree_written_bytes(pids)
    machine_before = procs.machine_cpu()
    own_before = procs.own_cpu_s()
    report = peer.publish(point, queues)
    if pids:
        time.sleep(SETTLE_S)
    brokers = procs.tree_cpu_s(pids) - brokers_before
    written = procs.tree_written_bytes(pids) - written_before
    machine = procs.machine_cpu().since(machine_before)
    # The run's own CPU is not noise: the publisher's, a child that has ended by now.
    ours = brokers + procs.own_cpu_s() - own_before
    handed = peer.handed_bytes()
    peer.remove(queues)
    if report.acked != point.count or report.nacked:
        raise BenchError(
            f"{peer.name}: {report.acked} acked and {report.nacked} nacked of {point.count}"
        )
    return Measurement(
        peer=peer.name,
        point=point,
        round=round_number,
        client=report,
        broker_cpu_s=brokers,
        others_cores=max(0.0, machine.busy_s - ours) / machine.elapsed_s,
        written_bytes=written,
        handed_bytes=None if handed is None or handed_before is None else handed - handed_before,
    )


def machine_facts(directory: Path) -> dict[str, str]:
    """The machine, as far as it explains the figures. No names of hosts or paths."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{memory_kib / 2**20:.0f}",
        "kernel": os.uname().release,
        "filesystem": procs.filesystem_of(directory),
    }
