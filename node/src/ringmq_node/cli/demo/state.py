"""The facts that a demo gathers while it runs, and the report made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ringmq_node.cli.load.tally import Tally


class NodePhase(Enum):
    """Where a node of the demo is in its life; the value is shown."""

    STARTING = "starting"
    RUNNING = "running"
    KILLED = "killed"


@dataclass(slots=True)
class DemoState:
    """The facts of one demo, for the screen and the report. Times are of `time.perf_counter`."""

    count: int
    tally: Tally = field(default_factory=Tally)
    confirmed: int = 0
    # Deliveries, repeats included.
    consumed: int = 0
    nodes: dict[str, NodePhase] = field(default_factory=dict)
    master: str = ""
    started: float = 0.0
    # From the first publish until the last confirm, and until the last ack.
    publish_s: float | None = None
    seconds: float | None = None
    killed: str = ""
    killed_at: float = 0.0
    failover_ms: float | None = None
    resynchronised: bool = False
    resync_ms: float | None = None
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def digests_equal(self) -> bool:
        return len(self.digests) == len(self.nodes) and len(set(self.digests.values())) == 1

    @property
    def broken(self) -> bool:
        return self.tally.broken or len(set(self.digests.values())) > 1

    def report(self) -> dict[str, Any]:
        """The report that `--json` prints; docs/cli.md explains its fields. Unknown is None."""
        tally = self.tally
        seconds = self.seconds
        return {
            "published": tally.published,
            "confirmed": self.confirmed,
            "consumed": len(tally.delivered),
            # Known only when the queue is empty: until then a message may still come.
            "lost": None if seconds is None else tally.lost,
            "duplicated": tally.duplicated,
            "reordered": tally.reordered,
            "redelivered": tally.redelivered,
            "unexpected": tally.unexpected,
            "failover_ms": None if self.failover_ms is None else round(self.failover_ms, 1),
            "rate_per_s": round(self.confirmed / seconds, 1) if seconds else None,
            "seconds": round(seconds, 3) if seconds is not None else None,
            "publish_seconds": round(self.publish_s, 3) if self.publish_s is not None else None,
            "killed": self.killed or None,
            "resynchronised": self.resynchronised,
            "resync_ms": None if self.resync_ms is None else round(self.resync_ms, 1),
            "digests_equal": self.digests_equal,
            "nodes": len(self.nodes),
        }
