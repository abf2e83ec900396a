"""The report of a bench: the fields that docs/cli.md lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringmq_node.cli.bench.measured import BenchKind, BenchSettings, MeasuredQueue
from ringmq_node.cli.load.latencies import Latencies
from ringmq_node.cli.load.tally import NOTHING_COUNTED, TallyCounts


@dataclass(slots=True)
class Durations:
    """In seconds: from the first hand-over to the last confirm, from the start of the clock
    to the last delivery, and the processor time of this process meanwhile."""

    publish_s: float = 0.0
    consume_s: float = 0.0
    cpu_s: float = 0.0


def total_counts(kind: BenchKind, queues: Sequence[MeasuredQueue]) -> TallyCounts | None:
    """The tallies of all queues together; None where deliveries can't be judged."""
    if kind is BenchKind.PUBLISH or not all(each.judged for each in queues):
        return None
    return sum((each.load.tally.counts() for each in queues), NOTHING_COUNTED)


def bench_report(
    settings: BenchSettings,
    queues: Sequence[MeasuredQueue],
    took: Durations,
    *,
    counts: TallyCounts | None,
    drained: bool,
) -> dict[str, Any]:
    """The report. Unknown is None; so is `lost` unless all queues were `drained`."""
    facts: dict[str, Any] = {
        "kind": settings.kind.value,
        "queues": len(queues),
        "size_bytes": settings.size_bytes,
    }
    if settings.kind is not BenchKind.CONSUME:
        facts |= _published(settings, queues, took.publish_s)
    if settings.kind is not BenchKind.PUBLISH:
        facts |= _consumed(queues, took.consume_s)
        facts |= asdict(counts) if counts is not None else dict.fromkeys(asdict(NOTHING_COUNTED))
        if not drained:
            facts["lost"] = None
    return facts | {"client_cpu_s": round(took.cpu_s, 6)}


def _published(
    settings: BenchSettings, queues: Sequence[MeasuredQueue], seconds: float
) -> dict[str, Any]:
    loads = [each.load for each in queues]
    confirmed = sum(len(load.tally.confirmed) for load in loads)
    return {
        "count": sum(load.tally.published for load in loads),
        "confirmed": confirmed,
        "nacked": sum(load.failed for load in loads),
        "window": settings.window,
        "seconds": round(seconds, 6),
        "rate_per_s": _rate(confirmed, seconds),
        "confirm_ms": Latencies.merged(load.latencies for load in loads).summary_ms(),
    }


def _consumed(queues: Sequence[MeasuredQueue], seconds: float) -> dict[str, Any]:
    consumed = sum(each.consumed for each in queues)
    return {
        "consumed": consumed,
        "consume_seconds": round(seconds, 6),
        "consume_rate_per_s": _rate(consumed, seconds),
        "end_to_end_ms": Latencies.merged(each.end_to_end for each in queues).summary_ms(),
    }


def _rate(messages: int, seconds: float) -> float:
    return round(messages / seconds, 1) if seconds else 0.0
