"""What one variant of a case gave in one round: figures by name, and series for the plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.storage.events import Record, rate_between

OURS = "ringmq"
# As many points of a series as a plot can show.
POINTS_MAX = 400
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """A name in JSON, a heading with the unit, digits after the point."""

    name: str
    heading: str
    digits: int


FIGURES = (
    Figure("mb_per_s", "MB/s of bodies", 1),
    Figure("rate_per_s", "messages/s", 0),
    Figure("cpu_s_per_million", "CPU s/million", 2),
    Figure("written_per_byte", "bytes to disk / body byte", 2),
    Figure("publish_per_s", "publish messages/s", 0),
    Figure("publish_last_to_first", "publish rate, last tenth / first tenth", 2),
    Figure("publish_cpu_s_per_million", "publish CPU s/million", 2),
    Figure("drain_per_s", "drain messages/s", 0),
    Figure("drain_to_publish", "drain rate / publish rate", 2),
    Figure("drain_cpu_s_per_million", "drain CPU s/million", 2),
    Figure("recover_s", "seconds from start to the first message read", 2),
    Figure("recover_empty_s", "the same with nothing in it", 2),
    Figure("recover_cpu_s", "CPU s of the recovery", 2),
    Figure("rss_peak_mib", "peak resident MiB", 0),
    Figure("memory_alarms", "memory alarms", 0),
    Figure("disk_most_mb", "most disk MB", 0),
    Figure("disk_end_mb", "disk MB at the end", 1),
    Figure("garbage_most", "most garbage, share of the disk", 2),
    Figure("garbage_end", "garbage at the end, share of the disk", 2),
    Figure("others_cores", "cores that others took meanwhile", 2),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`samples` are (s, phase, resident bytes, disk bytes), `progress` (s, phase, messages,
    live body bytes or 0); seconds since the first `begin`."""

    case: str
    variant: str
    round: int
    figures: dict[str, float]
    samples: list[tuple[float, str, int, int]] = field(default_factory=list)
    progress: list[tuple[float, str, int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "variant": self.variant,
            "round": self.round,
            "figures": self.figures,
            "samples": [[round(row[0], 3), *row[1:]] for row in thinned(self.samples)],
            "progress": [[round(row[0], 3), *row[1:]] for row in thinned(self.progress)],
        }


def thinned(rows: Sequence[T], points_max: int = POINTS_MAX) -> list[T]:
    """Every n-th, and the last."""
    step = -(-len(rows) // points_max) or 1
    kept = [*rows[::step]]
    if rows and (len(rows) - 1) % step:
        kept.append(rows[-1])
    return kept


def outcome(
    case: str, variant: str, round_number: int, record: Record, figures: dict[str, float]
) -> Outcome:
    start = record.events[0].at_s
    return Outcome(
        case,
        variant,
        round_number,
        figures,
        samples=[
            (each.at_s - start, each.phase, each.rss_bytes, each.disk_bytes)
            for each in record.samples
            if each.at_s >= start
        ],
        progress=[
            (each.at_s - start, each.phase, each.done, int(each.figures.get("live_bytes", 0)))
            for each in record.events
            if each.event != "result"
        ],
    )


def rate_figures(record: Record, phase: str, messages: int, body_bytes: int) -> dict[str, float]:
    """Of a phase that handled `messages` with `body_bytes` together."""
    seconds = record.seconds(phase)
    return {
        "mb_per_s": body_bytes / seconds / 1e6,
        "rate_per_s": messages / seconds,
        "cpu_s_per_million": record.cpu_s(phase) / messages * 1e6,
    }


def backlog_figures(record: Record, messages: int) -> dict[str, float]:
    """Of the phases "fill" and "drain", ours or another broker's."""
    publish = messages / record.seconds("fill")
    drain = messages / record.seconds("drain")
    progress = record.progress("fill")
    return {
        "publish_per_s": publish,
        "publish_last_to_first": rate_between(progress, 0.9, 1) / rate_between(progress, 0, 0.1),
        "publish_cpu_s_per_million": record.cpu_s("fill") / messages * 1e6,
        "drain_per_s": drain,
        "drain_to_publish": drain / publish,
        "drain_cpu_s_per_million": record.cpu_s("drain") / messages * 1e6,
        "rss_peak_mib": record.rss_peak_bytes / 2**20,
        "disk_most_mb": max(sample.disk_bytes for sample in record.samples) / 1e6,
        "disk_end_mb": record.samples[-1].disk_bytes / 1e6,
    }


def garbage_figures(record: Record) -> dict[str, float]:
    """What of the disk is not live bodies: at its worst in "churn", and when all is quiet.

    Read in pairs of a sample and what was said last before it. The first fifth is left out,
    in which a file that has only begun is most of the disk.
    """
    begin, end = record.of("begin", "churn").at_s, record.of("end", "churn").at_s
    said = [each for each in record.events if "live_bytes" in each.figures]
    shares = []
    for sample in record.samples:
        is_late_enough = sample.phase == "churn" and sample.at_s >= begin + (end - begin) / 5
        if is_late_enough and sample.disk_bytes:
            before = [each for each in said if each.at_s <= sample.at_s]
            if before:
                shares.append(1 - before[-1].figures["live_bytes"] / sample.disk_bytes)
    last = record.samples[-1].disk_bytes
    return {
        "garbage_most": max(shares, default=0.0),
        "garbage_end": 1 - said[-1].figures["live_bytes"] / last,
        "disk_most_mb": max(sample.disk_bytes for sample in record.samples) / 1e6,
        "disk_end_mb": last / 1e6,
    }
