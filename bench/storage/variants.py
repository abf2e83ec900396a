"""How each variant of each case runs: its workload, how large, and the figures that come of it."""

from __future__ import annotations

from collections.abc import Callable

from bench.storage import rabbit
from bench.storage.context import BUDGET_BYTES, Backlog, Context
from bench.storage.figures import backlog_figures, garbage_figures, rate_figures
from bench.storage.observations import Observations
from bench.storage.page_cache import evict
from bench.storage.round_result import OURS, RoundResult, round_result

SIZE = 1024
BATCH = 500
# Batches in flight.
WINDOW = 16
LIMIT, LIMIT_GROUPED = "limit", "limit-grouped"

# Called with the context, the number of the round, and the scale.
Variant = Callable[[Context, int, float], RoundResult]


def scaled(count: int, scale: float, multiple: int = 1) -> int:
    """`count` at this scale, in whole multiples, at least one."""
    return max(round(count * scale / multiple), 1) * multiple


def append(name: str, messages: int, batch: int, window: int) -> dict[str, Variant]:
    """Ours, and the bare loop that syncs each batch, or a whole window at a time."""

    def figures(observed: Observations, count: int) -> dict[str, float]:
        result = rate_figures(observed, "append", count, count * SIZE)
        result["written_per_byte"] = observed.result()["written_bytes"] / (count * SIZE)
        return result

    def ours(context: Context, round_number: int, scale: float) -> RoundResult:
        count = scaled(messages, scale, batch * window)
        observed = context.run("append", messages=count, size=SIZE, batch=batch, window=window)
        return round_result(name, OURS, round_number, observed, figures(observed, count))

    def limit(variant: str, per_sync: int) -> Variant:
        def run(context: Context, round_number: int, scale: float) -> RoundResult:
            count = scaled(messages, scale, batch * window)
            observed = context.run("limit", messages=count, size=SIZE, per_sync=per_sync)
            return round_result(name, variant, round_number, observed, figures(observed, count))

        return run

    variants: dict[str, Variant] = {OURS: ours, LIMIT: limit(LIMIT, batch)}
    if window > 1:
        variants[LIMIT_GROUPED] = limit(LIMIT_GROUPED, batch * window)
    return variants


def consume(context: Context, round_number: int, scale: float) -> RoundResult:
    count = scaled(500_000, scale, BATCH)
    observed = context.run("consume", messages=count, size=SIZE, batch=BATCH, window=WINDOW)
    figures = rate_figures(observed, "consume", count, count * SIZE)
    return round_result("consume", OURS, round_number, observed, figures)


BACKLOG_MESSAGES = 5_000_000


def backlog_at(scale: float) -> Backlog:
    return Backlog(scaled(BACKLOG_MESSAGES, scale, 10 * BATCH), SIZE, BATCH * WINDOW)


def backlog(context: Context, round_number: int, scale: float) -> RoundResult:
    wanted = backlog_at(scale)
    observed = context.run(
        "backlog",
        messages=wanted.messages,
        size=wanted.size,
        batch=BATCH,
        window=WINDOW,
        budget=BUDGET_BYTES,
    )
    figures = backlog_figures(observed, wanted.messages)
    figures["memory_alarms"] = observed.result()["memory_alarms"]
    return round_result("backlog", OURS, round_number, observed, figures)


def recovery(context: Context, round_number: int, scale: float) -> RoundResult:
    wanted = backlog_at(scale)
    context.data.mkdir()
    _, empty = _recover(context, "recover", messages=0)
    with context.start(
        "fill",
        messages=wanted.messages,
        size=wanted.size,
        batch=BATCH,
        window=WINDOW,
        budget=BUDGET_BYTES,
    ) as filling:
        context.follow(filling, Observations(), "end")
        filling.kill()
    observed, figures = _recover(context, "recover", messages=wanted.messages)
    figures["recover_empty_s"] = empty["recover_s"]
    return round_result("recovery", OURS, round_number, observed, figures)


def queues(context: Context, round_number: int, scale: float) -> RoundResult:
    queues = scaled(10_000, scale)
    with context.start("fill_queues", queues=queues, size=SIZE) as filling:
        context.follow(filling, Observations(), "end")
        filling.kill()
    observed, figures = _recover(context, "recover_queues", queues=queues)
    return round_result("queues", OURS, round_number, observed, figures)


def _recover(
    context: Context, work: str, **parameters: int
) -> tuple[Observations, dict[str, float]]:
    """Recovers the directory of a killed process. Seconds count from the new process's start."""
    evict(context.data)
    observed = Observations()
    with context.start(work, **parameters) as watched:
        context.follow(watched, observed, "result")
        figures = {
            "recover_s": observed.of("end", "recover").at_s - watched.started_at_s,
            "recover_cpu_s": observed.cpu_s("recover"),
            "rss_peak_mib": observed.result()["rss_peak_bytes"] / 2**20,
        }
    return observed, figures


FAN_OUT_QUEUES = 10
FAN_OUT_SIZE = 64 << 10


def fan_out(context: Context, round_number: int, scale: float) -> RoundResult:
    count = scaled(4000, scale)
    observed = context.run(
        "fan_out", messages=count, size=FAN_OUT_SIZE, queues=FAN_OUT_QUEUES, window=WINDOW
    )
    copies = count * FAN_OUT_QUEUES
    figures = rate_figures(observed, "publish", copies, copies * FAN_OUT_SIZE)
    figures["written_per_byte"] = observed.result()["written_bytes"] / (count * FAN_OUT_SIZE)
    figures["disk_end_mb"] = observed.samples[-1].disk_bytes / 1e6
    return round_result("fan-out", OURS, round_number, observed, figures)


CHURN_BYTES = 1 << 30
CHURN_BATCH_BYTES = 256 << 10
# One in so many of the published messages lives at the end, and most of the time.
CHURN_LIVE_SHARE = 4


def compaction(name: str, size: int) -> Variant:
    def run(context: Context, round_number: int, scale: float) -> RoundResult:
        batch = CHURN_BATCH_BYTES // size
        count = scaled(CHURN_BYTES // size, scale, CHURN_LIVE_SHARE * batch)
        observed = context.run(
            "compaction",
            messages=count,
            live_messages=count // CHURN_LIVE_SHARE,
            size=size,
            batch=batch,
            window=WINDOW,
        )
        figures = rate_figures(observed, "churn", count, count * size) | garbage_figures(observed)
        figures["written_per_byte"] = observed.result()["written_bytes"] / (count * size)
        return round_result(name, OURS, round_number, observed, figures)

    return run


def _rabbit(run: Callable[[Context, str, int, Backlog], RoundResult], variant: str) -> Variant:
    def variant_of(context: Context, round_number: int, scale: float) -> RoundResult:
        return run(context, variant, round_number, backlog_at(scale))

    return variant_of


def beside_rabbit(
    ours: Variant, theirs: Callable[[Context, str, int, Backlog], RoundResult]
) -> dict[str, Variant]:
    return {
        OURS: ours,
        rabbit.DEFAULT: _rabbit(theirs, rabbit.DEFAULT),
        rabbit.LAZY: _rabbit(theirs, rabbit.LAZY),
    }
