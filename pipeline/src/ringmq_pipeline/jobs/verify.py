"""The judgement of histories in Spark, the same as the plain checker's of cluster-tests.

It is for many histories at once, and for those that are larger than memory. It is made of parts.
A part has rows that belong together, by each rule how often a row breaks it, and sentences that
say what was seen. Messages are looked at by queue and position, and by queue and publisher; all
else goes by records. No part collects messages: a task sorts its share, on disk where memory is
short. The messages of one publisher in one queue are one task's share, as their order is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a violation breaks, and its name for people.
RULES: Final[dict[str, str]] = {
    "lost": "confirmed and lost",
    "duplicated": "enqueued twice",
    "replaced": "two messages at one position",
    "reordered": "not in the order of publishing",
    "stream_reordered": "delivered out of order on one stream",
    "unmarked": "came again without `redelivered`",
    "acked_again": "acked, and delivered again",
    "invented": "never published",
    "garbled": "another body than the published one",
    "two_masters": "two masters confirmed in one epoch",
    "deposed": "a deposed master confirmed",
    "two_views": "two rings in one epoch",
}
# How much was looked at: a history of nothing violates nothing.
TOTALS: Final = (
    "records",
    "published",
    "confirmed",
    "unknown",
    "delivered",
    "repeats",
    "acked",
    "views",
    "drained",
    "unreadable",
)
QUEUE: Final = ("run", "queue")
ORDER: Final = ("split", "line")


@dataclass(frozen=True)
class HistoryPart:
    rows: DataFrame
    # By rule: how often a row breaks it, and what was seen.
    rules: Mapping[str, tuple[Column, Column]] = field(default_factory=dict)
    totals: Mapping[str, Column] = field(default_factory=dict)


def verdicts(records: DataFrame, *, strangers: bool = False) -> DataFrame:
    """One row for each run and queue, with all `TOTALS` and the number of violations of each rule.
    Records without a queue are in a row of their own. With `strangers`, messages may be delivered
    whose publishers are not in the history."""
    summed = [
        part.rows.groupBy(*QUEUE).agg(
            *(f.sum(count).alias(rule) for rule, (count, _) in part.rules.items()),
            *(f.sum(amount).alias(name) for name, amount in part.totals.items()),
        )
        for part in _parts(records, strangers)
    ]
    together = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), summed)
    every = together.groupBy(*QUEUE).agg(
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in (*TOTALS, *RULES))
    )
    return every.withColumn("drained", f.least("drained", f.lit(1)))


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """Of all runs together. `violations`: by rule, those that were broken."""

    runs: int
    records: int
    totals: dict[str, int]
    violations: dict[str, int]
    broken_runs: list[str]


def verdict_of(judged: DataFrame, runs_max: int) -> HistoryVerdict:
    """`judged`: of `verdicts`. Names at most `runs_max` runs."""
    names = (*TOTALS, *RULES)
    sums = [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in names]
    row = judged.agg(f.countDistinct("run").alias("runs"), *sums).collect()[0]
    broken = reduce(lambda a, b: a | b, (f.col(rule) > 0 for rule in RULES))
    runs = judged.where(broken).select("run").distinct().orderBy("run").limit(runs_max)
    violations = {rule: row[rule] for rule in RULES if row[rule]}
    return HistoryVerdict(
        row["runs"],
        row["records"],
        {name: row[name] for name in TOTALS if name != "records"},
        violations,
        [each["run"] for each in runs.collect()] if violations else [],
    )


def findings(
    records: DataFrame, *, strangers: bool = False, rules: Sequence[str] = tuple(RULES)
) -> DataFrame:
    """One row for each violation of these rules, or for those of consecutive messages together:
    run, queue, rule, count, `at` of the record and what was seen. For each part with such a rule
    the history is read again."""
    found = [
        part.rows.where(count > 0).select(
            *QUEUE,
            f.lit(rule).alias("rule"),
            count.cast("bigint").alias("count"),
            "at",
            what.alias("what"),
        )
        for part in _parts(records, strangers)
        for rule, (count, what) in part.rules.items()
        if rule in rules
    ]
    return reduce(lambda a, b: a.unionByName(b), found)


def _parts(records: DataFrame, strangers: bool) -> list[HistoryPart]:
    runs = _runs(records)
    return [
        _records_part(records),
        _positions_part(records, runs),
        _messages_part(records, runs),
        _invented_part(records, runs, strangers),
        _streams_part(runs),
        _confirms_part(records),
        _views_part(records),
    ]


def _when(condition: Column) -> Column:
    """1 where it holds, else 0, also where it is unknown."""
    return f.when(condition, 1).otherwise(0)


def _message() -> Column:
    return f.format_string("%s %d", "tag", "number")


def _runs(records: DataFrame) -> DataFrame:
    """Delivered messages that are consecutive in queue and publisher, in the order of arrival."""
    return (
        records.where("kind = 'deliver'")
        .select(*QUEUE, *ORDER, "at", "consumer", "stream", f.posexplode("runs"))
        .select(
            *QUEUE,
            "split",
            (f.col("line") + f.col("pos")).alias("line"),
            "at",
            "consumer",
            "stream",
            "col.*",
        )
        .where("count > 0")
    )


def _records_part(records: DataFrame) -> HistoryPart:
    def size_of(kind: str) -> Column:
        return f.when(f.col("kind") == kind, f.col("last") - f.col("first") + 1).otherwise(0)

    acked = f.expr("aggregate(ranges, 0L, (sum, each) -> sum + each[1] - each[0] + 1)")
    return HistoryPart(
        records,
        {
            "garbled": (
                _when(f.col("kind") == "garbled"),
                f.format_string("position %d at %s", "position", "consumer"),
            )
        },
        {
            "records": f.lit(1),
            "published": size_of("publish"),
            "unknown": size_of("unknown"),
            "acked": f.when(f.col("kind") == "ack", acked).otherwise(0),
            "views": _when(f.col("kind") == "view"),
            "drained": _when(f.col("kind") == "drained"),
            "unreadable": _when(f.col("kind") == "unreadable"),
        },
    )


def _positions_part(records: DataFrame, runs: DataFrame) -> HistoryPart:
    """Each delivery, beside what came at its position before, acks included."""
    offset = f.posexplode(f.expr("sequence(0L, count - 1)"))
    delivered = runs.select("*", offset).select(
        *QUEUE,
        *ORDER,
        (f.col("position") + f.col("col")).alias("position"),
        "at",
        "consumer",
        "tag",
        (f.col("number") + f.col("col")).alias("number"),
        "redelivered",
    )
    acked = (
        records.where("kind = 'ack'")
        .select(*QUEUE, *ORDER, f.explode("ranges").alias("each"))
        .where("each[0] <= each[1]")
        .select(*QUEUE, *ORDER, f.explode(f.expr("sequence(each[0], each[1])")).alias("position"))
    )
    so_far = Window.partitionBy(*QUEUE, "position").orderBy(*ORDER)
    so_far = so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    message = f.when(f.col("tag").isNotNull(), f.struct("tag", "number"))
    seen = delivered.unionByName(acked, allowMissingColumns=True)
    rows = seen.select(
        *QUEUE,
        "position",
        "at",
        "consumer",
        "tag",
        "number",
        "redelivered",
        f.first(message, ignorenulls=True).over(so_far).alias("there"),
        f.count("tag").over(so_far).alias("times"),
        (f.count("*").over(so_far) > f.count("tag").over(so_far)).alias("acked"),
    ).where("tag IS NOT NULL")
    same = f.col("there") == f.struct("tag", "number")
    again = same & (f.col("times") > 1)
    there = f.format_string("position %d was %s %d", "position", "there.tag", "there.number")
    at_position = f.format_string("%s at %d", _message(), "position")
    return HistoryPart(
        rows,
        {
            "replaced": (_when(~same), f.format_string("%s and is %s", there, _message())),
            "unmarked": (_when(again & ~f.col("redelivered")), at_position),
            "acked_again": (
                _when(f.col("acked")),
                f.format_string("%s, to %s", at_position, "consumer"),
            ),
        },
        {"delivered": f.lit(1), "repeats": _when(again)},
    )


def _messages_part(records: DataFrame, runs: DataFrame) -> HistoryPart:
    """Each confirm and each delivery of a message, with the place where it was seen first.

    One exchange serves both windows: a publisher's rows are sorted by message in one task."""
    numbers = f.expr("sequence(first, last)")
    confirmed = (
        records.where("kind = 'confirm' AND first <= last")
        .select(*QUEUE, "tag", f.explode(numbers).alias("number"), *ORDER, "at")
        .withColumn("position", f.lit(None).cast("bigint"))
    )
    offset = f.posexplode(f.expr("sequence(0L, count - 1)"))
    delivered = runs.select("*", offset).select(
        *QUEUE,
        "tag",
        (f.col("number") + f.col("col")).alias("number"),
        *ORDER,
        "at",
        (f.col("position") + f.col("col")).alias("position"),
    )
    of_message = Window.partitionBy(*QUEUE, "tag", "number").orderBy(*ORDER)
    so_far = of_message.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = of_message.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    lower = Window.partitionBy(*QUEUE, "tag").orderBy("number", *ORDER)
    lower = lower.rowsBetween(Window.unboundedPreceding, -1)
    is_confirm = f.col("position").isNull()
    first = ~is_confirm & (f.col("times") == 1)
    placed = (
        confirmed.unionByName(delivered)
        .repartition(*QUEUE, "tag")
        .select(
            "*",
            f.first("position", ignorenulls=True).over(so_far).alias("place"),
            f.count("position").over(so_far).alias("times"),
            f.count(f.when(is_confirm, 1)).over(so_far).alias("confirms"),
            f.count("position").over(whole).alias("deliveries"),
        )
        .withColumn("before", f.max(f.when(first, f.col("position"))).over(lower))
    )
    drained = records.where("kind = 'drained'").select(*QUEUE).distinct()
    rows = placed.join(drained.withColumn("drained", f.lit(True)), [*QUEUE], "left")
    once = is_confirm & (f.col("confirms") == 1)
    at_position = f.format_string("%s at %d", _message(), "position")
    return HistoryPart(
        rows,
        {
            "lost": (_when(once & (f.col("deliveries") == 0) & f.col("drained")), _message()),
            "duplicated": (
                _when(f.col("place") != f.col("position")),
                f.format_string("%s at %d and %d", _message(), "place", "position"),
            ),
            "reordered": (
                _when(first & (f.col("position") < f.col("before"))),
                f.format_string("%s, after %d", at_position, "before"),
            ),
        },
        {"confirmed": _when(once)},
    )


