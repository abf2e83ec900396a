"""The cases: what is run, how large, how much disk it may take, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.storage import rabbit
from bench.storage.context import BUDGET_BYTES, Context, Load, evict
from bench.storage.events import Record
from bench.storage.outcome import (
    OURS,
    Outcome,
    backlog_figures,
    garbage_figures,
    outcome,
    rate_figures,
)

SIZE = 1024
BATCH = 500
# Batches in flight.
WINDOW = 16
LIMIT, LIMIT_GROUPED = "limit", "limit-grouped"

# context, round, scale -> the outcome
Variant = Callable[[Context, int, float], Outcome]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure of ours, or, with `beside`, on its ratio to another variant's."""

    figure: str
    beside: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def text(self) -> str:
        bound = (
            f"at least {self.at_least:g}" if self.at_most is None else f"at most {self.at_most:g}"
        )
        return f"{bound} of {self.beside}" if self.beside else bound


@dataclass(frozen=True, slots=True)
class Case:
    """`disk_bytes` is at scale 1, of one variant at a time. A long one has rounds of its own."""

    name: str
    title: str
    variants: Mapping[str, Variant]
    disk_bytes: int
    is_long: bool = False
    goals: tuple[Goal, ...] = ()


def scaled(count: int, scale: float, multiple: int = 1) -> int:
    """At least one `multiple`."""
    return max(round(count * scale / multiple), 1) * multiple


def _append(name: str, messages: int, batch: int, window: int) -> dict[str, Variant]:
    """Ours, and the bare loop that syncs each batch, or a whole window at a time."""

    def figures(record: Record, count: int) -> dict[str, float]:
        result = rate_figures(record, "append", count, count * SIZE)
        result["written_per_byte"] = record.result()["written_bytes"] / (count * SIZE)
        return result

    def ours(context: Context, round_number: int, scale: float) -> Outcome:
        count = scaled(messages, scale, batch * window)
        record = context.run("append", messages=count, size=SIZE, batch=batch, window=window)
        return outcome(name, OURS, round_number, record, figures(record, count))

    def limit(variant: str, per_sync: int) -> Variant:
        def run(context: Context, round_number: int, scale: float) -> Outcome:
            count = scaled(messages, scale, batch * window)
            record = context.run("limit", messages=count, size=SIZE, per_sync=per_sync)
            return outcome(name, variant, round_number, record, figures(record, count))

        return run

    variants: dict[str, Variant] = {OURS: ours, LIMIT: limit(LIMIT, batch)}
    if window > 1:
        variants[LIMIT_GROUPED] = limit(LIMIT_GROUPED, batch * window)
    return variants


def _consume(context: Context, round_number: int, scale: float) -> Outcome:
    count = scaled(500_000, scale, BATCH)
    record = context.run("consume", messages=count, size=SIZE, batch=BATCH, window=WINDOW)
    figures = rate_figures(record, "consume", count, count * SIZE)
    return outcome("consume", OURS, round_number, record, figures)


BACKLOG_MESSAGES = 5_000_000


def _backlog_load(scale: float) -> Load:
    return Load(scaled(BACKLOG_MESSAGES, scale, 10 * BATCH), SIZE, BATCH * WINDOW)


def _backlog(context: Context, round_number: int, scale: float) -> Outcome:
    load = _backlog_load(scale)
    record = context.run(
        "backlog",
        messages=load.messages,
        size=load.size,
        batch=BATCH,
        window=WINDOW,
        budget=BUDGET_BYTES,
    )
    figures = backlog_figures(record, load.messages)
    figures["memory_alarms"] = record.result()["memory_alarms"]
    return outcome("backlog", OURS, round_number, record, figures)


def _recovery(context: Context, round_number: int, scale: float) -> Outcome:
    load = _backlog_load(scale)
    context.data.mkdir()
    _, empty = _recover(context, "recover", messages=0)
    with context.start(
        "fill",
        messages=load.messages,
        size=load.size,
        batch=BATCH,
        window=WINDOW,
        budget=BUDGET_BYTES,
    ) as filling:
        context.follow(filling, Record(), "end")
        filling.kill()
    record, figures = _recover(context, "recover", messages=load.messages)
    figures["recover_empty_s"] = empty["recover_s"]
    return outcome("recovery", OURS, round_number, record, figures)


def _queues(context: Context, round_number: int, scale: float) -> Outcome:
    queues = scaled(10_000, scale)
    with context.start("fill_queues", queues=queues, size=SIZE) as filling:
        context.follow(filling, Record(), "end")
        filling.kill()
    record, figures = _recover(context, "recover_queues", queues=queues)
    return outcome("queues", OURS, round_number, record, figures)


def _recover(context: Context, work: str, **parameters: int) -> tuple[Record, dict[str, float]]:
    """Of what a killed process left. Seconds count from the start of the new process."""
    evict(context.data)
    record = Record()
    with context.start(work, **parameters) as watched:
        context.follow(watched, record, "result")
        figures = {
            "recover_s": record.of("end", "recover").at_s - watched.started_at_s,
            "recover_cpu_s": record.cpu_s("recover"),
            "rss_peak_mib": record.result()["rss_peak_bytes"] / 2**20,
        }
    return record, figures


