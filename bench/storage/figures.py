"""The figures of a case: their headings, and how they follow from the observations of a run."""

from __future__ import annotations

from dataclasses import dataclass

from bench.storage.observations import Observations, rate_between


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
    Figure("others_cores", "cores that other processes took meanwhile", 2),
)


def rate_figures(
    observed: Observations, phase: str, messages: int, body_bytes: int
) -> dict[str, float]:
    """The rates of a phase that handled `messages`, whose bodies have `body_bytes` together."""
    seconds = observed.seconds(phase)
    return {
        "mb_per_s": body_bytes / seconds / 1e6,
        "rate_per_s": messages / seconds,
        "cpu_s_per_million": observed.cpu_s(phase) / messages * 1e6,
    }


def backlog_figures(observed: Observations, messages: int) -> dict[str, float]:
    """From the phases "fill" and "drain", of our engine or of RabbitMQ."""
    publish = messages / observed.seconds("fill")
    drain = messages / observed.seconds("drain")
    progress = observed.progress("fill")
    return {
        "publish_per_s": publish,
        "publish_last_to_first": rate_between(progress, 0.9, 1) / rate_between(progress, 0, 0.1),
        "publish_cpu_s_per_million": observed.cpu_s("fill") / messages * 1e6,
        "drain_per_s": drain,
        "drain_to_publish": drain / publish,
        "drain_cpu_s_per_million": observed.cpu_s("drain") / messages * 1e6,
        "rss_peak_mib": observed.rss_peak_bytes / 2**20,
        "disk_most_mb": max(sample.disk_bytes for sample in observed.samples) / 1e6,
        "disk_end_mb": observed.samples[-1].disk_bytes / 1e6,
    }


def garbage_figures(observed: Observations) -> dict[str, float]:
    """The share of the disk that is not live bodies: at its worst in "churn", and at the end.

    Each sample of the disk is compared with the live bytes that the process told last before it.
    The first fifth of "churn" is left out: one file that has just begun is most of the disk then.
    """
    begin, end = observed.of("begin", "churn").at_s, observed.of("end", "churn").at_s
    said = [each for each in observed.events if "live_bytes" in each.figures]
    shares = []
    for sample in observed.samples:
        is_late_enough = sample.phase == "churn" and sample.at_s >= begin + (end - begin) / 5
        if is_late_enough and sample.disk_bytes:
            before = [each for each in said if each.at_s <= sample.at_s]
            if before:
                shares.append(1 - before[-1].figures["live_bytes"] / sample.disk_bytes)
    last = observed.samples[-1].disk_bytes
    return {
        "garbage_most": max(shares, default=0.0),
        "garbage_end": 1 - said[-1].figures["live_bytes"] / last,
        "disk_most_mb": max(sample.disk_bytes for sample in observed.samples) / 1e6,
        "disk_end_mb": last / 1e6,
    }