def _invented_part(records: DataFrame, runs: DataFrame, strangers: bool) -> HistoryPart:
    """Each run of delivered messages, with how many its publisher had handed over till then."""
    handed_over = records.where("kind = 'publish'").select(
        *QUEUE, "tag", *ORDER, (f.col("last") + 1).alias("attempted")
    )
    so_far = Window.partitionBy(*QUEUE, "tag").orderBy(*ORDER)
    so_far = so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    attempted = f.coalesce(f.greatest(f.lit(0), f.max("attempted").over(so_far)), f.lit(0))
    together = runs.drop("consumer", "stream").unionByName(handed_over, allowMissingColumns=True)
    rows = together.withColumn("attempted", attempted).where("count IS NOT NULL")
    known = f.greatest(f.lit(0), f.least("count", f.col("attempted") - f.col("number")))
    judged = f.lit(True) if not strangers else f.col("attempted") > 0
    first = f.format_string("%s %d", "tag", f.col("number") + known)
    what = f.format_string("%s at %d", first, f.col("position") + known)
    return HistoryPart(
        rows, {"invented": (f.when(judged, f.col("count") - known).otherwise(0), what)}
    )


def _streams_part(runs: DataFrame) -> HistoryPart:
    """Each run that isn't marked as redelivered, beside the highest position before on its stream.

    Positions rise within a run, so those not above that one are the run's first."""
    before = Window.partitionBy(*QUEUE, "consumer", "stream").orderBy(*ORDER)
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    end = f.col("position") + f.col("count") - 1
    rows = runs.where(~f.col("redelivered")).withColumn(
        "last", f.coalesce(f.max(end).over(before), f.lit(-1))
    )
    below = f.greatest(f.lit(0), f.least("count", f.col("last") - f.col("position") + 1))
    stream = f.format_string("%s %d", "consumer", "stream")
    what = f.format_string("%d after %d on %s", "position", "last", stream)
    return HistoryPart(rows, {"stream_reordered": (below, what)})