FAN_OUT_QUEUES = 10
FAN_OUT_SIZE = 64 << 10


def _fan_out(context: Context, round_number: int, scale: float) -> Outcome:
    count = scaled(4000, scale)
    record = context.run(
        "fan_out", messages=count, size=FAN_OUT_SIZE, queues=FAN_OUT_QUEUES, window=WINDOW
    )
    copies = count * FAN_OUT_QUEUES
    figures = rate_figures(record, "publish", copies, copies * FAN_OUT_SIZE)
    figures["written_per_byte"] = record.result()["written_bytes"] / (count * FAN_OUT_SIZE)
    figures["disk_end_mb"] = record.samples[-1].disk_bytes / 1e6
    return outcome("fan-out", OURS, round_number, record, figures)


CHURN_BYTES = 1 << 30
CHURN_BATCH_BYTES = 256 << 10
# Of all that is published so much lives at the end, and most of the time.
CHURN_LIVE_SHARE = 4


def _compaction(name: str, size: int) -> Variant:
    def run(context: Context, round_number: int, scale: float) -> Outcome:
        batch = CHURN_BATCH_BYTES // size
        count = scaled(CHURN_BYTES // size, scale, CHURN_LIVE_SHARE * batch)
        record = context.run(
            "compaction",
            messages=count,
            live_messages=count // CHURN_LIVE_SHARE,
            size=size,
            batch=batch,
            window=WINDOW,
        )
        figures = rate_figures(record, "churn", count, count * size) | garbage_figures(record)
        figures["written_per_byte"] = record.result()["written_bytes"] / (count * size)
        return outcome(name, OURS, round_number, record, figures)

    return run


def _rabbit(run: Callable[[Context, str, int, Load], Outcome], variant: str) -> Variant:
    def variant_of(context: Context, round_number: int, scale: float) -> Outcome:
        return run(context, variant, round_number, _backlog_load(scale))

    return variant_of


def _beside_rabbit(
    ours: Variant, theirs: Callable[[Context, str, int, Load], Outcome]
) -> dict[str, Variant]:
    return {
        OURS: ours,
        rabbit.DEFAULT: _rabbit(theirs, rabbit.DEFAULT),
        rabbit.LAZY: _rabbit(theirs, rabbit.LAZY),
    }


# While a journal is emptied into segments what it holds is there twice.
_BACKLOG_DISK = BACKLOG_MESSAGES * SIZE * 3 // 2

CASES = (
    Case(
        "append",
        f"append, confirmed when durable: batches of {BATCH} x {SIZE} B, {WINDOW} in flight",
        _append("append", 800_000, BATCH, WINDOW),
        disk_bytes=2_000_000_000,
        goals=(Goal("mb_per_s", beside=LIMIT, at_least=0.7),),
    ),
    Case(
        "append-singles",
        f"append, confirmed when durable: single messages of {SIZE} B, 100 in flight",
        _append("append-singles", 100_000, 1, 100),
        disk_bytes=500_000_000,
    ),
    Case(
        "append-alone",
        f"append, confirmed when durable: single messages of {SIZE} B, one at a time",
        _append("append-alone", 10_000, 1, 1),
        disk_bytes=100_000_000,
    ),
    Case(
        "consume",
        f"read and ack of a backlog of {SIZE} B messages",
        {OURS: _consume},
        disk_bytes=1_500_000_000,
    ),
    Case(
        "fan-out",
        f"bodies of {FAN_OUT_SIZE >> 10} KiB to {FAN_OUT_QUEUES} queues each",
        {OURS: _fan_out},
        # Should every queue have its own copy.
        disk_bytes=5_500_000_000,
        goals=(Goal("written_per_byte", at_most=1.5),),
    ),
    *(
        Case(
            name,
            f"{CHURN_BYTES >> 20} MiB published in bodies of {size >> 10} KiB ({what}), "
            f"removed at random so that 1/{CHURN_LIVE_SHARE} lives",
            {OURS: _compaction(name, size)},
            disk_bytes=2_500_000_000,
        )
        for name, size, what in (
            ("compaction", 64 << 10, "each a record of its own"),
            ("compaction-blocks", 4 << 10, "four in a record"),
        )
    ),
    Case(
        "queues",
        "recovery after kill -9: one message in each of many queues",
        {OURS: _queues},
        disk_bytes=1_000_000_000,
        goals=(Goal("recover_s", at_most=10),),
    ),
    Case(
        "backlog",
        f"backlog of {SIZE} B messages and its drain, budget {BUDGET_BYTES >> 20} MiB",
        _beside_rabbit(_backlog, rabbit.backlog),
        disk_bytes=_BACKLOG_DISK,
        is_long=True,
        goals=(
            Goal("rss_peak_mib", at_most=BUDGET_BYTES >> 20),
            Goal("publish_last_to_first", at_least=0.8),
            Goal("drain_to_publish", at_least=0.5),
        ),
    ),
    Case(
        "recovery",
        "recovery of that backlog after kill -9, from a cold page cache",
        _beside_rabbit(_recovery, rabbit.recovery),
        disk_bytes=_BACKLOG_DISK,
        is_long=True,
    ),
)