def _confirms_part(records: DataFrame) -> HistoryPart:
    """Each confirm of a known master, beside the masters that had confirmed before it.

    A batch that was handed over before the new master's first confirm may have been confirmed by
    the old one in time: its publisher was only told later."""
    batch = Window.partitionBy(*QUEUE, "tag", "first").orderBy(*ORDER)
    handed_over = f.lag(f.when(f.col("kind") == "publish", f.col("at"))).over(batch)
    confirms = (
        records.where("kind IN ('publish', 'confirm', 'unknown')")
        .withColumn("handed_over", f.coalesce(handed_over, "at"))
        .where("kind = 'confirm' AND master != ''")
        .select(*QUEUE, *ORDER, "at", "tag", "first", "epoch", "master", "handed_over")
    )
    place = f.struct(*ORDER)
    # By epoch: who has confirmed first, and when.
    known = (
        records.where("kind = 'confirm' AND master != ''")
        .groupBy(*QUEUE, "epoch")
        .agg(f.min_by(f.struct("master", "at", place.alias("place")), place).alias("first"))
        .groupBy(*QUEUE)
        .agg(f.collect_list(f.struct("epoch", "first.*")).alias("masters"))
    )
    own = "get(filter(masters, m -> m.epoch = epoch), 0)"
    later = (
        "get(filter(masters, m -> m.epoch > epoch AND m.master != master "
        "AND m.at < handed_over AND m.place < struct(split, line)), 0)"
    )
    rows = (
        confirms.join(known, [*QUEUE])
        .withColumn("own", f.expr(own))
        .withColumn("later", f.expr(later))
        .drop("masters")
    )
    return HistoryPart(
        rows,
        {
            "two_masters": (
                _when(f.col("own.master") != f.col("master")),
                f.format_string(
                    "epoch %d: %s at %.3f, %s at %.3f",
                    "epoch",
                    "own.master",
                    "own.at",
                    "master",
                    "at",
                ),
            ),
            "deposed": (
                _when(f.col("later").isNotNull()),
                f.format_string(
                    "%s %d handed over at %.3f, confirmed by %s of epoch %d; "
                    "%s confirmed in epoch %d at %.3f",
                    *("tag", "first", "handed_over", "master", "epoch"),
                    *("later.master", "later.epoch", "later.at"),
                ),
            ),
        },
    )


def _views_part(records: DataFrame) -> HistoryPart:
    so_far = Window.partitionBy(*QUEUE, "epoch").orderBy(*ORDER)
    ring = f.struct("ring", "synchronised")
    rows = records.where("kind = 'view'").select(
        *QUEUE, "at", "epoch", ring.alias("seen"), f.first(ring).over(so_far).alias("known")
    )
    what = f.format_string("epoch %d: %s, %s", "epoch", f.to_json("known"), f.to_json("seen"))
    return HistoryPart(rows, {"two_views": (_when(f.col("seen") != f.col("known")), what)})
